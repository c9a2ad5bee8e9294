"""The templates v2, base and bl1_full_load: a core sums all of k of a block in L0C.

A core computes blocks of the output one after the other: (rows, k) of x1 times (k, columns) of x2,
summed in fp32 in L0C, plus the bias, rounded once to fp16 or bf16 on the way out. In bl1_full_load
a narrow x2 stays in L1 while many rows of x1 are streamed: a core takes two blocks of rows at a
time, with all of k; the blocks of one column of them precede those of the next (ops-nn@e5c3fa9
matmul/mat_mul_v3, matmul_v3_base_tiling.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    AiCore,
    Binding,
    Block,
    CubeCore,
    CubeTiles,
    GmTile,
    GmView,
    Matmul,
    NdFeed,
    NdOut,
    Piece,
    Pieces,
    RowTable,
    base_tile,
    pieces,
    product_steps,
)
from npusim.kernel.blocks import columns_of, gm_matrix_a, gm_matrix_b, output_of
from npusim.kernel.launch import launch
from npusim.ops._base_tiles import diagonal_tiles
from npusim.ops.matmul.check import Plan, Problem
from npusim.ops.matmul.tiles import coupled_tiles, past_l2_of_v2, v2_tiles

L0_BYTES = 32768
"""Half of L0A or L0B."""
FEW_ROWS = 32
"""float32 rows for which an x2 stored as (n, k) is read piece by piece. 32 were measured."""
WIDE_BLOCK, WIDE_CORES = 256, 16
"""Columns of a block of such products, and their least number."""
BLOCKS = 2
"""Consecutive blocks of rows of a core in bl1_full_load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeKPlan(Plan):
    """The cube's tiles."""

    cube: CubeTiles
    past_l2: tuple[str, ...] = ()
    """The operands that bypass the L2."""


def tile_base(spec: DeviceSpec, p: Problem) -> WholeKPlan:
    """Split like MatMulV3."""
    if spec.arch == "2002":
        cube = coupled_tiles(spec, p)
        is_past = cube.bypasses_l2(p.product) and not p.product.transposed_b
        return _plan(p, cube, ("x2",) if is_past else ())
    cube = diagonal_tiles(spec, p)
    pr = p.product
    if pr.element is FLOAT32 and pr.transposed_b and pr.m <= FEW_ROWS:
        cube = _piece_by_piece(cube, pr.k, pr.n)
    return _plan(p, cube, _past_l2(p, cube))


def _piece_by_piece(cube: CubeTiles, k: int, n: int) -> CubeTiles:
    """*cube* with one piece of k per load, and 256 columns per core if that occupies 16 cores.

    This follows a profile of few float32 rows times an x2 stored as (n, k): 32 x 9216 x 4096 takes
    16 cores 347 us, 4.5 ns for each 128 bytes (Ascend/msinsight@4e16fca1, AlexNet). MatMulV2 runs
    it there, of whose tiles for float32 nothing else is known.
    """
    cores = ceil_div(n, WIDE_BLOCK)
    if cores >= WIDE_CORES:
        cube = replace(cube, base_n=WIDE_BLOCK, cores=min(cores, WIDE_CORES), l2_n=cores)
    is_whole = cube.base_k >= k
    return replace(
        cube,
        step_ka=1,
        step_kb=1,
        depth_a=2,
        depth_b=2,
        resident_a=is_whole,
        resident_b=is_whole,
    )


def _past_l2(p: Problem, cube: CubeTiles) -> tuple[str, ...]:
    """The operands that bypass the L2, because no block reads them a second time.

    With several matrices the L2 caches both (assumed). The vendor's rule for products cut into L2
    tiles, by which an operand that one row or column of tiles reads is not cached
    (matmul_v3_l2_cache), is left out: by it 512 x 4096 x 4096 would read x2 four times and take 131
    us, measured 95. That it does not cache an output larger than itself makes no difference here:
    stores always pass through it.
    """
    pr = p.product
    if pr.matrices > 1:
        return ()
    blocks_m, blocks_n = ceil_div(pr.m, cube.base_m), ceil_div(pr.n, cube.base_n)
    kept = {"x1": blocks_n > 1, "x2": blocks_m > 1 or blocks_n > cube.cores}
    return tuple(name for name, is_kept in kept.items() if not is_kept)


def tile_v2(spec: DeviceSpec, p: Problem) -> WholeKPlan:
    """Split according to the measured times of MatMulV2."""
    cube = v2_tiles(spec, p)
    return _plan(p, cube, past_l2_of_v2(p, cube))


def tile_full_load(spec: DeviceSpec, p: Problem) -> WholeKPlan:
    """The tiles of base with all of k in each load, with fewer rows if L1 is too small."""
    pr, cube = p.product, resident_columns(spec, p, diagonal_tiles(spec, p))
    blocks = ceil_div(pr.m, BLOCKS * cube.base_m) * ceil_div(pr.n, cube.base_n)
    # Only other kernels give hints to the L2 (matmul_v3_l2_cache.cpp).
    return _plan(p, replace(cube, cores=min(blocks, spec.cores["aic"].count)))


