"""Which block the basic tiling of int8 and int4 products takes.

ops-nn@e5c3fa9 quant_batch_matmul_v3/op_host/op_tiling, quant_batch_matmul_v3_basic_tiling.cpp.
"""

from __future__ import annotations

from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import Core
from npusim.kernel.launch import share
from npusim.kernel.tiles import Order
from npusim.ops.npu_quant_matmul.contract import Problem

__all__ = ["BLOCK", "first_blocks", "search"]

Pair = tuple[int, int]
"""Rows and columns of a block."""

SIZES = (64, 80, 96, 128, 192, 256, 320, 384, 512)
SIZES_OF_FRACTALS = (64, 96, 128, 160, 192, 256, 320, 384, 512)
SIZES_OF_ROWS = (128, 256, 512, 1024)
BLOCK = 32768
"""Numbers of a block that fill L0C."""


def _candidates(p: Problem) -> list[Pair]:
    pr = p.product
    sizes_n = SIZES if pr.transposed_b else SIZES_OF_FRACTALS if pr.fractal_b else SIZES_OF_ROWS
    sizes_m = SIZES_OF_ROWS if pr.transposed_a else SIZES
    # The fixpipe buffer and the bias table bound the columns, L0 the rows.
    most_n = 256 if p.start else 512
    return [
        (m, n)
        for m in sizes_m
        for n in sizes_n
        if m * n <= BLOCK
        and n <= most_n
        and m <= 512
        and not (n in (160, 192, 320) and pr.k <= 2048)
    ]


def search(core: Core, p: Problem) -> Pair:
    """Take candidates in order; each replaces the best so far if it is better by rule."""
    pr, cores = p.product, core.count

    def blocks(pair: Pair) -> int:
        return ceil_div(pr.m, pair[0]) * ceil_div(pr.n, pair[1])

    best = (min(128, align_up(pr.m, pr.unit_m)), min(256, align_up(pr.n, pr.unit_n)))
    few = min(blocks((128, 256)), blocks((256, 128))) <= cores // 2
    if (pr.transposed_b or pr.fractal_b) and pr.k >= 512 and few:
        fitting = [pair for pair in _candidates(p) if blocks(pair) <= cores]
        return max(fitting, key=lambda pair: (blocks(pair), pair[1])) if fitting else best
    for pair in _candidates(p):
        if _is_better(core, p, pair, best):
            best = pair
    return best


def _is_better(core: Core, p: Problem, new: Pair, old: Pair) -> bool:
    pr, cores = p.product, core.count

    def load(pair: Pair) -> int:
        return pr.m * ceil_div(pr.n, pair[1]) + pr.n * ceil_div(pr.m, pair[0])

    def rounds(pair: Pair) -> int:
        return ceil_div(ceil_div(pr.m, pair[0]) * ceil_div(pr.n, pair[1]), cores)

    if 0.9 * load(new) > load(old):
        return False
    if 0.9 * load(old) > load(new):
        return True
    is_long = rounds(new) >= 5
    if is_long and min(new) >= 128 and 0.95 * load(old) > load(new):
        return True
    if not (pr.transposed_b or pr.fractal_b):
        if new[1] == 256:
            return True
        if new[1] == 512 and load(new) < load(old):
            return True
        if new[1] < old[1]:
            return False
    areas = [pair[0] * pair[1] * rounds(pair) for pair in (new, old)]
    if areas[0] != areas[1]:
        return areas[0] < 0.9 * areas[1]
    if is_long and new[0] * new[1] * sum(old) > old[0] * old[1] * sum(new):
        return True
    if sum(new) != sum(old):
        return False
    max_clash = 8 if p.epilogue == "vector" else 6
    touched, clash = first_blocks(core, p, new)
    if first_blocks(core, p, old)[0] >= 1.3 * touched and clash <= max_clash:
        return True
    return new[0] < new[1] and abs(pr.m - pr.n) < 0.1 * pr.n


def first_blocks(core: Core, p: Problem, pair: Pair, order: Order = "row") -> tuple[int, int]:
    """Rows and columns that all cores load for their first block; how many share one of them."""
    blocks_m, blocks_n = ceil_div(p.product.m, pair[0]), ceil_div(p.product.n, pair[1])
    blocks = blocks_m * blocks_n
    first = [share(blocks, core.count, i).start for i in range(min(core.count, blocks))]
    rows = [i // blocks_n if order == "row" else i % blocks_m for i in first]
    columns = [i % blocks_n if order == "row" else i // blocks_m for i in first]
    clash = max(max(map(x.count, set(x))) for x in (rows, columns))
    return len(set(rows)) * pair[0] + len(set(columns)) * pair[1], clash
