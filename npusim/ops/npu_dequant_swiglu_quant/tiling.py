"""How npu_dequant_swiglu_quant is split over cores and buffers.

================  ==========================================================================
template          what it does
================  ==========================================================================
groups            a group_index: the rows of each group on up to 36 cores, several at a time
whole_groups      the same for many small groups, each on a single core
static            quant_mode 0: a row at a time, or a part of one
performance       dynamic, int32 in short rows: the next row is loaded ahead
dynamic           dynamic: a row at a time, or several of 16 bits
dynamic_long      dynamic, rows in parts: via global memory, loaded again to be quantised
================  ==========================================================================

ops-nn@e5c3fa9 quant/dequant_swiglu_quant/op_host/dequant_swiglu_quant_tiling.cpp for groups,
dequant_swiglu_quant_tiling_base.cpp for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npusim.data.dtypes import BFLOAT16, FLOAT32, INT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.launch import share
from npusim.ops import _vocabulary as ops
from npusim.ops.npu_dequant_swiglu_quant.check import Problem

__all__ = ["Plan", "Segment", "Template", "segments_of", "tile"]

Template = Literal["groups", "whole_groups", "static", "performance", "dynamic", "dynamic_long"]
Segment = tuple[int, int, int]
"""A group, the first of its rows on a core, and the number of rows."""

GROUP_CORES = 36
GIVEN_ROWS = {2048: 8, 4096: 4}
"""Columns of x -> rows of a piece."""
FEW_CORES, FEW_ROWS, SHORT_COLUMNS = 12, 128, 1536
"""Fewer short rows than this take fewer cores; and the limits for `performance`."""
MAX_COLUMNS, MAX_RAGGED_COLUMNS = 65535, 16383
"""Most columns of a part, in whole blocks or not."""
COLUMN_UNIT_BYTES = 512
WHOLE_GROUPS_FROM, WHOLE_PAIRS_FROM, SMALL_GROUP_ROWS = 32, 64, 16
"""From this many groups, by counts or by pairs, groups stay whole; and their most rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Rows of each core, in pieces of `row_step` rows and `column_step` columns of y.

    :func:`segments_of` gives the rows.
    """

    template: Template
    reason: str
    row_step: int
    column_step: int
    in_place: bool = False
    """Whether int32 is converted to fp32 in place."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split rows over cores, and rows and columns over the unified buffer."""
    kind = spec.vector_kinds[0]
    cores, ub_bytes = spec.cores[kind].count, spec.cores[kind].usable_bytes("ub")
    if p.group_index is not None:
        return _in_groups(p, cores, ub_bytes)
    return _by_row(p, cores, ub_bytes)


def segments_of(p: Problem, plan: Plan) -> tuple[tuple[Segment, ...], ...]:
    """The segments of each core, in order; without groups all rows are in group 0."""
    cores = plan.block_dim
    if plan.template == "whole_groups":
        # Assign groups to cores round-robin.
        groups = _firsts(p)
        dealt = (tuple(part for part in groups[core::cores] if part[2]) for core in range(cores))
        return tuple(dealt)
    if plan.template == "groups":
        return _shared(p, cores)
    rows = (share(p.rows, cores, core) for core in range(cores))
    return tuple(((0, mine.start, len(mine)),) for mine in rows)


# ---- with groups ----


def _in_groups(p: Problem, cores: int, ub_bytes: int) -> Plan:
    u, is_given = _rows_of_piece(p, ub_bytes)
    u = min(u, p.rows)
    template: Template = "groups"
    reason = f"a group_index: {u} rows at a time"
    if _stay_whole(p):
        template, reason = "whole_groups", f"{p.groups} groups of few rows, each on one core"
        cores = min(cores, p.rows)
    else:
        cores = min(ceil_div(p.rows, u), GROUP_CORES, cores)
    return Plan(
        block_dim=cores,
        template=template,
        reason=reason,
        row_step=u,
        column_step=p.columns,
        in_place=is_given and p.x.element is INT32,
    )