def _plan(p: Problem, cube: CubeTiles, past_l2: tuple[str, ...] = ()) -> WholeKPlan:
    return WholeKPlan(block_dim=cube.cores, **asdict(p.choice), cube=cube, past_l2=past_l2)


def resident_columns(spec: DeviceSpec, p: Problem, cube: CubeTiles) -> CubeTiles:
    """*cube* with all of k in a load of x1, of which L1 holds two, and in that of x2."""
    pr = p.product
    size = pr.element.bits // 8
    bias_bytes = 0 if p.bias_type is None else align_up(p.bias_type.nbytes(cube.base_n), 64)
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


# ---- programs ----

Stage = Callable[[GmTile, GmTile, GmView, GmView | None], None]
"""Computes a block: `output (rows, columns) = x1 (rows, k) @ x2 (k, columns) + bias (columns,)`."""


def build(spec: DeviceSpec, p: Problem, plan: WholeKPlan) -> tuple[Block, ...]:
    """One block per core; cores share the bodies of their programs."""
    core: CubeCore
    if spec.arch == "2002":
        core = AiCore("matmul", spec)
        cube, stage = _on_ai_core(core, p, plan.cube)
    else:
        core = CubeCore("matmul", spec, alone=True)
        cube, stage = on_cube_core(core, p, plan.cube)
    # MatMulV2 is as fast as the cube at any size, if no load is issued late (assumed).
    is_early = plan.template == "v2"
    bound = {
        name: Binding(name, is_cached=name not in plan.past_l2, is_early=is_early)
        for name in p.names
    }
    if plan.template == "bl1_full_load":
        blocks = Pieces.dealt(_pairs(p, plan.cube))
    else:
        blocks = Pieces.of(plan.cube, p.product)
    output = output_of(p.product, blocks, p.output.element)
    bias = columns_of(p.product, blocks, p.bias)
    steps = product_steps(cube, p.product, blocks, stage, output, bias)
    return launch(core, core.kind, *steps, bound=lambda _: bound)


def _pairs(p: Problem, cube: CubeTiles) -> list[list[Piece]]:
    """The blocks of each core: vertical pairs are assigned in turn, column after column."""
    pr, pairs = p.product, []
    for column, columns in pieces(pr.n, cube.base_n):
        for top, height in pieces(pr.m, BLOCKS * cube.base_m):
            rows = pieces(height, cube.base_m)
            pairs.append([Piece(0, top + row, column, count, columns) for row, count in rows])
    cores = range(cube.cores)
    return [[piece for pair in pairs[core :: cube.cores] for piece in pair] for core in cores]


def on_cube_core(core: CubeCore, p: Problem, tiling: CubeTiles) -> tuple[Matmul, Stage]:
    """The buffers and the stage of a cube core: the fixpipe stores."""
    a, b = gm_matrix_a(p.product), gm_matrix_b(p.product)
    # ops-nn@e5c3fa9, mat_mul_base_kernel.h: the configuration of the Matmul API has the unit flag,
    # and no k stagger. The closed kernel of v2 is assumed to have it, too.
    tile = base_tile(tiling)
    cube = Matmul(core, tile, a, b, p.product.k, bias=p.bias_type, unit_flag=True)

    def block(x1: GmTile, x2: GmTile, output: GmView, bias: GmView | None) -> None:
        # (rows, k) @ (k, columns), fp32 sums that start from the bias or from zero
        sums = cube.multiply(x1.extent, x2.extent, x1.k, bias=bias)
        cube.fixpipe(output, sums)

    return cube, block


def _on_ai_core(core: AiCore, p: Problem, tiling: CubeTiles) -> tuple[Matmul, Stage]:
    """The same for a coupled core: operands and results pass through the unified buffer."""
    tile, a, b = base_tile(tiling), gm_matrix_a(p.product), gm_matrix_b(p.product)
    left = NdFeed(core, a)
    # FRACTAL_NZ already is the layout of L1: mte2 copies it directly.
    right = NdFeed(core, b) if b.layout == "ND" else b
    cube = Matmul(core, tile, left, right, p.product.k, "vector")
    out = NdOut(core, tile.m, tile.n, p.output.element)
    row = None if p.bias_type is None else RowTable(core, tile.n, p.bias_type, FLOAT32)

    def block(x1: GmTile, x2: GmTile, output: GmView, bias: GmView | None) -> None:
        preload = None
        if bias is not None and row is not None:
            # There is no bias table: the sums start from rows of bias in L0C.
            preload = partial(row.spread, bias, rows=align_up(output.rows, FRACTAL_ROWS))
        sums = cube.multiply(x1.extent, x2.extent, x1.k, preload=preload)
        # L0C (columns / 16, rows_padded, 16) fp32 -> (rows, columns) fp16
        out.store(output, sums)
        cube.free(sums)

    return cube, block
