"""The programs that cores run for npu_quant_matmul.

Where the fixpipe computes the output, cube cores work alone. With float scales or scales a row, a
cube core writes int32 blocks into a workspace, two of them in turn (as many as a row has in tbe_opt
and tbe), and its two vector cores make the output of one while the next one is multiplied
(ops-nn@e5c3fa9, matmul/quant_batch_matmul_v3, quant_batch_matmul_v3_bf16_basic.h,
_pertoken_basic.h). In tbe the vector cores start it, see `messages`.
"""

from __future__ import annotations

from functools import partial

from npusim.data.dtypes import INT32, UINT64
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe, Local
from npusim.kernel.blocks import (
    base_tile,
    columns_of,
    gm_matrix_a,
    gm_matrix_b,
    output_of,
    write_pieces,
)
from npusim.kernel.builder import Builder
from npusim.kernel.coupled import NdFeed, NdOut, RowTable
from npusim.kernel.cube import CubeWriter, GmFeed, GmTile, Tables
from npusim.kernel.launch import mixed_launch
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import load
from npusim.kernel.tiles import Piece, work
from npusim.kernel.views import GmView, bindings
from npusim.ops.npu_quant_matmul.contract import Problem
from npusim.ops.npu_quant_matmul.epilogue import FILLED, READ, Epilogue, workspace_of
from npusim.ops.npu_quant_matmul.messages import Inbox, message_of, rectangles
from npusim.ops.npu_quant_matmul.opt import OptEpilogue
from npusim.ops.npu_quant_matmul.tiling import Plan
from npusim.ops.npu_quant_matmul.v4 import msd, pergroup
from npusim.ops.npu_quant_matmul.v4.msd import MsdPlan
from npusim.ops.npu_quant_matmul.v4.pergroup import PerGroupPlan

__all__ = ["build"]


def build(spec: DeviceSpec, p: Problem, plan: Plan | MsdPlan | PerGroupPlan) -> tuple[Block, ...]:
    """One block a core, or three: a cube core and its two vector cores."""
    if isinstance(plan, MsdPlan):
        return msd.build(spec, p, plan)
    if isinstance(plan, PerGroupPlan):
        return pergroup.build(spec, p, plan)
    bound = {name: Binding(name) for name in (*(x.name for x in p.inputs), "output")}
    bound["x2"] = Binding("x2", is_cached=not plan.cube.bypasses_l2(p.product))
    shares = work(plan.cube, p.product)
    if p.epilogue == "fixpipe":
        kernel = (CoupledQuantMatmul if spec.arch == "2002" else CubeQuantMatmul)(spec, p, plan)
        kind = "ai_core" if spec.arch == "2002" else "aic"
        return tuple(
            Block(core, kind, kernel.program(core, pieces), bound)
            for core, pieces in enumerate(shares)
        )
    cube = CubeQuantMatmul(spec, p, plan)
    has_factors = plan.template == "tbe_opt" and p.pertoken_scale is not None
    epilogue = (OptEpilogue if has_factors else Epilogue)(spec, p, plan)

    def workspaces(group: int) -> tuple[GmView, ...]:
        """Where the blocks of a group begin, and the messages to its cube core."""
        blocks = workspace_of(plan, group * plan.workspace_blocks)
        return (blocks, message_of(plan, group)) if plan.is_driven else (blocks,)

    return mixed_launch(
        len(shares),
        lambda group: bound | bindings(*workspaces(group)),
        lambda group: cube.program(group, shares[group]),
        lambda group, half: epilogue.program(shares[group], half),
    )


