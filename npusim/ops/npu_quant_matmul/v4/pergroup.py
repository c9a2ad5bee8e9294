"""The template pergroup: int4 times int4 with a scale and an offset for each group and column.

.. code-block:: text

    cube cores    x1 @ x2 of a group after the other, int32, into a workspace of two blocks
    vector cores  t = f32(acc) - f32(offset) * (the sum of the group of x1);  D = scale * t + D
                  after the last group  y = round(pertoken_scale * D)

Blocks are 128 x 256. The two vector cores of a group take half of the rows of a block each, whose D
stays in their buffer; each piece of rows ends with all pipes waiting for each other. How many rows
a piece has is assumed: as many as fit beside D.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, INT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import Binary, Cast, Duplicate, Fixpipe, Local, WholeReduce
from npusim.kernel.blocks import gm_matrix_a, gm_matrix_b
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.cube import GmTile
from npusim.kernel.launch import mixed_launch
from npusim.kernel.plane import REPEAT, Plane, RowFactors, by_row, spread_rows
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.tiles import CubeTiles, Piece, work
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, bindings, load, repeat, store
from npusim.ops import _protocol
from npusim.ops._int4_matmul import FILLED, READ, GroupRuns, part_of_k
from npusim.ops.npu_quant_matmul.basic import l2_tile
from npusim.ops.npu_quant_matmul.problem import Problem

__all__ = ["PerGroupPlan", "build", "tile"]

BASE_M, BASE_N = 128, 256
STEPS = 4
"""Groups of each operand in half of L1."""
RING = 2
"""Blocks of a cube core in the workspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerGroupPlan(_protocol.Plan):
    """The tiles of the cube; a piece of k in L0 is a group."""

    cube: CubeTiles


def tile(spec: DeviceSpec, p: Problem) -> PerGroupPlan:
    """Split as the vendor does."""
    core, pr = spec.cores["aic"], p.product
    bm = min(BASE_M, align_up(pr.m, FRACTAL_ROWS))
    l2_m, l2_n = l2_tile(spec, p, bm, BASE_N)
    cube = CubeTiles(
        *(bm, BASE_N, p.group_k, STEPS, STEPS, 2 * STEPS, 2 * STEPS),
        l0c_depth=1,
        cores=min(core.count, ceil_div(pr.m, bm) * ceil_div(pr.n, BASE_N)),
        schedule="contiguous",
        order="row",
        l2_m=l2_m,
        l2_n=l2_n,
    )
    return PerGroupPlan(
        block_dim=cube.cores,
        template="pergroup",
        reason="asked for" if p.asked else "int4 with scales of groups",
        is_mix=True,
        workspaces={"ring": RING * INT32.nbytes(bm * BASE_N) * cube.cores},
        cube=cube,
    )


def build(spec: DeviceSpec, p: Problem, plan: PerGroupPlan) -> tuple[Block, ...]:
    """Three blocks a group: a cube core and its two vector cores."""
    bound = {name: Binding(name) for name in (*(x.name for x in p.inputs), "output")}
    bound["x2"] = Binding("x2", is_cached=not plan.cube.bypasses_l2(p.product))
    shares = work(plan.cube, p.product)
    cube, vector = _CubeCore(spec, p, plan), _VectorCore(spec, p, plan)
    return mixed_launch(
        len(shares),
        lambda group: bound | bindings(_ring(plan, group * RING)),
        lambda group: cube.program(shares[group]),
        lambda group, half: vector.program(shares[group], half),
    )


def _ring(plan: PerGroupPlan, index: int) -> GmView:
    """Block number *index* of int32 `(base_m, base_n)` in the workspace, and those behind it."""
    rows = plan.cube.base_m
    ring = GmView.of("ring", INT32, rows * RING * plan.cube.cores, BASE_N)
    return ring[index * rows :, :]


