"""Float rows by int8, written in two digits of int8: when the vendor does so, and how it is cut.

What of it enters the bits is which cores add up which part of a row, so kernel and oracle share
it (ops-transformer@c29bc10 gmm/grouped_matmul, op_host/op_tiling/grouped_matmul_tiling.cpp and
op_kernel/grouped_matmul_antiquant_a16w8_msd.h). That the cores are dealt out evenly to the groups
of a batch is assumed.
"""

from __future__ import annotations

from typing import NamedTuple

from npusim.data.integers import align_up, ceil_div
from npusim.kernel.launch import share

__all__ = ["LONGEST_K", "UNIT", "Blocks", "Split", "blocks_of", "fits_msd", "splits", "takes_msd"]

UNIT, LONGEST_K, LEAST_N, MOST_ROWS = 128, 12288, 1024, 64
WIDE_N, WIDTH, WIDTH_OF_WIDE = 2048, 256, 512
PIECE_BYTES, SUM_BYTES = 32768, 131072
"""Half of L0A or L0B, and all of L0C."""
MOST_GROUPS = 12
"""Of a batch."""
STRIP = 1024
"""Columns of a block are a multiple of it where there are many."""


def fits_msd(k: int, n: int) -> bool:
    """Whether x of that k can be written in digits."""
    return n % UNIT == 0 and k % UNIT == 0 and k <= LONGEST_K


def takes_msd(
    experts: int, rows: int, k: int, n: int, *, int8: bool, single: bool, of_rows: bool
) -> bool:
    """Whether the vendor writes x in digits.

    *single*: x and weight are one tensor each; *of_rows*: the groups are of rows.
    """
    is_small = n >= LEAST_N and rows <= MOST_ROWS * experts
    return int8 and single and of_rows and fits_msd(k, n) and is_small


class Blocks(NamedTuple):
    """Rows of digits and columns of a base tile, and columns of a block."""

    rows: int
    columns: int
    single_n: int


def blocks_of(rows: int, k: int, n: int, *, turned: bool) -> Blocks:
    """Those of *rows* of x in all."""
    width = WIDTH_OF_WIDE if n >= WIDE_N and not turned else WIDTH
    base_k = PIECE_BYTES // width
    m = min(PIECE_BYTES // base_k, SUM_BYTES // (4 * width), align_up(2 * rows, 16))
    is_flat = n >= WIDE_N and n // k >= 2
    return Blocks(m, width, STRIP * ceil_div(n // 4, STRIP) if is_flat else width)


class Split(NamedTuple):
    """Who writes the digits of a group."""

    batch: int
    cores: range
    piece_k: int
    """Of a row that a core has; less than all if there are fewer rows than cores."""


def splits(rows: tuple[int, ...], k: int, n: int, blocks: Blocks, cores: int) -> tuple[Split, ...]:
    """That of each group of so many *rows*; groups without rows are in no batch that counts."""
    batches: list[list[int]] = [[]]
    made = 0
    for index, count in enumerate(rows):
        if not count:
            continue
        if len(batches[-1]) == MOST_GROUPS or made >= cores:
            batches.append([])
            made = 0
        batches[-1].append(index)
        made += ceil_div(2 * count, blocks.rows) * ceil_div(n, blocks.single_n)
    found = [Split(-1, range(0), k)] * len(rows)
    for number, batch in enumerate(batches):
        for place, index in enumerate(batch):
            own = share(cores, len(batch), place)
            piece_k = k
            if rows[index] < len(own):
                piece_k = align_up(ceil_div(k, len(own)), UNIT)
            found[index] = Split(number, own, piece_k)
    return tuple(found)
