"""bl1_full_load: a narrow x2 stays in L1 while many rows of x1 pass.

A core takes two blocks of rows at a time, of all k; the blocks of one column of them come before
those of the next (ops-nn@e5c3fa9 matmul/mat_mul_v3, matmul_v3_base_tiling.cpp).
"""

from __future__ import annotations

from dataclasses import replace

from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.blocks import columns_of, output_of, write_pieces
from npusim.kernel.program import Binding, Block
from npusim.kernel.rows import pieces
from npusim.kernel.tiles import CubeTiles, Piece
from npusim.kernel.views import GmView
from npusim.ops.matmul.contract import Problem
from npusim.ops.matmul.templates import base
from npusim.ops.matmul.templates.whole_k import CubeMatmul, WholeKPlan

__all__ = ["build", "resident_columns", "tile"]

L0_BYTES = 32768
"""Half of L0A or L0B."""
BLOCKS = 2
"""Blocks of rows that follow each other on a core."""


def tile(spec: DeviceSpec, p: Problem) -> WholeKPlan:
    """The tiles of base with all of k in each load, fewer rows where L1 is too small."""
    plan, pr = base.tile(spec, p), p.product
    cube = resident_columns(spec, p, plan.cube)
    blocks = ceil_div(pr.m, BLOCKS * cube.base_m) * ceil_div(pr.n, cube.base_n)
    cores = min(blocks, spec.cores["aic"].count)
    # Hints to the L2 are given by other kernels only (matmul_v3_l2_cache.cpp).
    return replace(plan, block_dim=cores, cube=replace(cube, cores=cores), past_l2=())


def resident_columns(spec: DeviceSpec, p: Problem, cube: CubeTiles) -> CubeTiles:
    """*cube* with all of k in a load of x1, of which L1 holds two, and in that of x2."""
    pr = p.product
    size = pr.element.bits // 8
    bias_bytes = 0 if p.bias is None else align_up(p.bias.element.nbytes(cube.base_n), 64)
    room_bytes = (spec.cores["aic"].l1_bytes or 0) - bias_bytes
    rows = cube.base_m
    k = align_up(pr.k, 16)
    while (2 * rows + cube.base_n) * k * size > room_bytes:
        rows = align_up(rows // 2, 16)
    base_k = min(cube.base_k, align_down(L0_BYTES // (size * max(rows, cube.base_n)), 16))
    steps = ceil_div(pr.k, base_k)
    return replace(
        cube,
        base_m=rows,
        base_k=base_k,
        step_ka=steps,
        step_kb=steps,
        depth_a=2 * steps,
        depth_b=steps,
        resident_a=False,
        resident_b=True,
    )


def build(spec: DeviceSpec, p: Problem, plan: WholeKPlan) -> tuple[Block, ...]:
    """One block a core; cores share the bodies of their programs."""
    kernel = CubeMatmul(spec, p, plan)
    bindings = {name: Binding(name) for name in (*(x.name for x in p.inputs), "output")}

    def arguments(_: int, piece: Piece) -> tuple[GmView | None, ...]:
        bias = None if p.bias is None else columns_of(p.product, piece, p.bias)
        return output_of(p.product, piece, p.output.element), bias

    blocks = []
    for core, share in enumerate(_shares(p, plan.cube)):
        write_pieces(kernel.core, kernel.cube, p.product, share, kernel.block, arguments)
        blocks.append(Block(core, "aic", kernel.core.build(), bindings))
    return tuple(blocks)


def _shares(p: Problem, cube: CubeTiles) -> list[tuple[Piece, ...]]:
    """The blocks of each core: pairs below each other are dealt in turn, column after column."""
    pr, pairs = p.product, []
    for column, columns in pieces(pr.n, cube.base_n):
        for top, height in pieces(pr.m, BLOCKS * cube.base_m):
            rows = pieces(height, cube.base_m)
            pairs.append([Piece(0, top + row, column, count, columns) for row, count in rows])
    return [
        tuple(piece for pair in pairs[core :: cube.cores] for piece in pair)
        for core in range(cube.cores)
    ]
