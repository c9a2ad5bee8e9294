"""The template msd: int8 times int4, x1 written as two int4 a number.

.. code-block:: text

    vector cores  rows of x1 as digits, to global memory; all wait for all
    cube cores    digits @ x2, group after group, scaled and rounded to float16, into a ring of four
    vector cores  y(((f32(lo) + f32(hi) * 16) + offset) * pertoken_scale)

Blocks are dealt out row after row. With scales of columns they have the size that the basic tiling
gives twice the rows, with scales of groups 16 rows. Assumed: that the two vector cores of a group
take pieces of a block in turn, and the order of their buffers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, INT8, UINT64
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.blocks import base_tile, gm_matrix_b
from npusim.kernel.builder import Builder
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube import BaseTile, GmMatrix
from npusim.kernel.launch import mixed_launch
from npusim.kernel.plane import REPEAT
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.tiles import CubeTiles, Piece, work
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops import _protocol
from npusim.ops._int4_matmul import FILLED, READ, DigitSplitter, Epilogue, ScaledGroups, digits_of
from npusim.ops.npu_quant_matmul.basic import basic_tiles
from npusim.ops.npu_quant_matmul.problem import Problem

__all__ = ["MsdPlan", "build", "tile"]

SPLIT, ALL_VECTORS = 2, 3
"""Flags: the digits are in global memory; all vector cores wait for each other."""
RING = 4
"""Blocks of a cube core in the workspace."""
CHUNK = 8192
"""Numbers of the output that a vector core makes at a time."""
GROUP_ROWS, GROUP_PIECE = 16, 128
"""Rows of a block, and k of a piece in L0, with scales of groups."""
COLUMNS = (64, 128, 256, 512)
"""Of a block, with scales of groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MsdPlan(_protocol.Plan):
    """The tiles of the cube, whose rows are digits, and what a vector core makes at a time."""

    cube: CubeTiles
    chunk_rows: int
    """Of the output."""


