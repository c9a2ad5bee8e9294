"""Which of the vendor's kernels takes a call of npu_add_rms_norm, and why.

========  ===============================================================================
template  what it does
========  ===============================================================================
split_d   a row in pieces; the sums are stored, and loaded again to be scaled
single_n  a row a core, flags by hand: what can be loaded and stored meanwhile is
merge_n   several short rows an instruction
multi_n   fp16: several rows a step, added up one after the other
normal    a row at a time
========  ===============================================================================

The first that can, in this order. ops-nn@e5c3fa9 norm/add_rms_norm/op_host/add_rms_norm_tiling.cpp.
On A2 and A3 a caller may name another template, which overrules the choice, but not what a kernel
has room for.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32, DType
from npusim.data.integers import align_up, ceil_div
from npusim.ops._rms_norm.rows import KEPT_BYTES, Choice, Machine, whole_blocks

__all__ = [
    "IN_PIECES",
    "NAMED",
    "ROUNDED",
    "choose",
    "merged_rows",
    "piece_columns",
    "stepped_rows",
    "unmet",
]

NAMED = ("split_d", "single_n", "merge_n", "multi_n", "normal")
IN_PIECES = "split_d"
ROUNDED = ("single_n", "merge_n", "multi_n")
"""Templates that scale the sum of two bf16 as it is stored, rounded; the others keep it in fp32."""

WHOLE_ROW, WHOLE_ROW_FLOAT32 = 12288, 10240
"""Columns of the longest row that is taken whole."""
PIECE, PIECE_FLOAT32 = 12096, 9696
"""Columns of the longest piece of a row."""
MERGED_COLUMNS = 2000
"""A stride has eight bits: rows of fp32 in the buffer begin at most 255 blocks apart."""
MERGED_BYTES, MERGED_BYTES_FLOAT32, MERGED_ROW_BYTES = 18, 24, 260
"""What merge_n takes of the buffer for each column of a row, and for the row."""
MULTI_UNIT, MULTI_BYTES, MULTI_ROW_BYTES, MULTI_KEPT_BYTES = 16, 16, 64, 256
"""Rows of multi_n are a multiple of 16; what it takes of the buffer likewise."""


def choose(rows: int, columns: int, element: DType, machine: Machine) -> Choice:
    """The template for *rows* of *columns* of *element*."""
    limit = WHOLE_ROW_FLOAT32 if element is FLOAT32 else WHOLE_ROW
    if columns > limit:
        return Choice("split_d", f"rows of more than {limit} elements do not fit")
    if not machine.is_310p and rows <= machine.cores:
        return Choice("single_n", f"no more rows than the {machine.cores} cores")
    if not machine.is_310p and whole_blocks(columns, element) <= MERGED_COLUMNS:
        return Choice("merge_n", f"rows of at most {MERGED_COLUMNS} elements")
    if _takes_several(columns, element, machine):
        return Choice("multi_n", f"rows of fp16, a multiple of {MULTI_UNIT} elements")
    return Choice("normal", f"rows of at most {limit} elements fit")


def _takes_several(columns: int, element: DType, machine: Machine) -> bool:
    is_aligned = element is FLOAT16 and columns % MULTI_UNIT == 0
    return is_aligned and stepped_rows(columns, machine) > 0


def unmet(rows: int, columns: int, element: DType, machine: Machine) -> dict[str, str | None]:
    """Template -> what it would need and a call does not have, None if it can run."""
    limit = WHOLE_ROW_FLOAT32 if element is FLOAT32 else WHOLE_ROW
    too_long = f"rows have at most {limit} elements" if columns > limit else None
    is_short = whole_blocks(columns, element) <= MERGED_COLUMNS
    found = {
        "normal": too_long,
        "single_n": too_long,
        "merge_n": None if is_short else f"rows have at most {MERGED_COLUMNS} elements",
    }
    if too_long is None and rows > machine.cores:
        found["single_n"] = f"there are at most {machine.cores} rows, one a core"
    if not _takes_several(columns, element, machine):
        found["multi_n"] = "rows have a multiple of 16 fp16 elements and fit twice"
    return found


def merged_rows(columns: int, element: DType, machine: Machine) -> int:
    """Rows that merge_n takes in one step."""
    column_bytes = MERGED_BYTES_FLOAT32 if element is FLOAT32 else MERGED_BYTES
    row_bytes = column_bytes * whole_blocks(columns, element) + MERGED_ROW_BYTES
    return (machine.ub_bytes - KEPT_BYTES) // row_bytes


def stepped_rows(columns: int, machine: Machine) -> int:
    """Rows that multi_n takes in one step; 0 where not even one fits."""
    room = machine.ub_bytes - KEPT_BYTES - MULTI_KEPT_BYTES - FLOAT16.nbytes(columns)
    return max(0, room // (MULTI_BYTES * columns + MULTI_ROW_BYTES))


def piece_columns(columns: int, element: DType) -> int:
    """Columns that split_d takes at a time; the last piece of a row is what is left."""
    most, unit = (PIECE_FLOAT32, 8) if element is FLOAT32 else (PIECE, 16)
    return align_up(ceil_div(columns, ceil_div(columns, most)), unit)