class _CubeCore:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: PerGroupPlan) -> None:
        self.p, self.plan, cube = p, plan, plan.cube
        self.builder = Builder("npu_quant_matmul", spec.cores["aic"], spec.sync)
        self.a, self.b = gm_matrix_a(p.product), gm_matrix_b(p.product)
        block, operands = (cube.base_m, cube.base_n), (self.a, self.b)
        self.runs = GroupRuns(self.builder, block, operands, p.group_k, cube.step_ka)

    def program(self, share: tuple[Piece, ...]) -> Program:
        """Multiply the blocks of *share*."""
        ring = _ring(self.plan, 0)[: RING * self.plan.cube.base_m, :]
        for index, piece in enumerate(share):
            a = self.a.tile(piece.row, piece.rows)
            b = self.b.tile(piece.column, piece.columns)
            repeat(self.builder, self._block, a, b, ring, index > 0)
        return self.builder.build()

    def _block(self, a: GmTile, b: GmTile, ring: GmView, was_used: bool) -> None:
        """A block, four groups of k after the other."""
        count = STEPS * self.p.group_k
        for k in range(0, a.k, count):
            here = part_of_k(a, self.a, k, count), part_of_k(b, self.b, k, count)
            repeat(self.builder, self._run, *here, ring, was_used or k > 0)

    def _run(self, a: GmTile, b: GmTile, ring: GmView, was_used: bool) -> None:
        """The int32 sums of four groups, to the two places of *ring* in turn."""
        base_m, rows_padded = self.plan.cube.base_m, align_up(a.extent, FRACTAL_ROWS)
        for index, slot in enumerate(self.runs.run(a.extent, b.extent)):
            first = index % RING * base_m
            sums = ring[first : first + a.extent, : b.extent]
            if was_used or index >= RING:
                self.builder.cross_core_wait_flag("group", "fixpipe", READ)
            total = slot.of(INT32, rows_padded * sums.columns)
            # L0C (columns / 16, rows_padded, 16) int32 -> (rows, columns) int32
            size = sums.rows, sums.columns, rows_padded
            self.builder.emit(Fixpipe(sums.operand, total, *size, INT32))
            self.runs.free(slot)
            self.builder.cross_core_set_flag("group", "fixpipe", FILLED)


