"""The vendor's basic tiling of int8 and int4 products.

ops-nn@e5c3fa9 quant_batch_matmul_v3/op_host/op_tiling, quant_batch_matmul_v3_basic_tiling.cpp.
Left out: the closed white lists and the runtime knowledge base.
"""

from __future__ import annotations

from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import Core, DeviceSpec
from npusim.kernel import CubeTiles, share
from npusim.kernel.tiles import Order
from npusim.ops.npu_quant_matmul.check import Problem

Pair = tuple[int, int]
"""Rows and columns of a block."""

K_BYTES = (1024, 512, 256, 128, 64, 32)
MAX_CUTS = 64
"""L2 tiles along either axis; a product that needs more is not split."""
PIECE_BYTES = 32768
"""Half of L0A or L0B."""
SIZES = (64, 80, 96, 128, 192, 256, 320, 384, 512)
SIZES_OF_FRACTALS = (64, 96, 128, 160, 192, 256, 320, 384, 512)
SIZES_OF_ROWS = (128, 256, 512, 1024)
BLOCK = 32768
"""Elements of a block that fill L0C."""


def is_basic(spec: DeviceSpec, p: Problem) -> bool:
    """Whether the vendor uses this tiling instead of the older one (CheckUseBasicTiling)."""
    core, pr = spec.cores["aic"], p.product
    if pr.element.bits == 4 or core.count not in (20, 24):
        return pr.matrices == 1
    if pr.matrices > 1 or (p.epilogue == "vector" and pr.m <= 256):
        return False
    small, large = min(pr.m, pr.n), max(pr.m, pr.n)
    if small <= 512 and large <= 1024:
        return False
    is_long = pr.m <= 16 and 13000 <= pr.k <= 18944 and pr.n >= 1500
    if _decodes(p) or (is_long and spec.series == "Atlas A2"):
        return True
    total = pr.m * pr.k + pr.k * pr.n + p.output.nbytes
    if (pr.k < 1024 and total <= 0.8 * spec.l2.capacity_bytes) or small <= 256:
        return False
    lines = align_up(pr.k, 32)
    resident = align_up(small, 16) * lines
    if small < 512:
        resident = min(resident, 128 * lines)
    if resident > 448 * 1024:
        return True
    m_is_larger = pr.m >= pr.n
    is_inner = pr.transposed_a if m_is_larger else not pr.transposed_b
    base = 128 if is_inner else 64
    if (ceil_div(large, core.count * base) - 1) * resident > 160 * 1024:
        return False
    inner_a, inner_b = (pr.m if pr.transposed_a else pr.k), (pr.k if pr.transposed_b else pr.n)
    return (inner_b if m_is_larger else inner_a) % 128 == 0


def _decodes(p: Problem) -> bool:
    """Whether few rows are multiplied by weights in FRACTAL_NZ, which has a special rule."""
    pr = p.product
    is_plain = not pr.transposed_a and not pr.transposed_b
    return pr.fractal_b and is_plain and pr.m <= 64 and pr.k % 128 == 0


