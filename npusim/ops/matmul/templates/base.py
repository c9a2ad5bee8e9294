"""The template base: how MatMulV3 splits a product over cores and buffers.

Source: ops-nn@e5c3fa9 matmul/mat_mul_v3, matmul_v3_base_tiling.cpp and matmul_v3_l2_cache.cpp. Left
out, so that such shapes are split by rule too: the runtime knowledge base.
"""

from __future__ import annotations

from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import Core, DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.kernel.tiles import CubeTiles, whole_edges
from npusim.ops.matmul.contract import Problem
from npusim.ops.matmul.templates.buffers import l0c_depth, longest_k, steps
from npusim.ops.matmul.templates.l2_tiles import l2_tile
from npusim.ops.matmul.templates.whole_k import WholeKPlan, build, whole_k_plan

__all__ = ["build", "diagonal_tiles", "tile"]

Block = tuple[int, int]
"""Rows and columns."""

K_BYTES = 128
"""k of a piece in L0, at most."""
FULL_BLOCK = 128 * 256
"""Numbers of a large block."""
LARGE = 12 * 256
"""Rows or columns from which on an axis counts as large."""


def tile(spec: DeviceSpec, p: Problem) -> WholeKPlan:
    """Split as the vendor does."""
    if spec.arch == "2002":
        return _coupled_plan(spec, p)
    cube = diagonal_tiles(spec, p)
    return whole_k_plan(p, cube, _past_l2(p, cube))


