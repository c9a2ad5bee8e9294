"""The programs that cores run for npu_quant_matmul.

Where the fixpipe makes the output, cube cores work alone. Where full scales or scales a row do, a
cube core writes int32 blocks into a workspace, two of them in turn, and its two vector cores make
the output of one while the next one is multiplied (ops-nn@e5c3fa9, matmul/quant_batch_matmul_v3,
quant_batch_matmul_v3_bf16_basic.h, _pertoken_basic.h).
"""

from __future__ import annotations

from npusim.data.dtypes import INT32, UINT64
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Fixpipe, Global, Local
from npusim.kernel.blocks import base_tile, gm_matrix_a, gm_matrix_b, shifts_of, write_pieces
from npusim.kernel.builder import Builder
from npusim.kernel.coupled import NdFeed, NdOut, RowTable
from npusim.kernel.cube import CubeWriter, GmFeed, Tables
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import Rows, load
from npusim.kernel.tiles import Piece, work
from npusim.ops.npu_quant_matmul.contract import Problem
from npusim.ops.npu_quant_matmul.epilogue import FILLED, READ, Epilogue, tile_bytes
from npusim.ops.npu_quant_matmul.tiling import Plan

__all__ = ["build"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core, or three: a cube core and its two vector cores."""
    names = [operand.name for operand in p.inputs] + ["output"]
    if p.epilogue == "fixpipe":
        writing = (_Coupled if spec.arch == "2002" else _Split)(spec, p, plan)
        bindings = {name: Binding(name) for name in names}
        bindings["x2"] = Binding("x2", is_cached=not plan.cube.bypasses_l2(p.product))
        kind = "ai_core" if spec.arch == "2002" else "aic"
        return tuple(
            Block(core, kind, writing.program(pieces), bindings)
            for core, pieces in enumerate(work(plan.cube, p.product))
        )
    cube, epilogue = _Split(spec, p, plan), Epilogue(spec, p, plan)
    blocks = []
    for group, pieces in enumerate(work(plan.cube, p.product)):
        bindings = {name: Binding(name) for name in names}
        bindings["x2"] = Binding("x2", is_cached=not plan.cube.bypasses_l2(p.product))
        bindings["workspace"] = Binding(
            "workspace", group * plan.workspace_blocks * tile_bytes(plan)
        )
        first = 3 * group
        blocks.append(Block(first, "aic", cube.program(pieces), bindings, group))
        for half in (0, 1):
            program = epilogue.program(pieces, half)
            blocks.append(Block(first + 1 + half, "aiv", program, bindings, group))
    return tuple(blocks)


def _vectors(p: Problem) -> dict[str, int]:
    """Tensors along n, and the bytes of an element."""
    vectors = {}
    if p.scale is not None and p.scale.spec.size > 1:
        vectors["scale"] = p.scale.element.nbytes(1)
    if p.start is not None:
        vectors["bias"] = p.start.element.nbytes(1)
    return vectors


def _shifts(p: Problem, piece: Piece) -> dict[str, int]:
    shifts = shifts_of(p.product, piece, p.output.element, _vectors(p))
    if p.start is not None and len(p.start.shape) == 3 and p.start.shape[0] > 1:
        shifts["bias"] += piece.matrix * p.start.element.nbytes(p.product.n)
    return shifts


class _Split:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.plan, self.tile = p, plan, base_tile(plan.cube)
        self.builder = Builder("npu_quant_matmul", spec.cores["aic"], spec.sync)
        a, b = (
            GmFeed(self.builder, gm_matrix(p.product)) for gm_matrix in (gm_matrix_a, gm_matrix_b)
        )
        self.writer = CubeWriter(self.builder, self.tile, a, b, p.product.k)
        self.has_words = p.epilogue == "fixpipe" and p.scale is not None
        kind = None if p.start is None else INT32
        self.tables = Tables(self.builder, self.tile.n, kind, self.has_words)
        self.single: Local | None = None

    def program(self, pieces: tuple[Piece, ...]) -> Program:
        """Make *pieces* one after the other."""
        self.single = None
        if self.has_words and self.p.scale is not None and self.p.scale.spec.size == 1:
            self.single = self.tables.take_scale("scale", 1)
        p, plan = self.p, self.plan
        if p.epilogue == "fixpipe":
            write_pieces(
                self.builder, self.writer, p.product, pieces, lambda x: _shifts(p, x), self._finish
            )
            return self.builder.build()
        ring = plan.workspace_blocks
        places = {piece: index % ring * tile_bytes(plan) for index, piece in enumerate(pieces)}
        write_pieces(
            self.builder,
            self.writer,
            p.product,
            pieces,
            lambda piece: _shifts(p, piece) | {"workspace": places[piece]},
            self._hand_over,
            ring,
        )
        return self.builder.build()

    def _multiply(self, rows: int, columns: int) -> tuple[Local, int]:
        """The int32 sums of a piece in L0C, and how many rows lie there."""
        bias = None
        if self.p.start is not None:
            table = self.tables.take_bias("bias", columns)
            bias = self.tables.bias(table, columns)
        self.slot = self.writer.product(rows, columns, self.p.product.k, bias=bias)
        if self.p.start is not None:
            self.tables.drop_bias(table)
        high = align_up(rows, 16)
        return self.slot.of(INT32, high * align_up(columns, 16)), high

    def _finish(self, rows: int, columns: int, _: int) -> None:
        p, out = self.p, self.p.output.element
        total, high = self._multiply(rows, columns)
        scale = self.single
        if self.has_words and scale is None:
            scale = self.tables.take_scale("scale", columns)
        place = Global("output", 0, out.nbytes(columns), rows, out.nbytes(p.product.n))
        self.builder.emit(Fixpipe(place, total, rows, columns, high, out, p.mode, scale))
        self.writer.release(self.slot)

    def _hand_over(self, rows: int, columns: int, stage: int) -> None:
        total, high = self._multiply(rows, columns)
        if stage >= self.plan.workspace_blocks:
            # Every place of the workspace has been filled: this one must have been read.
            self.builder.cross_core_wait_flag("group", "fixpipe", READ)
        width = INT32.nbytes(columns)
        place = Global("workspace", 0, width, rows, INT32.nbytes(self.tile.n))
        self.builder.emit(Fixpipe(place, total, rows, columns, high, INT32))
        self.builder.cross_core_set_flag("group", "fixpipe", FILLED)
        self.writer.release(self.slot)


class _Coupled:
    """The kernel of a coupled core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.spec, self.p, self.tile = spec, p, base_tile(plan.cube)
        self.builder = Builder("npu_quant_matmul", spec.cores["ai_core"], spec.sync)
        a = NdFeed(self.builder, spec, gm_matrix_a(p.product))
        b = GmFeed(self.builder, gm_matrix_b(p.product))
        self.writer = CubeWriter(self.builder, self.tile, a, b, p.product.k, "vector")
        self.out = NdOut(self.builder, spec, self.tile.m, self.tile.n, p.output.element)
        self.row = None
        if p.start is not None:
            self.row = RowTable(self.builder, spec, self.tile.n, INT32, INT32)
        count = align_up(self.tile.n, 32)
        self.words = self.builder.queue("ub", UINT64.nbytes(count), "mte2", "vector")

    def program(self, pieces: tuple[Piece, ...]) -> Program:
        """Make *pieces* one after the other."""
        p = self.p
        write_pieces(
            self.builder, self.writer, p.product, pieces, lambda piece: _shifts(p, piece), self.body
        )
        return self.builder.build()

    def body(self, rows: int, columns: int, _: int) -> None:
        p, row = self.p, self.row
        high = align_up(rows, 16)

        def preload(total: Local) -> None:
            assert row is not None
            row.spread("bias", columns, total, high)

        start = None if row is None else preload
        slot = self.writer.product(rows, columns, p.product.k, preload=start)
        total = slot.of(INT32, high * align_up(columns, 16))
        words = self.words.alloc()
        assert p.scale is not None
        is_single = p.scale.spec.size == 1
        nbytes = UINT64.nbytes(1 if is_single else columns)
        load(
            self.builder,
            self.spec,
            words,
            Rows("scale", 0, 1, nbytes, nbytes),
            align_up(nbytes, BLOCK_BYTES),
        )
        self.words.enque(words)
        words = self.words.deque()
        scale = words.of(UINT64, 1 if is_single else align_up(columns, 32))
        stride = p.output.element.nbytes(p.product.n)
        self.out.drain(total, rows, columns, stride, p.mode, scale)
        self.words.free(words)
        self.writer.release(slot)