def basic_tiles(spec: DeviceSpec, p: Problem) -> CubeTiles:
    """Blocks by load and reuse, assigned in runs."""
    core, pr = spec.cores["aic"], p.product
    bm, bn = _decode(core, p) if _decodes(p) else _search(core, p)
    bm, bn = min(bm, align_up(pr.m, pr.unit_m)), min(bn, align_up(pr.n, pr.unit_n))
    base_k = min(_base_k(p, bm, bn), align_up(pr.k, 256 // pr.element.bits))
    room_for_two = bm * bn <= BLOCK // 2 and (p.epilogue == "vector" or bn <= 128)
    l0c_depth = 2 if room_for_two and (p.start is None or bn <= 128) else 1
    step_a, step_b = _steps(core, p, bm, bn, base_k, l0c_depth)
    blocks = ceil_div(pr.m, bm), ceil_div(pr.n, bn)
    l2_m, l2_n = l2_tile(spec, p, bm, bn)
    return CubeTiles(
        *(bm, bn, base_k, step_a, step_b, 2 * step_a, 2 * step_b, l0c_depth),
        cores=min(core.count, blocks[0] * blocks[1] * pr.matrices),
        schedule="contiguous",
        order=_order(core, p, bm, bn),
        l2_m=l2_m,
        l2_n=l2_n,
    )


def _base_k(p: Problem, bm: int, bn: int) -> int:
    """The longest piece of k that fits L0 twice."""
    fitting = [size for size in K_BYTES if size * max(bm, bn) <= PIECE_BYTES]
    return fitting[0] * 8 // p.product.element.bits


def _decode(core: Core, p: Problem) -> tuple[int, int]:
    pr = p.product
    bm = align_up(pr.m, 16)
    share, max_n = align_up(ceil_div(pr.n, core.count), 32), min(512, BLOCK // bm)
    if share > max_n:
        return bm, 256
    if share < 64:
        return bm, 64
    if pr.m > 16:
        for bn in (256, 512):
            if 0.8 * core.count <= ceil_div(pr.n, bn) <= core.count and bn <= max_n:
                return bm, bn
    return bm, share


def _steps(
    core: Core, p: Problem, bm: int, bn: int, base_k: int, l0c_depth: int
) -> tuple[int, int]:
    """Pieces of k that one load copies to L1, of x1 and of x2."""
    pr = p.product
    room = core.usable_bytes("l1")
    parameters = (8 + (4 if p.start else 0)) * bn * l0c_depth
    piece_a, piece_b = (pr.element.nbytes(base * base_k) for base in (bm, bn))
    a, b = max(2, room // 2 // piece_a), max(2, room // 2 // piece_b)
    if a * piece_a + b * piece_b > room - parameters:
        a, b = (a // 2, b) if a > b else (a, b // 2)
    step_a, step_b = max(1, a // 2), max(1, b // 2)
    whole = max(1, 256 // pr.element.nbytes(base_k))
    small = min(step_a, step_b)
    if small > whole:
        small = small // whole * whole
    if pr.element.nbytes(pr.k) <= 512:
        small = min(small, whole)
    big = max(step_a, step_b) // small * small
    if min(bm, bn) < 64:
        big = small
    elif min(bm, bn) < 128:
        big = min(big, 2 * small)
    step_a, step_b = (big, small) if step_a >= step_b else (small, big)
    if not pr.transposed_b and not pr.fractal_b:
        step_a, step_b = _k_outside(step_a, step_b, piece_a, piece_b, room - parameters)
    if pr.transposed_a:
        step_b, step_a = _k_outside(step_b, step_a, piece_b, piece_a, room - parameters)
    steps = ceil_div(pr.k, base_k)
    return min(step_a, steps), min(step_b, steps)


def _k_outside(
    other: int, step: int, other_bytes: int, piece_bytes: int, room: int
) -> tuple[int, int]:
    """An operand whose rows run along k takes short steps; the other one uses the rest."""
    step = min(step, 2)
    if other <= 4 and 2 * (2 * other * other_bytes + step * piece_bytes) <= room:
        other *= 2
    return other, step


def _order(core: Core, p: Problem, bm: int, bn: int) -> Order:
    pr = p.product
    blocks_m, blocks_n = ceil_div(pr.m, bm), ceil_div(pr.n, bn)
    if pr.n > 5 * pr.m:
        return "column"
    by_row, by_column = (_first_blocks(core, p, (bm, bn), order)[1] for order in ("row", "column"))
    half = max(1, core.count // 2)
    if blocks_m % half == 0 and by_column < by_row:
        return "column"
    if blocks_n % half == 0:
        return "row"
    return "column" if by_column < min(by_row, 9) else "row"


def l2_tile(spec: DeviceSpec, p: Problem, bm: int, bn: int) -> tuple[int, int]:
    """Blocks of an L2 tile: everything, or the fewest even tiles that fit."""
    pr = p.product
    blocks_m, blocks_n = ceil_div(pr.m, bm), ceil_div(pr.n, bn)
    share = 110 / 192 if p.epilogue == "vector" else 100 / 192
    limit = share * spec.l2.capacity_bytes
    a, b = pr.element.nbytes(pr.m * pr.k), pr.element.nbytes(pr.k * pr.n)
    c = p.output.element.nbytes(pr.m * pr.n)
    if a + b + c < limit and max(a, b, c) < 128 * 2**20:
        return blocks_m, blocks_n
    least = 15 * 2**20
    cuts_m = range(1, 2 if a <= least else min(blocks_m, MAX_CUTS) + 1)
    cuts_n = range(1, 2 if b <= least else min(blocks_n, MAX_CUTS) + 1)
    pairs = sorted(((x, y) for x in cuts_m for y in cuts_n), key=lambda cut: cut[0] * cut[1])
    for x, y in pairs:
        m, n = ceil_div(blocks_m, x), ceil_div(blocks_n, y)
        tails = (blocks_m - 1) % m + 1 >= 0.8 * m and (blocks_n - 1) % n + 1 >= 0.8 * n
        nbytes = a * m / blocks_m + b * n / blocks_n + c * m * n / (blocks_m * blocks_n)
        if nbytes < limit and tails and m * n <= 625:
            return m, n
    return blocks_m, blocks_n


# ---- the search for a block ----


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


def _search(core: Core, p: Problem) -> Pair:
    """Try candidates in order; each replaces the best so far if the rules prefer it."""
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
    touched, clash = _first_blocks(core, p, new)
    if _first_blocks(core, p, old)[0] >= 1.3 * touched and clash <= max_clash:
        return True
    return new[0] < new[1] and abs(pr.m - pr.n) < 0.1 * pr.n


def _first_blocks(core: Core, p: Problem, pair: Pair, order: Order = "row") -> tuple[int, int]:
    """Rows and columns that all cores load for their first block; how many share one of them."""
    blocks_m, blocks_n = ceil_div(p.product.m, pair[0]), ceil_div(p.product.n, pair[1])
    blocks = blocks_m * blocks_n
    first = [share(blocks, core.count, i).start for i in range(min(core.count, blocks))]
    rows = [i // blocks_n if order == "row" else i % blocks_m for i in first]
    columns = [i % blocks_n if order == "row" else i // blocks_m for i in first]
    clash = max(max(map(x.count, set(x))) for x in (rows, columns))
    return len(set(rows)) * pair[0] + len(set(columns)) * pair[1], clash
