"""The template pergroup: int4 times int4 with a scale and an offset for each group and column.

.. code-block:: text

    cube cores    x1 @ x2 of one group after the other, int32, into a workspace of two blocks
    vector cores  t = f32(acc) - f32(offset) * (the sum of the group of x1);  D = scale * t + D
                  after the last group  y = round(pertoken_scale * D)

Blocks are 128 x 256. Each of the two vector cores of a group processes half of the rows of a block,
whose D stays in its buffer; each piece of rows ends with a barrier for all pipes. The number of
rows of a piece is assumed: as many as fit with D.

ops-nn@e5c3fa9 matmul/quant_batch_matmul_v4, op_host/op_tiling and op_kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, INT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    Binding,
    Block,
    CoreSteps,
    CubeCore,
    CubeTiles,
    GmTile,
    GmView,
    GmViews,
    Local,
    Pieces,
    Plane,
    Step,
    VectorCore,
    bindings,
    by_row,
    launch_mixed,
    pieces,
    repeat,
    spread_rows,
)
from npusim.kernel.blocks import gm_matrix_a, gm_matrix_b, output_of
from npusim.kernel.plane import REPEAT, RowFactors
from npusim.ops import _vocabulary as ops
from npusim.ops._int4_matmul import FILLED, READ, GroupRuns
from npusim.ops.npu_quant_matmul.check import Problem
from npusim.ops.npu_quant_matmul.tiles_basic import l2_tile

BASE_M, BASE_N = 128, 256
STEPS = 4
"""Groups of each operand in half of L1."""
RING = 2
"""Blocks of a cube core in the workspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerGroupPlan(ops.Plan):
    """The tiles of the cube; a piece of k in L0 is a group."""

    cube: CubeTiles


def tile(spec: DeviceSpec, p: Problem) -> PerGroupPlan:
    """Split like the vendor."""
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
    """Build three blocks in each group: a cube core and its two vector cores."""
    bound = {name: Binding(name) for name in p.names}
    bound["x2"] = Binding("x2", is_cached=not plan.cube.bypasses_l2(p.product))
    dealt = Pieces.of(plan.cube, p.product)

    def bound_in(group: int) -> dict[str, Binding]:
        return bound | bindings(_ring(plan)[group * RING * plan.cube.base_m :, :])

    vector = _VectorCore(spec, p, plan)
    steps = CoreSteps(vector.core, (vector.step(dealt),))
    return launch_mixed(plan.block_dim, _cube_core(spec, p, plan, dealt), steps, bound_in)


def _ring(plan: PerGroupPlan) -> GmView:
    """The blocks of all groups, two of int32 `(base_m, base_n)` each."""
    rows = plan.cube.base_m * RING * plan.cube.cores
    return GmView.of("ring", INT32, rows, BASE_N)


def _cube_core(spec: DeviceSpec, p: Problem, plan: PerGroupPlan, dealt: Pieces) -> CoreSteps:
    """The program of a cube core: the groups of its blocks, four at a time."""
    core, base_m = CubeCore("npu_quant_matmul", spec), plan.cube.base_m
    of_a, of_b = gm_matrix_a(p.product), gm_matrix_b(p.product)
    runs = GroupRuns(core, (base_m, BASE_N), (of_a, of_b), p.group_k, STEPS)

    def block(a: GmTile, b: GmTile, ring: GmView, was_used: bool) -> None:
        count = STEPS * p.group_k
        for k in range(0, a.k, count):
            here = a.part_of_k(of_a, k, count), b.part_of_k(of_b, k, count)
            repeat(core, run, *here, ring, was_used or k > 0)

    def run(a: GmTile, b: GmTile, ring: GmView, was_used: bool) -> None:
        """Compute the int32 sums of four groups, into the two slots of *ring* alternately."""
        for index, sums in enumerate(runs.run(a.extent, b.extent)):
            first = index % RING * base_m
            place = ring[first : first + a.extent, : b.extent]
            if was_used or index >= RING:
                core.cross_core_wait_flag("group", "fixpipe", READ)
            # L0C (columns / 16, rows_padded, 16) int32 -> (rows, columns) int32
            core.fixpipe(place, sums)
            runs.free(sums)
            core.cross_core_set_flag("group", "fixpipe", FILLED)

    arguments = (
        of_a.tiles(dealt.row, dealt.rows),
        of_b.tiles(dealt.column, dealt.columns),
        _ring(plan)[: RING * base_m, :],
        dealt.index > 0,
    )
    return CoreSteps(core, (Step(block, arguments, dealt.core),))