class CubeQuantMatmul:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.plan, tile = p, plan, base_tile(plan.cube)
        self.builder = Builder("npu_quant_matmul", spec.cores["aic"], spec.sync)
        a = GmFeed(self.builder, gm_matrix_a(p.product))
        b = GmFeed(self.builder, gm_matrix_b(p.product))
        # ops-nn@e5c3fa9, quant_batch_matmul_v3_base.h: the configurations of the Matmul API. All
        # stagger k; only kernels of cube cores alone use the unit flag.
        is_alone = p.epilogue == "fixpipe"
        self.writer = CubeWriter(self.builder, tile, a, b, p.product.k, unit_flag=is_alone)
        self.has_words = p.epilogue == "fixpipe" and p.scale is not None
        kind = None if p.start is None else INT32
        self.tables = Tables(self.builder, tile.n, kind, self.has_words)
        self.single: Local | None = None
        """The one scale in the fixpipe buffer, where all columns have the same."""
        self.first_k = 0
        """Where the core begins along k."""
        self.inbox = Inbox(self.builder) if plan.is_driven else None

    def program(self, core: int, pieces: tuple[Piece, ...]) -> Program:
        """Compute *pieces* one after the other, as core number *core*."""
        self.first_k = self.writer.stagger(core, self.p.product.k)
        self.single = None
        if self.has_words and self.p.scale is not None and self.p.scale.spec.size == 1:
            self.single = self.tables.take_scale(GmView.vector("scale", UINT64, 1))
        is_fixpipe = self.p.epilogue == "fixpipe"
        stage = self._store_output if is_fixpipe else self._store_sums
        arguments = self._output if is_fixpipe else self._workspace
        for rectangle in rectangles(self.plan, pieces):
            if self.inbox is not None:
                self.inbox.receive()
            write_pieces(self.builder, self.writer, self.p.product, rectangle, stage, arguments)
        return self.builder.build()

    def _output(self, _: int, piece: Piece) -> tuple[GmView | int | None, ...]:
        """Where the fixpipe stores a piece, where k begins, its bias and its scales."""
        p, scale = self.p, None
        if self.has_words and p.scale is not None and self.single is None:
            scale = columns_of(p.product, piece, p.scale)
        output = output_of(p.product, piece, p.output.element)
        return output, self.first_k, self._bias(piece), scale

    def _workspace(self, index: int, piece: Piece) -> tuple[GmView | int | None, ...]:
        """Where piece number *index* goes, where k begins, its bias, whether its place was used."""
        ring = self.plan.workspace_blocks
        block = workspace_of(self.plan, index % ring)[: piece.rows, : piece.columns]
        return block, self.first_k, self._bias(piece), index >= ring and not self.plan.is_driven

    def _bias(self, piece: Piece) -> GmView | None:
        start = self.p.start
        return None if start is None else columns_of(self.p.product, piece, start)

    def _multiply(self, x1: GmTile, x2: GmTile, first_k: int, bias: GmView | None) -> Slot:
        """The int32 sums of (rows, k) times (k, columns) in L0C."""
        start = None if bias is None else self.tables.take_bias(bias)
        slot = self.writer.product(x1.extent, x2.extent, x1.k, bias=start, first_k=first_k)
        self.tables.drop_bias()
        return slot

    def _store_output(
        self,
        x1: GmTile,
        x2: GmTile,
        output: GmView,
        first_k: int,
        bias: GmView | None,
        scales: GmView | None,
    ) -> None:
        """Make *output* `(rows, columns)`, the scales being in the fixpipe's buffer."""
        slot = self._multiply(x1, x2, first_k, bias)
        # (columns,) 64-bit scales in the fixpipe buffer, or the one of all columns
        scale = self.single if scales is None else self.tables.take_scale(scales)
        rows_padded, sums = _sums(slot, output)
        size = output.rows, output.columns, rows_padded
        # L0C (columns / 16, rows_padded, 16) int32 -> (rows, columns) of the output's type
        op = Fixpipe(output.operand, sums, *size, output.dtype, self.p.mode, scale)
        self.writer.drain(slot, op)

    def _store_sums(
        self,
        x1: GmTile,
        x2: GmTile,
        block: GmView,
        first_k: int,
        bias: GmView | None,
        is_reused: bool,
    ) -> None:
        """Write the int32 sums to *block* `(rows, columns)` of the workspace."""
        slot = self._multiply(x1, x2, first_k, bias)
        if is_reused:
            # Every block of the workspace has been filled: this one must have been read.
            self.builder.cross_core_wait_flag("group", "fixpipe", READ)
        rows_padded, sums = _sums(slot, block)
        # L0C (columns / 16, rows_padded, 16) int32 -> (rows, columns) int32
        op = Fixpipe(block.operand, sums, block.rows, block.columns, rows_padded, INT32)
        self.writer.drain(slot, op)
        self.builder.cross_core_set_flag("group", "fixpipe", FILLED)


