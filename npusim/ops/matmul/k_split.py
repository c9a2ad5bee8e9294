"""How the split-k templates of MatMulV3 split a product, as far as results and time depend on it.

ops-nn@e5c3fa9 matmul/mat_mul_v3, matmul_v3_base_tiling.cpp.
"""

from __future__ import annotations

from typing import NamedTuple

from npusim.data.integers import align_down, align_up, ceil_div
from npusim.ops.matmul.traits import CallTraits, Chip

BASE = 128
"""Rows, columns and k (256 bytes) of a tile in L0."""
STRIP = 3 * BASE
"""Rows of a strip of x1 in L1, and k of a chunk."""
MOST_COLUMNS = 3072
"""Columns up to which one core is enough."""
LEAST_COLUMNS = 1024
"""Remaining cores share columns as long as each has this many."""


class Cut(NamedTuple):
    """The rectangle of a core, and the number of rectangles."""

    rows: int
    columns: int
    blocks: int


def single_core_chunk_k(f: CallTraits, chip: Chip) -> int:
    """k of a chunk in single_core_split_k."""
    return 4 * BASE if is_flat(f, chip) else STRIP


def is_flat(f: CallTraits, chip: Chip) -> bool:
    """Whether strips are shorter and chunks longer: less than a square per core, and no bias.

    That squares of 384 are counted rather than the rectangles is assumed.
    """
    return not f.has_bias and ceil_div(f.m, STRIP) * ceil_div(f.n, STRIP) < chip.aic


def rectangles(f: CallTraits, chip: Chip) -> Cut:
    """How single_core_split_k distributes the output over cores.

    That remaining cores are used by trying more and more shares of the columns is in the source,
    that all of them are tried is assumed.
    """
    parts_m, parts_n = ceil_div(f.m, STRIP), _parts_n(f, chip)
    columns = align_up(ceil_div(f.n, parts_n), BASE)
    if parts_m * parts_n >= chip.aic:
        parts_m = max(1, chip.aic // parts_n)
    else:
        most = parts_m * ceil_div(f.n, columns)
        for parts in range(parts_n + 1, chip.aic // parts_m + 1):
            narrower = align_up(ceil_div(f.n, parts), BASE)
            if narrower < LEAST_COLUMNS:
                break
            if parts_m * ceil_div(f.n, narrower) > most:
                columns, most = narrower, parts_m * ceil_div(f.n, narrower)
    rows = align_up(ceil_div(f.m, parts_m), BASE if f.trans_x1 else 16)
    return Cut(rows, columns, ceil_div(f.m, rows) * ceil_div(f.n, columns))


def _parts_n(f: CallTraits, chip: Chip) -> int:
    """Shares of the columns: a number that divides the cores evenly, or is a multiple of them."""
    parts = ceil_div(f.n, MOST_COLUMNS)
    if parts > chip.aic:
        return align_up(parts, chip.aic)
    return next(x for x in range(parts, chip.aic + 1) if chip.aic % x == 0)


def cores_along_k(f: CallTraits, chip: Chip) -> int:
    """How many cores share the chunks of k in deterministic_split_k."""
    return min(ceil_div(f.k, STRIP), chip.aic)


def holds_columns(f: CallTraits) -> bool:
    """Whether strips of deterministic_split_k are columns of x2 instead of rows of x1 ("NK").

    Conditions such as n in whole blocks of 32 bytes count bytes of 16-bit elements.
    """
    is_whole_m, is_whole_n = f.m % BASE == 0, f.n % BASE == 0
    return (
        f.m > f.n
        and f.n % 16 == 0
        and f.m >= 128
        and not (is_whole_n and not is_whole_m)
        and not (not is_whole_m and f.n <= BASE)
        and not (f.n == 16 and f.m >= 2048)
    )


# ---- al1_split_k ----

MOST_ROWS = 256
"""Most rows of x1, which are all in L1."""
L0_BYTES, L0C_BYTES = 32768, 131072
"""Half of L0A or L0B, and all of L0C."""
COLUMNS = (512, 384, 256, 128)
COLUMNS_WITH_BIAS = 256
"""Columns that fit the bias table."""
BIAS_BYTES = 1024


class ResidentTiles(NamedTuple):
    """The tiles of al1_split_k; each tile has all rows."""

    n: int
    k: int
    chunk_k: int
    """k of x1 in L1."""
    piece_k: int
    """k of x2 in one of its two buffers in L1."""


def resident_tiles(f: CallTraits, chip: Chip) -> ResidentTiles:
    """Columns of a tile that suit the number of cores, then the k of both operands in L1.

    The preference for no more tiles than with 256 columns and 128 of k is left out. That the whole
    lines refer to the bytes of a tile's k is assumed.
    """
    rows = align_up(f.m, 16)
    candidates = []
    for n in COLUMNS:
        blocks = ceil_div(f.n, n)
        cores = min(blocks, chip.aic)
        more = blocks % cores
        fits = 4 * rows * n <= L0C_BYTES and not (f.has_bias and n > COLUMNS_WITH_BIAS)
        is_wide = f.trans_x2 and f.k > f.n and n > BASE
        # A few cores with one block less are better than a few with one more.
        if fits and not is_wide and not 0 < more < cores - more:
            candidates.append((n, cores, -(-blocks % cores)))
    if not candidates:
        candidates = [(BASE, min(ceil_div(f.n, BASE), chip.aic), 0)]

    def merit(candidate: tuple[int, int, int]) -> tuple[int, ...]:
        n, cores, imbalance = candidate
        if not f.trans_x2:
            return imbalance == 0, cores, imbalance, n
        k_bytes = 2 * _base_k(rows, n)
        return cores, k_bytes % 512 == 0, k_bytes % 256 == 0, n

    n = max(candidates, key=merit)[0]
    return _k_in_l1(f, chip, rows, n)


def _base_k(rows: int, n: int) -> int:
    """The largest multiple of 32 up to 256 of which L0A and L0B hold two tiles."""
    return min(256, align_down(L0_BYTES // (2 * max(rows, n)), 32))


def _k_in_l1(f: CallTraits, chip: Chip, rows: int, n: int) -> ResidentTiles:
    """Pieces of x2 in whole lines, then the fewest strips of x1, then the longest pieces."""
    base_k = _base_k(rows, n)
    room_bytes = chip.l1_bytes - (BIAS_BYTES if f.has_bias else 0)
    steps = ceil_div(f.k, base_k)
    found = []
    for step_b in range(1, steps + 1):
        left_bytes = room_bytes - 2 * 2 * step_b * base_k * n
        times = min(left_bytes // (2 * step_b * base_k * rows), ceil_div(steps, step_b))
        if times < 1:
            break
        step_a = times * step_b
        is_line = not f.trans_x2 or 2 * step_b * base_k % 512 == 0
        found.append((is_line, -ceil_div(steps, step_a), step_b, step_a))
    _, _, step_b, step_a = max(found)
    return ResidentTiles(n, base_k, step_a * base_k, step_b * base_k)
