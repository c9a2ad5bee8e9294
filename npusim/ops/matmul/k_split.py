"""How the split-k templates of MatMulV3 cut a product: what of it enters the bits, and the time.

ops-nn@e5c3fa9 matmul/mat_mul_v3, matmul_v3_base_tiling.cpp.
"""

from __future__ import annotations

from typing import NamedTuple

from npusim.data.integers import align_up, ceil_div
from npusim.ops.matmul.traits import CallTraits, Chip

__all__ = [
    "BASE",
    "STRIP",
    "Cut",
    "cores_along_k",
    "holds_columns",
    "is_flat",
    "rectangles",
    "single_core_chunk_k",
]

BASE = 128
"""Rows, columns and k (256 bytes) of a tile in L0."""
STRIP = 3 * BASE
"""Rows of a strip of x1 in L1, and k of a chunk."""
MOST_COLUMNS = 3072
"""Columns for which one core is enough."""
LEAST_COLUMNS = 1024
"""Cores that are left over share columns while each has so many."""


class Cut(NamedTuple):
    """The rectangle of a core, and how many there are."""

    rows: int
    columns: int
    blocks: int


def single_core_chunk_k(f: CallTraits, chip: Chip) -> int:
    """k of a chunk in single_core_split_k."""
    return 4 * BASE if is_flat(f, chip) else STRIP


def is_flat(f: CallTraits, chip: Chip) -> bool:
    """Whether strips are shorter and chunks longer: less than a square a core, and no bias.

    That squares of 384 are counted is assumed, and holds for a measured product: float16 (4096,
    4096, 4096) on 910B2 takes 526.0 us, 526 with the strips of 384 rows, 590 with those of 256.
    """
    return not f.has_bias and ceil_div(f.m, STRIP) * ceil_div(f.n, STRIP) < chip.aic


def rectangles(f: CallTraits, chip: Chip) -> Cut:
    """The output of single_core_split_k as the cores get it.

    That left-over cores are found by trying ever more shares of the columns is read in the source,
    that all such numbers are tried is assumed.
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
    """Shares of the columns: what divides the cores evenly, or is a multiple of them."""
    parts = ceil_div(f.n, MOST_COLUMNS)
    if parts > chip.aic:
        return align_up(parts, chip.aic)
    return next(x for x in range(parts, chip.aic + 1) if chip.aic % x == 0)


def cores_along_k(f: CallTraits, chip: Chip) -> int:
    """How many cores share the chunks of k in deterministic_split_k."""
    return min(ceil_div(f.k, STRIP), chip.aic)


def holds_columns(f: CallTraits) -> bool:
    """Whether strips of deterministic_split_k are columns of x2 instead of rows of x1 ("NK").

    n in whole blocks of 32 bytes and so on are bytes of 16-bit numbers.
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
