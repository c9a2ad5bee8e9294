"""The template msd: int8 times int4, each element of x1 split into two int4.

.. code-block:: text

    vector cores  rows of x1 as digits, to global memory; all wait for all
    cube cores    digits @ x2, group after group, scaled and rounded to float16, into a ring of four
    vector cores  y(((f32(lo) + f32(hi) * 16) + offset) * pertoken_scale)

Blocks are assigned in row-major order. With column scales they have the size that the basic tiling
gives for twice the rows, with group scales 16 rows. Assumed: that the two vector cores of a group
take alternate pieces of a block, and the order of their buffers.

ops-nn@e5c3fa9 matmul/quant_batch_matmul_v4, op_host/op_tiling and op_kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, INT8, UINT64
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    BaseTile,
    Binding,
    Block,
    CoreSteps,
    CubeCore,
    CubeTiles,
    GmMatrix,
    GmView,
    GmViews,
    Pieces,
    Step,
    VectorCore,
    base_tile,
    bindings,
    launch_mixed,
)
from npusim.kernel.blocks import gm_matrix_b
from npusim.kernel.plane import REPEAT
from npusim.ops import _vocabulary as ops
from npusim.ops._int4_matmul import DigitSplitter, Epilogue, ScaledGroups
from npusim.ops.npu_quant_matmul.check import Problem
from npusim.ops.npu_quant_matmul.tiles_basic import basic_tiles

SPLIT, ALL_VECTORS = 2, 3
"""Flags: the digits are in global memory; all vector cores wait for each other."""
RING = 4
"""Blocks of a cube core in the workspace."""
CHUNK = 8192
"""Elements of the output that a vector core computes at a time."""
GROUP_ROWS, GROUP_PIECE = 16, 128
"""Rows of a block, and k of a piece in L0, with group scales."""
COLUMNS = (64, 128, 256, 512)
"""Columns of a block, with group scales."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MsdPlan(ops.Plan):
    """The tiles of the cube, whose rows are digits, and the output chunk of a vector core."""

    cube: CubeTiles
    chunk_rows: int
    """Rows of a chunk of the output."""


def tile(spec: DeviceSpec, p: Problem) -> MsdPlan:
    """Split like the vendor; every core is started."""
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
    """Blocks of digits, in row-major order, one core at a time."""
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
    """Build three blocks in each group: a cube core and its two vector cores."""
    digits = replace(p.product, m=2 * p.product.m)
    bound = {name: Binding(name) for name in (*p.names, "digits")}
    bound["x2"] = Binding("x2", is_cached=not plan.cube.bypasses_l2(digits))

    def bound_in(group: int) -> dict[str, Binding]:
        first = min(group, plan.cube.cores - 1) * RING * plan.cube.base_m
        return bound | bindings(_ring(plan)[first:, :])

    dealt = Pieces.of(plan.cube, digits)
    cube, vector = _cube_core(spec, p, plan, dealt), _vector_core(spec, p, plan, dealt)
    return launch_mixed(plan.block_dim, cube, vector, bound_in)


def _ring(plan: MsdPlan) -> GmView:
    """The blocks of all groups, `(4 base_m, base_n)` float16 each."""
    rows = RING * plan.cube.base_m
    return GmView.of("ring", FLOAT16, rows * plan.cube.cores, plan.cube.base_n)


def _places(plan: MsdPlan, dealt: Pieces) -> GmViews:
    """The locations of the sums of *dealt* in the ring of their group."""
    first = dealt.index % RING * plan.cube.base_m
    return GmViews.of(_ring(plan), first, 0, dealt.rows, dealt.columns)


def _cube_core(spec: DeviceSpec, p: Problem, plan: MsdPlan, dealt: Pieces) -> CoreSteps:
    """The program of a cube core: it multiplies its blocks when the digits are ready."""
    core, pr, cube = CubeCore("npu_quant_matmul", spec), p.product, plan.cube
    tiling = base_tile(cube)
    if p.group_k < pr.k:
        # With groups L1 holds one piece of each operand.
        sizes = cube.base_m, cube.base_n, cube.base_k, cube.step_ka, cube.step_kb
        tiling = BaseTile(*sizes, depth_a=1, depth_b=1)
    a = GmMatrix("digits", INT4, 2 * pr.m, pr.k, k_is_first=False)
    b = gm_matrix_b(pr)
    groups = ScaledGroups(core, tiling, a, b, p.group_k)
    scales = GmView.of("scale", UINT64, pr.k // p.group_k, pr.n)
    arguments = (
        a.tiles(dealt.row, dealt.rows),
        b.tiles(dealt.column, dealt.columns),
        GmViews.of(scales, 0, dealt.column, scales.rows, dealt.columns),
        _places(plan, dealt),
        dealt.index >= RING,
    )
    wait = partial(core.cross_core_wait_flag, "group", "mte2", SPLIT)
    return CoreSteps(core, (Step(groups.block, arguments, dealt.core),), wait)


def _vector_core(spec: DeviceSpec, p: Problem, plan: MsdPlan, dealt: Pieces) -> CoreSteps:
    """The program of a vector core: it splits rows of x1, then computes its group's output."""
    core, pr, out = VectorCore("npu_quant_matmul", spec), p.product, p.output.element
    splitter = DigitSplitter(core, pr.k)
    core.reset_buffers()
    finish = Epilogue(core, (plan.chunk_rows, plan.cube.base_n), out, digits=True, offset=True)
    x1 = GmView.of("x1", INT8, pr.m, pr.k)
    first = splitter.step(x1, 2 * plan.block_dim, -1, (ALL_VECTORS, SPLIT))

    # Both vector cores of a group get all of its blocks.
    both = dealt.repeated(2)
    row, rows = both.row // 2, both.rows // 2
    arguments = (
        _places(plan, both),
        GmViews.of(GmView.of("output", out, pr.m, pr.n), row, both.column, rows, both.columns),
        GmViews.of(GmView.vector("offset", FLOAT32, pr.n), 0, both.column, 1, both.columns),
        GmViews.of(GmView.vector("pertoken_scale", FLOAT32, pr.m), 0, row, 1, rows),
        both.core % 2,
    )
    return CoreSteps(core, (first, Step(finish.block, arguments, both.core)))
