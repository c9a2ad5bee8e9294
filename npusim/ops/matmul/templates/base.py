"""The template base: how MatMulV3 splits a product over cores and buffers."""

from __future__ import annotations

from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import Core, DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.kernel.tiles import CubeTiles, whole_edges
from npusim.ops.matmul.contract import Problem
from npusim.ops.matmul.templates.whole_k import WholeKPlan, build

__all__ = ["build", "tile"]


K_BYTES = 128
L2_TILED_BYTES = 100 * 2**20
"""Tensors that take more than this together are walked in L2 tiles cut for it; else in 4 x 6."""
PIECE_BYTES = 32768
"""Half of L0A or L0B."""


def tile(spec: DeviceSpec, p: Problem) -> WholeKPlan:
    """Split as ops-nn@e5c3fa9 matmul/mat_mul_v3, matmul_v3_base_tiling.cpp, does.

    Left out, so that such shapes take the base tiling too: the runtime knowledge base, full-load
    and split-K templates, the pass that turns operands into NZ first, and the closed choice for
    m <= 128 with a transposed x2.
    """
    is_2002 = spec.arch == "2002"
    core = spec.cores["ai_core" if is_2002 else "aic"]
    bm, bn = _base(core, p)
    if is_2002:
        bn = whole_edges(bn, p.product.n, p.output.element)
    pr, size = p.product, p.product.element.bits // 8
    base_k = min(_base_k(size, max(bm, bn)), align_up(pr.k, 16))
    step_a, step_b = (3, 3) if is_2002 else _steps(core, p, bm, bn, base_k)
    blocks_m, blocks_n = ceil_div(pr.m, bm), ceil_div(pr.n, bn)
    if is_2002:
        l2_m, l2_n = max(1, core.count // 2), 2
    else:
        l2_m, l2_n = _l2_tile(p, bm, bn)
    cores = min(core.count, blocks_m * blocks_n * pr.matrices)
    if is_2002 and p.output.element.nbytes(pr.n) < BLOCK_BYTES:
        # A store spills into the next row, which must come later.
        cores = 1
    cube = CubeTiles(
        *(bm, bn, base_k, step_a, step_b, 2 * step_a, 2 * step_b),
        l0c_depth=2
        if 2 * 4 * bm * bn <= (core.l0c_bytes or 0) and (not p.bias or bn <= 128)
        else 1,
        cores=cores,
        schedule="round_robin",
        order="diagonal",
        l2_m=min(l2_m, blocks_m),
        l2_n=min(l2_n, blocks_n),
        resident_a=step_a * base_k >= pr.k,
        resident_b=step_b * base_k >= pr.k,
    )
    # Of the unified buffer of 310P one quarter holds results, double buffered in another one.
    rows = align_down(core.usable_bytes("ub") // 4 // (size * bn), 16) if is_2002 else 0
    return WholeKPlan(
        block_dim=cores,
        template=p.choice.template,
        reason=p.choice.reason,
        cube=cube,
        out_rows=min(bm, rows),
    )


def _base_k(size: int, longest: int) -> int:
    """As much of k as half of L0 holds of *longest* rows, a whole part of what a load copies."""
    base = K_BYTES // size
    while base > 16 and base * longest * size > PIECE_BYTES:
        base //= 2
    return base


def _base(core: Core, p: Problem) -> tuple[int, int]:
    """Rows and columns of a block."""
    pr, cores = p.product, core.count
    bm, bn = (256, 128) if pr.transposed_a and pr.transposed_b else (128, 256)
    blocks = ceil_div(pr.m, bm) * ceil_div(pr.n, bn) * pr.matrices
    if blocks < cores or pr.m < 256 or pr.n < 256:
        bm, bn = _small(core, p)
    elif (bm, bn) == (128, 256) and not pr.transposed_a and ceil_div(blocks, cores) < 4:
        # Whole waves: as many rows of blocks as the cores can take beside each other.
        rows = ceil_div(blocks, cores) * cores // (ceil_div(pr.n, bn) * pr.matrices)
        bm = align_up(ceil_div(pr.m, rows), 16)
    return min(bm, align_up(pr.m, 16)), min(bn, align_up(pr.n, 16))


def _small(core: Core, p: Problem) -> tuple[int, int]:
    """For few blocks: the pair with the least sum of rows and columns a wave."""
    pr = p.product
    cores = max(1, core.count // pr.matrices)
    pairs = []
    if pr.transposed_b and not pr.transposed_a and pr.m <= 128 and not p.bias:
        # Closed; assumed: even shares of at most 256 columns, so that rows of 512 bytes fit L1.
        waves = ceil_div(pr.n, cores * 256)
        pairs.append((align_up(pr.m, 16), align_up(ceil_div(pr.n, waves * cores), 16)))
    elif pr.transposed_b:
        for m, n in ((64, 64), (128, 128), (128, 256)):
            m, n = min(m, align_up(pr.m, 16)), min(n, align_up(pr.n, 16))
            pairs.append((m, align_up(ceil_div(pr.n, max(1, cores // ceil_div(pr.m, m))), 16)))
            pairs.append((align_up(ceil_div(pr.m, max(1, cores // ceil_div(pr.n, n))), 16), n))
            pairs.append((m, n))
    else:
        for n, max_m in ((256, 128), (128, 128), (512, 64)):
            n = min(n, align_up(pr.n, 16))
            beside = max(1, cores // ceil_div(pr.n, n))
            pairs.append((min(align_up(ceil_div(pr.m, beside), 16), max_m), n))
    # L0 takes 16 of k of at most 512 rows; the bias table has room for 256 columns.
    most_n = 256 if p.bias else 512
    fitting = [
        (m, n) for m, n in pairs if m <= 512 and n <= most_n and 4 * m * n <= (core.l0c_bytes or 0)
    ]

    def cost(pair: tuple[int, int]) -> int:
        blocks = ceil_div(pr.m, pair[0]) * ceil_div(pr.n, pair[1])
        return sum(pair) * ceil_div(blocks, cores)

    # An L0C too small for any of them is found when buffers are claimed.
    return min(fitting or pairs, key=cost)


def _steps(core: Core, p: Problem, bm: int, bn: int, base_k: int) -> tuple[int, int]:
    """Pieces of k that one load copies to L1, of x1 and of x2."""
    size = p.product.element.bits // 8
    # The kernel is of the cube alone, so the 256 bytes of messages with vector cores are free.
    room = core.l1_bytes or 0
    bias = align_up(p.bias.element.nbytes(bn), 64) if p.bias else 0
    a, b = (max(2, room // 2 // (base * base_k * size)) for base in (bm, bn))
    if (a * bm + b * bn) * base_k * size > room - bias:
        a, b = (max(2, a // 2), b) if bm < bn else (a, max(2, b // 2))
    steps = ceil_div(p.product.k, base_k)
    step_a, step_b = (min(_whole_rows(x // 2, base_k * size), steps) for x in (a, b))
    if step_a > step_b:
        step_a = step_a // step_b * step_b
    else:
        step_b = step_b // step_a * step_a
    if _is_middling(p) and step_a == 8:
        step_a = 4
    return step_a, step_b


def _whole_rows(step: int, row_bytes: int) -> int:
    """The largest number of steps whose rows are whole lines of 512 bytes, or of 256."""
    for line in (512, 256):
        for less in range(step, 0, -1):
            if less * row_bytes % line == 0:
                return less
    return step


def _is_middling(p: Problem) -> bool:
    """Sizes for which the vendor halves the step: multiples of 256, k no power of two."""
    pr = p.product
    if min(pr.m, pr.n) < 768 or any(extent % 256 for extent in (pr.m, pr.n, pr.k)):
        return False
    return bool(pr.k & (pr.k - 1)) and bool(pr.m % 16384) and bool(pr.n % 16384)


def _l2_tile(p: Problem, bm: int, bn: int) -> tuple[int, int]:
    """Blocks of an L2 tile: the first cut, columns before rows, that divides and fits."""
    pr, size = p.product, p.product.element.bits // 8

    def nbytes(m: int, n: int) -> int:
        return (m * pr.k + pr.k * n + m * n) * size

    if nbytes(pr.m, pr.n) <= L2_TILED_BYTES:
        return 4, 6
    blocks_m, blocks_n = ceil_div(pr.m, bm), ceil_div(pr.n, bn)
    for n in _divisors(blocks_n):
        for m in _divisors(blocks_m):
            if nbytes(m * bm, n * bn) <= L2_TILED_BYTES:
                return m, n
    return 4, 6


def _divisors(number: int) -> list[int]:
    """Those of *number*, the largest first."""
    return [x for x in range(number, 0, -1) if number % x == 0]