def tile(spec: DeviceSpec, p: Problem) -> MsdPlan:
    """Split as the vendor does; every core is started."""
    cube = _tiles(spec, p)
    pr = p.product
    ring_bytes = RING * FLOAT16.nbytes(cube.base_m * cube.base_n) * cube.cores
    return MsdPlan(
        block_dim=spec.cores["aic"].count,
        template="msd",
        reason="asked for" if p.asked else "x1 is int8 and x2 int4",
        is_mix=True,
        workspaces={"digits": INT4.nbytes(2 * pr.m * pr.k), "ring": ring_bytes},
        cube=cube,
        chunk_rows=max(1, min(cube.base_m // 2, CHUNK // align_up(cube.base_n, REPEAT))),
    )


def _tiles(spec: DeviceSpec, p: Problem) -> CubeTiles:
    """Blocks of digits, row after row, a core at a time."""
    core, digits = spec.cores["aic"], replace(p.product, m=2 * p.product.m)
    if p.group_k < p.product.k:
        rows = ceil_div(digits.m, GROUP_ROWS)
        share = ceil_div(digits.n, max(1, ceil_div(core.count, rows)))
        bn = next((size for size in COLUMNS if size >= share), COLUMNS[-1])
        steps = p.group_k // GROUP_PIECE
        cube = CubeTiles(
            *(GROUP_ROWS, bn, GROUP_PIECE, steps, steps, steps, steps),
            l0c_depth=1,
            cores=1,
            schedule="round_robin",
            order="row",
            l2_m=1,
            l2_n=1,
        )
    else:
        cube = basic_tiles(spec, replace(p, product=digits))
    blocks_m, blocks_n = ceil_div(digits.m, cube.base_m), ceil_div(digits.n, cube.base_n)
    return replace(
        cube,
        cores=min(core.count, blocks_m * blocks_n),
        schedule="round_robin",
        order="row",
        l2_m=blocks_m,
        l2_n=blocks_n,
    )


def build(spec: DeviceSpec, p: Problem, plan: MsdPlan) -> tuple[Block, ...]:
    """Three blocks a group: a cube core and its two vector cores."""
    digits = replace(p.product, m=2 * p.product.m)
    bound = {name: Binding(name) for name in (*(x.name for x in p.inputs), "output", "digits")}
    bound["x2"] = Binding("x2", is_cached=not plan.cube.bypasses_l2(digits))
    shares = work(plan.cube, digits) + ((),) * (plan.block_dim - plan.cube.cores)
    cube, vector = _CubeCore(spec, p, plan), _VectorCore(spec, p, plan)
    return mixed_launch(
        plan.block_dim,
        lambda group: bound | bindings(_ring(plan, min(group, plan.cube.cores - 1))),
        lambda group: cube.program(shares[group]),
        lambda group, half: vector.program(shares[group], group, half),
    )


def _ring(plan: MsdPlan, group: int) -> GmView:
    """The blocks of *group*, `(4 base_m, base_n)` float16, and those behind them."""
    rows = RING * plan.cube.base_m
    ring = GmView.of("ring", FLOAT16, rows * plan.cube.cores, plan.cube.base_n)
    return ring[group * rows :, :]


def _place(plan: MsdPlan, index: int, piece: Piece) -> GmView:
    """Where block number *index* of a group is in its ring."""
    rows = plan.cube.base_m
    first = index % RING * rows
    return _ring(plan, 0)[first : first + piece.rows, : piece.columns]


class _CubeCore:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: MsdPlan) -> None:
        self.p, self.plan, pr = p, plan, p.product
        self.builder = Builder("npu_quant_matmul", spec.cores["aic"], spec.sync)
        a = GmMatrix("digits", INT4, 2 * pr.m, pr.k, k_is_first=False)
        self.groups = ScaledGroups(self.builder, self._tile(), a, gm_matrix_b(pr), p.group_k)

    def _tile(self) -> BaseTile:
        """With groups L1 holds one piece of each operand."""
        cube = self.plan.cube
        if self.p.group_k == self.p.product.k:
            return base_tile(cube)
        return BaseTile(
            *(cube.base_m, cube.base_n, cube.base_k, cube.step_ka, cube.step_kb),
            depth_a=1,
            depth_b=1,
        )

    def program(self, share: tuple[Piece, ...]) -> Program:
        """Multiply the blocks of *share* when the digits are there."""
        builder, p = self.builder, self.p
        builder.cross_core_wait_flag("group", "mte2", SPLIT)
        scales = GmView.of("scale", UINT64, p.product.k // p.group_k, p.product.n)
        for index, piece in enumerate(share):
            columns = slice(piece.column, piece.column + piece.columns)
            repeat(
                builder,
                self.groups.block,
                self.groups.a.tile(piece.row, piece.rows),
                self.groups.b.tile(piece.column, piece.columns),
                scales[:, columns],
                _place(self.plan, index, piece),
                index >= RING,
            )
        return builder.build()


class _VectorCore:
    """The kernel of a vector core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: MsdPlan) -> None:
        self.p, self.plan, pr = p, plan, p.product
        self.builder = builder = VectorCore("npu_quant_matmul", spec)
        self.splitter = DigitSplitter(builder, pr.k)
        builder.reset_buffers()
        block, out = (plan.chunk_rows, plan.cube.base_n), p.output.element
        self.finish = Epilogue(builder, block, out, digits=True, offset=True)

    def program(self, share: tuple[Piece, ...], group: int, half: int) -> Program:
        """Split rows of x1, then make the output of the blocks of the cube core of *group*."""
        builder, pr = self.builder, self.p.product
        self.splitter.prepare()
        x1, digits = GmView.of("x1", INT8, pr.m, pr.k), digits_of(pr.m, pr.k)
        self.splitter.rows(x1, digits, 2 * group + half, 2 * self.plan.block_dim)
        builder.end_stage()
        sync_all(builder, "mte3", "mte2", ALL_VECTORS, SPLIT)
        for index, piece in enumerate(share):
            self._piece(index, piece, half)
        return builder.build()

    def _piece(self, index: int, piece: Piece, half: int) -> None:
        """What vector core *half* makes of block number *index*."""
        p = self.p
        rows = slice(piece.row // 2, (piece.row + piece.rows) // 2)
        columns = slice(piece.column, piece.column + piece.columns)
        output = GmView.of("output", p.output.element, p.product.m, p.product.n)
        repeat(
            self.builder,
            self._block,
            _place(self.plan, index, piece),
            output[rows, columns],
            GmView.vector("offset", FLOAT32, p.product.n)[:, columns],
            GmView.vector("pertoken_scale", FLOAT32, p.product.m)[:, rows],
            half,
        )

    def _block(
        self, sums: GmView, output: GmView, offset: GmView, token: GmView, half: int
    ) -> None:
        """Every other piece of *output* `(rows, columns)`, from *sums* `(2 rows, columns)`."""
        builder = self.builder
        builder.cross_core_wait_flag("group", "mte2", FILLED)
        for number, (row, count) in enumerate(pieces(output.rows, self.plan.chunk_rows)):
            if number % 2 == half:
                here, both = slice(row, row + count), slice(2 * row, 2 * (row + count))
                self.finish.rows(sums[both, :], output[here, :], offset, token[:, here])
        builder.cross_core_set_flag("group", "mte2", READ)