class _VectorCore:
    """The kernel of a vector core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: PerGroupPlan) -> None:
        self.p, self.plan = p, plan
        self.builder = builder = VectorCore("npu_quant_matmul", spec)
        queue, claim = builder.queue, builder.claim
        self.half_rows = ceil_div(plan.cube.base_m, 2)
        self.total = claim("ub", FLOAT32.nbytes(self.half_rows * BASE_N))
        self.scale = queue("ub", FLOAT32.nbytes(BASE_N), "mte2", "vector")
        self.offset = queue("ub", FLOAT16.nbytes(BASE_N), "mte2", "vector")
        self.points = claim("ub", FLOAT32.nbytes(BASE_N))
        self.tokens = RowFactors(builder, self.half_rows)
        size, out = p.group_k, p.output.element
        row_bits = INT4.bits * size + FLOAT16.bits * size + FLOAT32.bits * (2 * size + 10)
        row_bits += (INT32.bits + FLOAT32.bits + out.bits) * BASE_N
        fitting = builder.room_bytes("ub") // (row_bits // 8)
        self.rows = rows = min(align_down(fitting, 8), align_up(self.half_rows, 8))
        self.sums = queue("ub", INT32.nbytes(rows * BASE_N), "mte2", "vector")
        self.plane = claim("ub", FLOAT32.nbytes(rows * BASE_N))
        self.x1 = queue("ub", INT4.nbytes(rows * size), "mte2", "vector")
        self.half = claim("ub", FLOAT16.nbytes(rows * size))
        self.wide = claim("ub", FLOAT32.nbytes(rows * size))
        self.work = claim("ub", FLOAT32.nbytes(rows * size))
        self.row_sums = claim("ub", FLOAT32.nbytes(rows))
        self.blocks = claim("ub", FLOAT32.nbytes(8 * rows))
        self.out = queue("ub", out.nbytes(rows * BASE_N), "vector", "mte3")

    def program(self, share: tuple[Piece, ...], half: int) -> Program:
        """Make the output of the blocks of *share*, of each the rows of *half*."""
        p, pr = self.p, self.p.product
        x1 = GmView.of("x1", INT4, pr.m, pr.k)
        scale, offset = (
            GmView.of(name, dtype, pr.k // p.group_k, pr.n)
            for name, dtype in (("scale", FLOAT32), ("offset", FLOAT16))
        )
        output = GmView.of("output", p.output.element, pr.m, pr.n)
        token = GmView.vector("pertoken_scale", FLOAT32, pr.m)
        for piece in share:
            upper = piece.rows // 2
            own = slice(0, upper) if half == 0 else slice(upper, piece.rows)
            rows = slice(piece.row + own.start, piece.row + own.stop)
            columns = slice(piece.column, piece.column + piece.columns)
            repeat(
                self.builder,
                self._block,
                _ring(self.plan, 0)[: RING * self.plan.cube.base_m, : piece.columns],
                x1[rows, :],
                scale[:, columns],
                offset[:, columns],
                output[rows, columns],
                token[:, rows],
                own.start,
            )
        return self.builder.build()

    def _block(
        self,
        ring: GmView,
        x1: GmView,
        scale: GmView,
        offset: GmView,
        output: GmView,
        token: GmView,
        first: int,
    ) -> None:
        """*output* `(rows, columns)`, whose rows begin at number *first* of the block."""
        size = self.p.group_k
        for group in range(scale.rows):
            top = group % RING * self.plan.cube.base_m + first
            repeat(
                self.builder,
                self._add_group,
                ring[top : top + x1.rows, :],
                x1[:, group * size : (group + 1) * size],
                scale.row(group),
                offset.row(group),
                group == 0,
            )
        if output.rows:
            self._store(output, token)

    def _add_group(
        self, sums: GmView, x1: GmView, scale: GmView, offset: GmView, is_first: bool
    ) -> None:
        """Add a group: *sums* `(rows, columns)`, *x1* `(rows, k)`; the half may have no rows."""
        builder = self.builder
        if is_first and sums.rows:
            step(builder, Duplicate(self.total.of(FLOAT32, sums.rows * BASE_N), 0.0))
        factors = load(builder, self.scale, scale)
        slot = load(builder, self.offset, offset)
        points = self.points.of(FLOAT32, BASE_N)
        step(builder, Cast(points, slot.of(FLOAT16, BASE_N), "none"))
        self.offset.free(slot)
        builder.cross_core_wait_flag("group", "mte2", FILLED)
        for row, count in pieces(sums.rows, self.rows):
            here = slice(row, row + count)
            numbers = factors.of(FLOAT32, BASE_N)
            self._add_rows(sums[here, :], x1[here, :], numbers, points, row)
        self.scale.free(factors)
        builder.cross_core_set_flag("group", "mte2", READ)

    def _add_rows(self, sums: GmView, x1: GmView, scale: Local, points: Local, first: int) -> None:
        """Rows of the group, of which the first is number *first* of those of this core."""
        builder, rows = self.builder, sums.rows
        slot = load(builder, self.sums, sums)
        plane = Plane(self.plane, rows, BASE_N)
        # (rows, columns) int32 -> fp32
        step(builder, Cast(plane.whole(), slot.of(INT32, rows * BASE_N), "none"))
        self.sums.free(slot)
        blocks = self._row_sums(x1)
        work = Plane(self.work, rows, BASE_N)
        for index in work.pieces:
            number = work.blocks_piece(blocks, index, 1)
            builder.emit(Binary("mul", work.piece(index), work.vector_piece(points, index), number))
        builder.barrier("vector")
        step(builder, Binary("sub", plane.whole(), plane.whole(), work.whole()))
        by_row(builder, "mul", plane, scale)
        total = Plane(self.total, rows, BASE_N, FLOAT32.nbytes(first * BASE_N))
        step(builder, Binary("add", total.whole(), plane.whole(), total.whole()))
        builder.barrier()

    def _row_sums(self, x1: GmView) -> Local:
        """The sum of each row of *x1* `(rows, k)`, eight times: `(rows, 8)`."""
        builder, rows, count = self.builder, x1.rows, x1.rows * x1.columns
        slot = load(builder, self.x1, x1)
        # (rows, k) int4 -> fp16 -> fp32, whole numbers in any order
        step(builder, Cast(self.half.of(FLOAT16, count), slot.of(INT4, count), "none"))
        self.x1.free(slot)
        wide = Plane(self.wide, rows, x1.columns)
        step(builder, Cast(wide.whole(), self.half.of(FLOAT16, count), "none"))
        first = wide.chunk(0)
        for index in range(1, x1.columns // REPEAT):
            step(builder, Binary("add", first, first, wide.chunk(index)))
        # (rows, 64) -> (rows,) -> (rows, 8)
        step(builder, WholeReduce("sum", self.row_sums.of(FLOAT32, rows), first))
        padded = align_up(rows, 8)
        blocks = self.blocks.of(FLOAT32, 8 * padded)
        spread_rows(builder, blocks, self.row_sums.of(FLOAT32, padded))
        return blocks

    def _store(self, output: GmView, token: GmView) -> None:
        """*output* `(rows, columns)`: the sums times their scales of rows."""
        builder, out = self.builder, output.dtype
        self.tokens.multiply(Plane(self.total, output.rows, BASE_N), token)
        for row, count in pieces(output.rows, self.rows):
            plane = Plane(self.total, count, BASE_N, FLOAT32.nbytes(row * BASE_N))
            result = self.out.alloc()
            step(builder, Cast(result.of(out, count * BASE_N), plane.whole(), "rint"))
            store(builder, self.out, result, output[row : row + count, :])
