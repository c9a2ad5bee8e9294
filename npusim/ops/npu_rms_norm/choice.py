"""Which of the vendor's kernels takes a call of npu_rms_norm, and why.

==========  ================================================================================
template    what it does
==========  ================================================================================
merge_n     several short rows an instruction; the vector unit finds 1 / root
normal      a row at a time; the scalar unit finds 1 / root
single_row  as normal, in less room: for gamma in fp32 beside an x of 16 bits
split_d     a row in pieces, loaded twice
==========  ================================================================================

ops-nn@e5c3fa9 norm/rms_norm/op_host/rms_norm_tiling.cpp. On A2 and A3 a caller may name another
template, which overrules the choice, but not what a kernel has room for.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32, DType
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.ops._rms_norm.rows import KEPT_BYTES, Choice, Machine, whole_blocks

__all__ = [
    "MERGED_COLUMNS",
    "NAMED",
    "choose",
    "merged_rows",
    "piece_columns",
    "unmet",
]

NAMED = ("merge_n", "normal", "single_row", "split_d")

MERGED_COLUMNS = 2000
"""A stride has eight bits: rows of fp32 in the buffer begin at most 255 blocks apart."""
WHOLE_ROW = {FLOAT32: 10240}
"""Columns of the longest row that normal takes, and of the longest piece of split_d."""
WHOLE_ROW_OF_16_BITS = 12288
MIXED_PIECE = 12048
"""Columns of a piece beside a gamma in fp32."""
MIXED_BYTES = {"normal": 16, "single_row": 14}
"""What these take of the buffer for each column beside a gamma in fp32, and 512 bytes more."""
MIXED_KEPT_BYTES = 512
MERGED_ROW_BYTES, MERGED_ROW_BYTES_MIXED = 260, 288
"""Of merge_n for each row, beside 16 bytes a column."""
COLUMNS_310P, ROWS_310P = 128, 16
"""310P merges rows of so many columns, if there is a multiple of so many rows."""
SPREAD_BYTES_310P = 8192
"""Of the buffer there, set aside to spread a number of each row over a block."""
ROWS_OF_A_BLOCK = 8


def choose(rows: int, columns: int, element: DType, machine: Machine, *, is_mixed: bool) -> Choice:
    """The template for *rows* of *columns* of *element*.

    *is_mixed* says that gamma is in fp32 beside 16 bits.
    """
    padded = whole_blocks(columns, element)
    if machine.is_310p:
        if element is FLOAT16 and columns == COLUMNS_310P and rows % ROWS_310P == 0:
            return Choice("merge_n", f"a multiple of {ROWS_310P} rows of {COLUMNS_310P} fp16")
    elif padded <= MERGED_COLUMNS:
        return Choice("merge_n", f"rows of at most {MERGED_COLUMNS} elements")
    for template in ("normal", "single_row") if is_mixed else ("normal",):
        limit = _whole_row(template, element, machine, is_mixed=is_mixed)
        if padded <= limit:
            return Choice(template, f"rows of at most {limit} elements fit")
    return Choice("split_d", f"rows of more than {limit} elements do not fit")


def _whole_row(template: str, element: DType, machine: Machine, *, is_mixed: bool) -> int:
    """Columns of the longest row that *template* takes in one piece."""
    if not is_mixed:
        return WHOLE_ROW.get(element, WHOLE_ROW_OF_16_BITS)
    # It must leave at least a byte.
    room = machine.ub_bytes - KEPT_BYTES - MIXED_KEPT_BYTES - 1
    return align_down(room // MIXED_BYTES[template], 16)


def unmet(
    columns: int, element: DType, machine: Machine, *, is_mixed: bool
) -> dict[str, str | None]:
    """Template -> what it would need and rows of *columns* do not have, None if it can run."""
    padded = whole_blocks(columns, element)
    limits = {"merge_n": MERGED_COLUMNS}
    for template in ("normal", "single_row") if is_mixed else ("normal",):
        limits[template] = _whole_row(template, element, machine, is_mixed=is_mixed)
    found: dict[str, str | None] = {
        template: None if padded <= limit else f"rows have at most {limit} elements"
        for template, limit in limits.items()
    }
    if not is_mixed:
        found["single_row"] = "gamma is float32 beside an x of 16 bits"
    return found


def merged_rows(columns: int, element: DType, machine: Machine, *, is_mixed: bool) -> int:
    """Rows that merge_n takes in one step."""
    row_bytes = MERGED_ROW_BYTES_MIXED if is_mixed else MERGED_ROW_BYTES
    row_bytes += 16 * whole_blocks(columns, element)
    room = machine.ub_bytes - KEPT_BYTES
    if machine.is_310p:
        return align_down((room - SPREAD_BYTES_310P) // row_bytes, ROWS_OF_A_BLOCK)
    return room // row_bytes


def piece_columns(columns: int, element: DType, *, is_mixed: bool) -> int:
    """Columns that split_d takes at a time; the last piece of a row is what is left."""
    if is_mixed:
        return min(columns, MIXED_PIECE)
    most = WHOLE_ROW.get(element, WHOLE_ROW_OF_16_BITS)
    piece = align_up(ceil_div(columns, ceil_div(columns, most)), 16)
    # What is left must be a block at least.
    while 0 < columns % piece < 16:
        piece -= 16
    return piece