class CoupledQuantMatmul:
    """The kernel of a coupled core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, tile = spec, p, base_tile(plan.cube)
        self.builder = Builder("npu_quant_matmul", spec.cores["ai_core"], spec.sync)
        a = NdFeed(self.builder, spec, gm_matrix_a(p.product))
        b = GmFeed(self.builder, gm_matrix_b(p.product))
        # A PIPE_M barrier stands before each Mmad of ops-nn@e5c3fa9, arch20/pp_matmul_kernel.h.
        in_turn = plan.template == "pp"
        self.writer = CubeWriter(self.builder, tile, a, b, p.product.k, "vector", in_turn=in_turn)
        self.out = NdOut(self.builder, spec, tile.m, tile.n, p.output.element)
        self.row: RowTable | None = None
        if p.start is not None:
            self.row = RowTable(self.builder, spec, tile.n, INT32, INT32)
        words_bytes = UINT64.nbytes(align_up(tile.n, 32))
        self.words = self.builder.queue("ub", words_bytes, "mte2", "vector")

    def program(self, _: int, pieces: tuple[Piece, ...]) -> Program:
        """Compute *pieces* one after the other; every core begins at k = 0."""
        p = self.p

        def arguments(_: int, piece: Piece) -> tuple[GmView | None, ...]:
            assert p.scale is not None
            scale = GmView.vector("scale", UINT64, 1)
            if p.scale.spec.size > 1:
                scale = columns_of(p.product, piece, p.scale)
            bias = None if p.start is None else columns_of(p.product, piece, p.start)
            return output_of(p.product, piece, p.output.element), bias, scale

        write_pieces(self.builder, self.writer, p.product, pieces, self._block, arguments)
        return self.builder.build()

    def _block(
        self, x1: GmTile, x2: GmTile, output: GmView, bias: GmView | None, scale: GmView
    ) -> None:
        """Make *output* `(rows, columns)` of int32 sums, *bias* `(columns,)` and *scale*."""
        rows_padded = align_up(output.rows, FRACTAL_ROWS)
        preload = None
        if bias is not None and self.row is not None:
            preload = partial(self.row.spread, bias, rows=rows_padded)
        slot = self.writer.product(x1.extent, x2.extent, x1.k, preload=preload)
        _, sums = _sums(slot, output)
        words = load(self.builder, self.spec, self.words, scale)
        # One word, or one a column: whole fractals of columns are read.
        assert self.p.scale is not None
        count = 1 if self.p.scale.spec.size == 1 else align_up(scale.columns, 32)
        # L0C (columns / 16, rows_padded, 16) int32 -> (rows, columns)
        self.out.drain(sums, output, self.p.mode, words.of(UINT64, count))
        self.words.free(words)
        self.writer.release(slot)


def _sums(slot: Slot, block: GmView) -> tuple[int, Local]:
    """Rows of *block* in L0C, padded, and its numbers `(columns / 16, rows_padded, 16)`."""
    rows_padded = align_up(block.rows, FRACTAL_ROWS)
    return rows_padded, slot.of(INT32, rows_padded * align_up(block.columns, FRACTAL_ROWS))
