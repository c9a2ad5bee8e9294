"""Which of the vendor's kernels takes a call of npu_add_rms_norm_dynamic_quant, and why.

==========  =============================================================================
template    what it does
==========  =============================================================================
normal      several rows a step, gamma and the smooth scales resident
single_row  a row at a time, gamma loaded for each
slice_d     a row in slices, which go through a workspace
==========  =============================================================================

The first that can. ops-nn@e5c3fa9 norm/add_rms_norm_dynamic_quant/op_host/arch22. A caller may name
another template, which overrules the choice, but not what a kernel has room for.
"""

from __future__ import annotations

from npusim.data.integers import align_up
from npusim.ops._rms_norm.rows import Choice, Machine

__all__ = ["NAMED", "choose", "padded", "slice_columns", "step_rows", "unmet"]

NAMED = ("normal", "single_row", "slice_d")

MAX_STEP_ROWS = 16
NORMAL_BYTES, NORMAL_ROW_BYTES, NORMAL_KEPT_BYTES = 16, 8, 768
"""What normal takes of the buffer for a column of a row, for a row, and beside them."""
SINGLE_ROW_BYTES, SINGLE_ROW_KEPT_BYTES = 16, 1024
SLICE, SLICE_INT4 = 8864, 8832
"""Columns of a slice."""


def padded(columns: int, *, is_int4: bool) -> int:
    """Columns of a row in the buffer: whole blocks of what comes out."""
    return align_up(columns, 64 if is_int4 else 32)


def step_rows(columns: int, machine: Machine, *, is_int4: bool, has_beta: bool) -> int:
    """Rows that normal takes in one step; 0 where not even one fits."""
    whole = padded(columns, is_int4=is_int4)
    # gamma and two smooth scales, and beta
    vectors = 2 * whole * (4 if has_beta else 3)
    room = max(0, machine.ub_bytes - vectors - NORMAL_KEPT_BYTES)
    return min(MAX_STEP_ROWS, room // (NORMAL_BYTES * whole + NORMAL_ROW_BYTES))


def choose(columns: int, machine: Machine, *, is_int4: bool, has_beta: bool) -> Choice:
    """The template for rows of *columns*."""
    needs = unmet(columns, machine, is_int4=is_int4, has_beta=has_beta)
    if needs["normal"] is None:
        return Choice("normal", "a row and its vectors fit")
    if needs["single_row"] is None:
        return Choice("single_row", "a row fits, but not with its vectors")
    return Choice("slice_d", "a row does not fit")


def unmet(
    columns: int, machine: Machine, *, is_int4: bool, has_beta: bool
) -> dict[str, str | None]:
    """Template -> what it would need and rows of *columns* do not have, None if it can run."""
    rows = step_rows(columns, machine, is_int4=is_int4, has_beta=has_beta)
    row_bytes = SINGLE_ROW_BYTES * padded(columns, is_int4=is_int4) + SINGLE_ROW_KEPT_BYTES
    return {
        "normal": None if rows else "a row and its vectors fit into the unified buffer",
        "single_row": None
        if row_bytes <= machine.ub_bytes
        else "a row fits into the unified buffer",
    }


def slice_columns(columns: int, *, is_int4: bool) -> int:
    """Columns that slice_d takes at a time; the last slice of a row is what is left."""
    return min(columns, SLICE_INT4 if is_int4 else SLICE)
