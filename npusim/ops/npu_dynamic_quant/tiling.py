"""How npu_dynamic_quant is split over cores and buffers."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import INT4
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.launch import share
from npusim.kernel.rows import balanced
from npusim.ops import _protocol
from npusim.ops.npu_dynamic_quant.choice import (
    IN_PARTS,
    KEPT_BYTES,
    PART_COLUMNS,
    Choice,
    Template,
    choose,
    index_bytes,
    max_columns,
)
from npusim.ops.npu_dynamic_quant.contract import Problem

__all__ = ["Plan", "tile"]

SINGLE_ROW_ELEMENTS = 16384
"""The template single_row loads at most so many elements at a time."""
MAX_PIECE_ROWS = 255
"""Rows that db and moe load at a time, at most."""
COUPLED_PART_COLUMNS = 4096
"""310P takes longer rows in parts of so many columns (dynamic_quant_tiling_310P.cpp)."""
PATCH_UNIT, PATCH_KEPT_BYTES, WRAPS_FROM = 8, 10240, 747
"""Of the rows that 310P loads together, from the same file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Each core has rows of its own and takes them in pieces."""

    template: Template
    reason: str
    rows_of_core: tuple[int, ...]
    row_step: int
    """Rows that are loaded together."""
    column_step: int
    """Columns that are loaded together: all, but for rows too long for the buffer."""
    depth: int
    """Buffers of x: 1 loads and computes in turn, 2 at the same time."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split over cores and buffers as the vendor does; only as many cores as have work are started.

    ops-nn@e5c3fa9 quant/dynamic_quant/op_host/dynamic_quant_tiling.cpp. Assumed: parts of moe_large
    are those of large.
    """
    smooth = p.smooth_scales is not None
    ub_bytes = spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    if spec.arch == "2002":
        return _coupled(spec, p, ub_bytes)
    traits = p.rows, p.columns, smooth, ub_bytes
    options = {"is_int4": p.target is INT4, "is_symmetric": p.is_symmetric}
    choice = choose(*traits, groups=p.groups, **options)
    if p.asked is not None:
        choice = Choice(p.asked, "asked for")
    template = choice.template
    row_step = min(p.rows, _row_step(template, p, ub_bytes))
    rows = _rows_of_core(template, p.rows, row_step, len(spec.vector_cores))
    return Plan(
        block_dim=len(rows),
        template=template,
        reason=choice.reason,
        rows_of_core=rows,
        row_step=min(row_step, rows[0]),
        column_step=min(p.columns, PART_COLUMNS) if template in IN_PARTS else p.columns,
        depth=2 if template == "db" or (template == "large" and p.is_symmetric) else 1,
    )


def _row_step(template: Template, p: Problem, ub_bytes: int) -> int:
    """Rows that are loaded together, if a core has so many."""
    a, smooth, room = align_up(p.columns, 16), p.smooth_scales is not None, ub_bytes - KEPT_BYTES
    match template:
        case "single_row":
            return SINGLE_ROW_ELEMENTS // p.columns
        case "multi_row":
            return max_columns(template, smooth, ub_bytes) // p.columns
        case "db":
            return min(MAX_PIECE_ROWS, room // ((17 if smooth else 11) * a))
        case "moe":
            # Beside the group_index, a row's smooth scales and floats.
            return min(MAX_PIECE_ROWS, room // (index_bytes(p.groups) + 17 * a))
        case _:
            return 1


def _coupled(spec: DeviceSpec, p: Problem, ub_bytes: int) -> Plan:
    """310P: patches of *patch* rows each, dealt out to all AI cores; what is left to the last.

    ops-nn@e5c3fa9 quant/dynamic_quant/op_host/dynamic_quant_tiling_310P.cpp. The vector cores
    beside the AI cores take no part (asc-devkit, GetCoreNumAiv.md).
    """
    cores = spec.cores["ai_core"].count
    patch = _patch_rows(p.rows, p.columns, cores, ub_bytes)
    patches, left = divmod(p.rows, patch)
    rows = [patch * len(share(patches, cores, core)) for core in range(cores)]
    rows[-1] += left
    template: Template = "aligned" if left == 0 else "unaligned"
    reason = f"{patch} rows at a time{', and some are left' if left else ''}"
    if p.columns > COUPLED_PART_COLUMNS:
        template, reason = "unaligned_large", f"rows of more than {COUPLED_PART_COLUMNS} elements"
    return Plan(
        block_dim=cores,
        template=template,
        reason=reason,
        rows_of_core=tuple(rows),
        row_step=patch,
        column_step=min(p.columns, COUPLED_PART_COLUMNS),
        depth=2,
    )


def _patch_rows(rows: int, columns: int, cores: int, ub_bytes: int) -> int:
    """Rows that 310P loads together: as many as fit, in steps of eight, and no more than needed."""
    if columns > COUPLED_PART_COLUMNS:
        return PATCH_UNIT
    a = align_up(columns, 16)
    fitting = (ub_bytes - 2 * a - PATCH_KEPT_BYTES) // (5 * a)
    # Unsigned in the source: beyond 746 columns it wraps round and is never the smaller one.
    shorter = align_down(213 - 2 * a // 7, PATCH_UNIT) if a < WRAPS_FROM else fitting
    if fitting > 64 and a >= 512:
        patch = 64
    elif fitting > shorter > PATCH_UNIT and a >= 64:
        patch = shorter
    elif fitting > 192 and a < 64:
        patch = 192
    else:
        patch = align_down(fitting, PATCH_UNIT)
    return min(patch, max(PATCH_UNIT, align_up(ceil_div(rows, cores), PATCH_UNIT)))


def _rows_of_core(template: Template, rows: int, row_step: int, cores: int) -> tuple[int, ...]:
    """Rows of each core that is started: never more than those of the first one."""
    if template == "single_row":
        # Whole pieces, as many on each core; what is left to the last one.
        count = ceil_div(rows, row_step)
        each = ceil_div(count, balanced(count, cores)) * row_step
        full = (each,) * ((rows - 1) // each)
        return (*full, rows - sum(full))
    if template == "multi_row":
        # A core is not started for less than a whole piece.
        cores = min(cores, max(1, rows // row_step))
    cores = min(cores, rows)
    return tuple(len(share(rows, cores, core)) for core in range(cores))