def diagonal_tiles(spec: DeviceSpec, p: Problem) -> CubeTiles:
    """Blocks of one size, dealt out to the cores along the diagonals of L2 tiles."""
    core, pr = spec.cores["aic"], p.product
    block = _block(core, p)
    base_k = longest_k(p, block, K_BYTES * 8 // pr.element.bits)
    step_a, step_b = steps(core, p, block, base_k)
    if step_a == 8 and _is_middling(p, block):
        step_a = 4
    blocks_m, blocks_n = ceil_div(pr.m, block[0]), ceil_div(pr.n, block[1])
    l2_m, l2_n = l2_tile(spec, pr, block)
    return CubeTiles(
        *(*block, base_k, step_a, step_b, 2 * step_a, 2 * step_b),
        l0c_depth=l0c_depth(core, p, block),
        cores=min(core.count, blocks_m * blocks_n * pr.matrices),
        schedule="round_robin",
        order="diagonal",
        l2_m=min(l2_m, blocks_m),
        l2_n=min(l2_n, blocks_n),
        resident_a=step_a * base_k >= pr.k,
        resident_b=step_b * base_k >= pr.k,
    )


def _past_l2(p: Problem, cube: CubeTiles) -> tuple[str, ...]:
    """The operands that the L2 does not keep, because no block reads them a second time.

    Of several matrices it keeps both (assumed). The vendor's rule for products cut into tiles of
    the L2, by which an operand that one row or column of tiles reads is not kept
    (matmul_v3_l2_cache), is left out: by it 512 x 4096 x 4096 would read x2 four times and take
    131 us, measured 95. That it does not keep an output larger than itself makes no difference
    here: stores always pass through it.
    """
    pr = p.product
    if pr.matrices > 1:
        return ()
    blocks_m, blocks_n = ceil_div(pr.m, cube.base_m), ceil_div(pr.n, cube.base_n)
    kept = {"x1": blocks_n > 1, "x2": blocks_m > 1 or blocks_n > cube.cores}
    return tuple(name for name, is_kept in kept.items() if not is_kept)


def _block(core: Core, p: Problem) -> Block:
    """Rows and columns of a block."""
    pr, cores = p.product, core.count
    bm, bn = _large_block(p)
    blocks = ceil_div(pr.m, bm) * ceil_div(pr.n, bn) * pr.matrices
    waves = ceil_div(blocks, cores)
    if blocks < cores or pr.m < 256 or pr.n < 256:
        bm, bn = _fitted(core, *_small_block(core, p))
    elif (bm, bn) == (128, 256) and not pr.transposed_a and waves < 4:
        # Whole waves: as many rows of blocks as the cores can take beside each other.
        rows = waves * cores // (ceil_div(pr.n, bn) * pr.matrices)
        bm = align_up(ceil_div(pr.m, rows), 16)
    elif (bm, bn) == (128, 256) and not pr.transposed_a and pr.m <= 672:
        bm = align_up(ceil_div(pr.m, ceil_div(pr.m, bm)), 16)
    return min(bm, align_up(pr.m, 16)), min(bn, align_up(pr.n, 16))


def _large_block(p: Problem) -> Block:
    """The block for many: 128 x 256, or the other way round if that loads less."""
    pr = p.product
    if pr.transposed_a == pr.transposed_b:
        is_tall = pr.transposed_a
    elif pr.fractal_b:
        is_tall = False
    elif min(pr.m, pr.n) >= LARGE:
        tall = ceil_div(pr.m, 256) * pr.n + ceil_div(pr.n, 128) * pr.m
        is_tall = tall < ceil_div(pr.m, 128) * pr.n + ceil_div(pr.n, 256) * pr.m
    else:
        # Where one axis is large it is the longer one.
        is_tall = pr.m > pr.n
    return (256, 128) if is_tall else (128, 256)


def _small_block(core: Core, p: Problem) -> Block:
    """For few blocks: the pair with the least sum of rows and columns a wave."""
    pr = p.product
    cores = max(1, core.count // pr.matrices)

    def share(extent: int, beside: int, most: int) -> int:
        """Of *extent* what a core gets where *beside* blocks already occupy some."""
        return min(align_up(max(1, extent // max(1, cores // beside)), 16), most)

    pairs = []
    if pr.transposed_b:
        for m, n in ((64, 64), (128, 128), (128, 256)):
            m, n = min(m, align_up(pr.m, 16)), min(n, align_up(pr.n, 16))
            pairs.append((m, share(pr.n, ceil_div(pr.m, m), 512)))
            pairs.append((share(pr.m, ceil_div(pr.n, n), 512), n))
            pairs.append((m, n))
    else:
        for n, max_m in ((256, 128), (128, 128), (512, 64)):
            n = min(n, align_up(pr.n, 16))
            pairs.append((share(pr.m, ceil_div(pr.n, n), max_m), n))
    # L0 takes 16 of k of at most 512 rows; the bias table has room for 256 columns.
    most_n = 256 if p.bias else 512
    fitting = [(m, n) for m, n in pairs if n <= most_n and 4 * m * n <= (core.l0c_bytes or 0)]

    def cost(pair: Block) -> int:
        blocks = ceil_div(pr.m, pair[0]) * ceil_div(pr.n, pair[1])
        return sum(pair) * ceil_div(blocks, cores)

    # An L0C too small for any of them is found when buffers are claimed.
    return min(fitting or pairs, key=cost)


def _fitted(core: Core, bm: int, bn: int) -> Block:
    """Sides between 128 and 256 give way until the block fits L0C."""
    room = (core.l0c_bytes or 0) // 4
    if 128 < bm < 256:
        bn = min(bn, 128)
    if 128 < bn < 256:
        bm = min(bm, 128)
    return (bm, bn) if bm * bn <= room else (align_down(room // bn, 16), bn)


def _is_middling(p: Problem, block: Block) -> bool:
    """Sizes for which the vendor halves the step: multiples of 256, k no power of two."""
    pr = p.product
    if min(pr.m, pr.n) < 768 or any(extent % 256 for extent in (pr.m, pr.n, pr.k)):
        return False
    is_full = block[0] * block[1] == FULL_BLOCK and pr.m * pr.n > 24 * FULL_BLOCK
    return is_full and bool(pr.k & (pr.k - 1)) and bool(pr.m % 16384) and bool(pr.n % 16384)


def _coupled_plan(spec: DeviceSpec, p: Problem) -> WholeKPlan:
    """310P: loads of three pieces of k, and so many rows of a block out of L0C at a time."""
    core, pr = spec.cores["ai_core"], p.product
    bm, bn = _block(core, p)
    bn = whole_edges(bn, pr.n, p.output.element)
    blocks_m, blocks_n = ceil_div(pr.m, bm), ceil_div(pr.n, bn)
    base_k = longest_k(p, (bm, bn), K_BYTES * 8 // pr.element.bits)
    cores = min(core.count, blocks_m * blocks_n * pr.matrices)
    if p.output.element.nbytes(pr.n) < BLOCK_BYTES:
        # A store spills into the next row, which must come later.
        cores = 1
    cube = CubeTiles(
        *(bm, bn, base_k, 3, 3, 6, 6),
        l0c_depth=l0c_depth(core, p, (bm, bn)),
        cores=cores,
        schedule="round_robin",
        order="diagonal",
        l2_m=min(max(1, core.count // 2), blocks_m),
        l2_n=min(2, blocks_n),
        resident_a=3 * base_k >= pr.k,
        resident_b=3 * base_k >= pr.k,
    )
    # Of the unified buffer one quarter holds results, double buffered in another one.
    rows = align_down(core.usable_bytes("ub") // 4 // pr.element.nbytes(bn), 16)
    past_l2 = ("x2",) if cube.bypasses_l2(pr) and not pr.transposed_b else ()
    return whole_k_plan(p, cube, past_l2, min(bm, rows))