class _VectorCore:
    """The kernel of a vector core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: PerGroupPlan) -> None:
        self.p, self.plan = p, plan
        self.core = core = VectorCore("npu_quant_matmul", spec)
        self.half_rows = ceil_div(plan.cube.base_m, 2)
        self.total = core.claim("ub", FLOAT32.nbytes(self.half_rows * BASE_N))
        self.scale = core.vecin(FLOAT32, BASE_N)
        self.offset = core.vecin(FLOAT16, BASE_N)
        self.points = core.tile(FLOAT32, BASE_N)
        self.tokens = RowFactors(core, self.half_rows)
        size, out = p.group_k, p.output.element
        row_bits = INT4.bits * size + FLOAT16.bits * size + FLOAT32.bits * (2 * size + 10)
        row_bits += (INT32.bits + FLOAT32.bits + out.bits) * BASE_N
        fitting = core.room_bytes("ub") // (row_bits // 8)
        self.rows = rows = min(align_down(fitting, 8), align_up(self.half_rows, 8))
        self.sums = core.vecin(INT32, rows * BASE_N)
        self.plane = core.claim("ub", FLOAT32.nbytes(rows * BASE_N))
        self.x1 = core.vecin(INT4, rows * size)
        self.half = core.tile(FLOAT16, rows * size)
        self.wide = core.claim("ub", FLOAT32.nbytes(rows * size))
        self.work = core.claim("ub", FLOAT32.nbytes(rows * size))
        self.row_sums = core.tile(FLOAT32, rows)
        self.token_blocks = core.tile(FLOAT32, 8 * rows)
        self.out = core.vecout(out, rows * BASE_N)

    def step(self, dealt: Pieces) -> Step:
        """Compute the output of all blocks, half of the rows of each on either vector core."""
        p, pr, base_m = self.p, self.p.product, self.plan.cube.base_m
        halves = dealt.halved(dealt.rows // 2)
        groups, columns = pr.k // p.group_k, halves.columns
        x1 = GmView.of("x1", INT4, pr.m, pr.k)
        scale = GmView.of("scale", FLOAT32, groups, pr.n)
        offset = GmView.of("offset", FLOAT16, groups, pr.n)
        token = GmView.vector("pertoken_scale", FLOAT32, pr.m)
        top = np.zeros_like(columns)
        arguments = (
            GmViews.of(_ring(self.plan), top, 0, RING * base_m, columns),
            GmViews.of(x1, halves.row, 0, halves.rows, pr.k),
            GmViews.of(scale, 0, halves.column, groups, columns),
            GmViews.of(offset, 0, halves.column, groups, columns),
            output_of(pr, halves, p.output.element),
            GmViews.of(token, 0, halves.row, 1, halves.rows),
            halves.inside,
        )
        return Step(self._block, arguments, halves.core)

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
        """Compute *output* `(rows, columns)`, which starts at row *first* of the block."""
        size = self.p.group_k
        for group in range(scale.rows):
            top = group % RING * self.plan.cube.base_m + first
            repeat(
                self.core,
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
        core = self.core
        if is_first and sums.rows:
            core.duplicate(self.total.of(FLOAT32, sums.rows * BASE_N), 0.0)
        factors = core.load_rows(self.scale, scale)
        loaded = core.load_rows(self.offset, offset)
        core.cast(self.points, loaded, "none")
        self.offset.free(loaded)
        core.cross_core_wait_flag("group", "mte2", FILLED)
        for row, count in pieces(sums.rows, self.rows):
            here = slice(row, row + count)
            self._add_rows(sums[here, :], x1[here, :], factors, row)
        self.scale.free(factors)
        core.cross_core_set_flag("group", "mte2", READ)

    def _add_rows(self, sums: GmView, x1: GmView, scale: Local, first: int) -> None:
        """Add rows of the group, starting at row *first* of this core's rows."""
        core, rows = self.core, sums.rows
        loaded = core.load_rows(self.sums, sums)
        plane = Plane(self.plane, rows, BASE_N)
        # (rows, columns) int32 -> fp32
        core.cast(plane.whole(), loaded[: rows * BASE_N], "none")
        self.sums.free(loaded)
        blocks = self._row_sums(x1)
        work = Plane(self.work, rows, BASE_N)
        with core.independent():
            for index in work.pieces:
                of_row = work.blocks_piece(blocks, index, 1)
                core.mul(work.piece(index), work.vector_piece(self.points, index), of_row)
        core.sub(plane.whole(), plane.whole(), work.whole())
        by_row(core, "mul", plane, scale)
        total = Plane(self.total, rows, BASE_N, FLOAT32.nbytes(first * BASE_N))
        core.add(total.whole(), plane.whole(), total.whole())
        core.barrier()

    def _row_sums(self, x1: GmView) -> Local:
        """The sum of each row of *x1* `(rows, k)`, eight times: `(rows, 8)`."""
        core, rows, count = self.core, x1.rows, x1.rows * x1.columns
        loaded, half = core.load_rows(self.x1, x1), self.half[:count]
        # (rows, k) int4 -> fp16 -> fp32, integers in any order
        core.cast(half, loaded[:count], "none")
        self.x1.free(loaded)
        wide = Plane(self.wide, rows, x1.columns)
        core.cast(wide.whole(), half, "none")
        first = wide.chunk(0)
        for index in range(1, x1.columns // REPEAT):
            core.add(first, first, wide.chunk(index))
        # (rows, 64) -> (rows,) -> (rows, 8)
        core.whole_reduce("sum", self.row_sums[:rows], first)
        padded = align_up(rows, 8)
        blocks = self.token_blocks[: 8 * padded]
        spread_rows(core, blocks, self.row_sums[:padded])
        return blocks

    def _store(self, output: GmView, token: GmView) -> None:
        """Store *output* `(rows, columns)`: the sums times their row scales."""
        core = self.core
        self.tokens.multiply(Plane(self.total, output.rows, BASE_N), token)
        for row, count in pieces(output.rows, self.rows):
            plane = Plane(self.total, count, BASE_N, FLOAT32.nbytes(row * BASE_N))
            result = self.out.alloc()
            core.cast(result[: count * BASE_N], plane.whole(), "rint")
            core.store_rows(self.out, result, output[row : row + count, :])
