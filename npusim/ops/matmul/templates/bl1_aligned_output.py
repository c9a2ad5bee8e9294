"""bl1_aligned_output: x2 stays in L1, and vector cores write the rows of a ragged narrow output.

The fixpipe writes a block of rows, each padded to 512 bytes, into one of two slots in global
memory; the two vector cores of the group copy half of the rows each to the output, without the
padding, while the cube core computes the next block (ops-nn@e5c3fa9 matmul/mat_mul_v3,
matmul_v3_base_tiling.cpp and mat_mul_optimized_fixpipe_algorithm.h).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    Binding,
    Block,
    CoreSteps,
    CubeCore,
    GmTile,
    GmView,
    GmViews,
    Piece,
    Pieces,
    Step,
    VectorCore,
    fill,
    launch_mixed,
    pieces,
    product_steps,
)
from npusim.kernel.blocks import columns_of, output_of
from npusim.kernel.steps import Integers
from npusim.ops.matmul.check import Problem
from npusim.ops.matmul.templates.whole_k import (
    WholeKPlan,
    on_cube_core,
    resident_columns,
    tile_base,
)

FILLED, READ = 0, 1
"""Flags between a cube core and its vector cores: a block is in its slot; it was read."""
SLOTS = 2
ROW_BYTES = 512
TILE_ELEMENTS = 32768
"""fp32 elements in L0C."""
ROWS, MOST_ROWS = 128, 1024
"""Rows of a block are a multiple of the first; L0A holds 16 of k for the second."""


def tile(spec: DeviceSpec, p: Problem) -> WholeKPlan:
    """Blocks of all columns; that a vector core's share fits its buffer limits rows (assumed)."""
    plan, pr = tile_base(spec, p), p.product
    columns = align_up(pr.n, FRACTAL_ROWS)
    size = p.output.element.nbytes(1)
    room = spec.cores["aiv"].usable_bytes("ub") // 4 // size
    most = min(align_down(min(TILE_ELEMENTS, room) // columns, ROWS), MOST_ROWS)
    rows = min(most, align_up(pr.m, FRACTAL_ROWS))
    cube = replace(plan.cube, base_m=rows, base_n=columns, l0c_depth=1)
    cube = resident_columns(spec, p, cube)
    cores = min(ceil_div(pr.m, cube.base_m), spec.cores["aic"].count)
    return replace(
        plan,
        block_dim=cores,
        is_mix=True,
        workspaces={"padded": cores * SLOTS * cube.base_m * ROW_BYTES},
        cube=replace(cube, cores=cores),
        past_l2=(),
    )


def build(spec: DeviceSpec, p: Problem, plan: WholeKPlan) -> tuple[Block, ...]:
    """Three blocks per group: a cube core and its two vector cores."""
    bound = {name: Binding(name) for name in (*p.names, "padded")}
    rows = pieces(p.product.m, plan.cube.base_m)
    blocks = [Piece(0, row, 0, count, p.product.n) for row, count in rows]
    dealt = Pieces.dealt([blocks[core :: plan.block_dim] for core in range(plan.block_dim)])
    cube, vector = _cube_core(spec, p, plan, dealt), _vector_core(spec, p, plan, dealt)
    return launch_mixed(plan.block_dim, cube, vector, lambda _: bound)


def _slots(p: Problem, plan: WholeKPlan, group: Integers, dealt: Pieces) -> GmViews:
    """The places of the rows of *dealt* in the two slots of their *group*."""
    dtype = p.output.element
    height, width = SLOTS * plan.block_dim * plan.cube.base_m, ROW_BYTES * 8 // dtype.bits
    first = (group * SLOTS + dealt.index % SLOTS) * plan.cube.base_m + dealt.inside
    padded = GmView.of("padded", dtype, height, width)
    return GmViews.of(padded, first, 0, dealt.rows, p.product.n)


def _cube_core(spec: DeviceSpec, p: Problem, plan: WholeKPlan, dealt: Pieces) -> CoreSteps:
    """The steps of a cube core: its blocks, into its two slots."""
    core = CubeCore("matmul", spec, alone=True)
    cube, multiply = on_cube_core(core, p, plan.cube)

    def block(x1: GmTile, x2: GmTile, slot: GmView, bias: GmView | None, waits: bool) -> None:
        """Write a block to *slot*, after it was read if it *waits*."""
        if waits:
            core.cross_core_wait_flag("group", "fixpipe", READ)
        multiply(x1, x2, slot, bias)
        core.cross_core_set_flag("group", "fixpipe", FILLED)

    slots, bias = _slots(p, plan, dealt.core, dealt), columns_of(p.product, dealt, p.bias)
    waits = dealt.index >= SLOTS
    return CoreSteps(core, product_steps(cube, p.product, dealt, block, slots, bias, waits))


def _vector_core(spec: DeviceSpec, p: Problem, plan: WholeKPlan, dealt: Pieces) -> CoreSteps:
    """The steps of a vector core: it moves half of the rows of each block."""
    core = VectorCore(plan.template, spec)
    # Half of the rows of a block, each padded to whole blocks of 32 bytes.
    width = align_up(p.product.n, FRACTAL_ROWS)
    count = ceil_div(plan.cube.base_m, 2) * width
    rows = core.tiles(p.output.element, count, "mte2", "mte3", 2)

    def move(slot: GmView, output: GmView, releases: bool) -> None:
        """Copy rows of *slot* to *output*; *releases* allows the cube to fill it again."""
        core.cross_core_wait_flag("group", "mte2", FILLED)
        # The second vector core has nothing to do for a block of one row.
        tile = rows.alloc() if slot.rows else None
        if tile is not None:
            fill(core, rows.slot(tile), slot)
        if releases:
            core.cross_core_set_flag("group", "mte2", READ)
        if tile is not None:
            core.store_rows(rows, tile, output)

    halves = dealt.halved((dealt.rows + 1) // 2)
    blocks = np.bincount(dealt.core)[halves.core // 2]
    slots = _slots(p, plan, halves.core // 2, halves)
    output = output_of(p.product, halves, p.output.element)
    releases = halves.index + SLOTS < blocks
    return CoreSteps(core, (Step(move, (slots, output, releases), halves.core),))