def _rows_of_piece(p: Problem, ub_bytes: int) -> tuple[int, bool]:
    """The rows for which the buffer has room after the data of their group, or the tiling's value.

    The latter exceeds what fits with three planes of int32 and fp32: assumed that one plane serves
    both.
    """
    h, width, interleaved = p.columns, 2 * p.columns, p.gate.mode == 1
    if p.bias is None and not interleaved and width in GIVEN_ROWS:
        return GIVEN_ROWS[width], True
    of_group = 12 * h + 8 * h * (p.bias is not None) + 4 * h * (not p.is_dynamic)
    # x, two planes of fp32 with a block of eight after each row, y, a scale.
    of_row = 2 * (width + 8) * 4 + h + 4 + 8 * h + 5 * h * interleaved
    return (ub_bytes - 1024 - 32 - of_group) // of_row, False


def _stay_whole(p: Problem) -> bool:
    assert p.group_index is not None
    least = WHOLE_GROUPS_FROM if len(p.group_index.shape) == 1 else WHOLE_PAIRS_FROM
    has_fitting = p.bias is None or p.bias.element is BFLOAT16
    scale = p.quant_scale is not None and p.quant_scale.element is FLOAT32
    return (
        p.groups >= least
        and scale
        and has_fitting
        and p.x.element is INT32
        and p.rows <= SMALL_GROUP_ROWS * p.groups
    )


def _firsts(p: Problem) -> list[Segment]:
    """Each group as one segment with all of its rows."""
    found, first = [], 0
    for group, count in p.counts:
        found.append((group, first, count))
        first += count
    return found


def _shared(p: Problem, cores: int) -> tuple[tuple[Segment, ...], ...]:
    """Split the rows of every group over *cores*, starting with the first core."""
    found: list[list[Segment]] = [[] for _ in range(cores)]
    for group, first, count in _firsts(p):
        each = ceil_div(count, cores)
        for core, start in enumerate(range(0, count, max(1, each))):
            found[core].append((group, first + start, min(each, count - start)))
    return tuple(map(tuple, found))


# ---- without groups ----


def _by_row(p: Problem, cores: int, ub_bytes: int) -> Plan:
    is_int32 = p.x.element is INT32
    room = align_down(ub_bytes // _bytes_of_column(p), 32)
    columns = _part_columns(p, room)
    rows = 1
    if p.is_dynamic and not is_int32 and columns == p.columns:
        fitting = room // align_up(columns, 32)
        rows = min(fitting, p.rows, ceil_div(p.rows, cores))
    if p.columns < SHORT_COLUMNS and p.rows < FEW_ROWS:
        cores = min(cores, FEW_CORES)
    cores = min(cores, p.rows)
    template, reason = _template(p, columns)
    is_long = template == "dynamic_long"
    return Plan(
        block_dim=cores,
        template=template,
        reason=reason,
        row_step=max(1, rows),
        column_step=columns,
        workspaces={"swiglu": cores * FLOAT32.nbytes(p.columns)} if is_long else {},
    )


def _bytes_of_column(p: Problem) -> int:
    """Bytes of a column: x, five or six values in fp32, y, and for int32 its scales and bias."""
    has_short_bias = p.bias is not None and p.bias.element.bits == 16
    if p.x.element is INT32:
        return (45 if p.is_dynamic else 49) + 4 * has_short_bias
    return 25 if p.is_dynamic else 29


def _part_columns(p: Problem, room: int) -> int:
    size = p.x.element.nbytes(1)
    is_even = p.columns * size % 32 == 0
    columns = min(p.columns, room, MAX_COLUMNS if is_even else MAX_RAGGED_COLUMNS)
    return columns if columns == p.columns else align_down(columns, COLUMN_UNIT_BYTES // size)


def _template(p: Problem, columns: int) -> tuple[Template, str]:
    if not p.is_dynamic:
        return "static", "no group_index, quant_mode 0"
    if columns < p.columns:
        return "dynamic_long", f"rows of more than {columns} columns of y do not fit"
    scale = p.quant_scale
    has_vector = scale is None or scale.spec.size == p.columns
    if (
        p.x.element is INT32
        and p.bias is None
        and p.activation_scale is not None
        and has_vector
        and p.columns % 32 == 0
        and p.columns <= SHORT_COLUMNS
    ):
        return "performance", f"int32 in rows of at most {SHORT_COLUMNS} columns of y, no bias"
    return "dynamic", "no group_index, quant_mode 1"
