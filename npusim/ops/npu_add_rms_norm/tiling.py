"""How npu_add_rms_norm is split over cores and buffers."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.devices.schema import DeviceSpec
from npusim.ops import _protocol
from npusim.ops._rms_norm.rows import core_count, rows_of_core, ub_bytes_of
from npusim.ops.npu_add_rms_norm.choice import (
    Choice,
    choose,
    merged_rows,
    piece_columns,
    stepped_rows,
)
from npusim.ops.npu_add_rms_norm.contract import Problem

__all__ = ["Plan", "tile"]

GROUP_ROWS = 64
"""1 / root of so many rows is stored together, in normal and split_d; assumed of normal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Each core has rows of its own and takes them in steps."""

    rows_of_core: tuple[int, ...]
    row_step: int
    """Rows that are loaded together, or whose 1 / root is stored together."""
    column_step: int
    """Columns that are loaded together: all, but for split_d."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split over cores and buffers as the vendor does; see `choice` for the source."""
    ub_bytes, cores, element = ub_bytes_of(spec), core_count(spec), p.x.element
    is_310p = spec.arch == "2002"
    choice = choose(p.rows, p.columns, element, cores=cores, is_310p=is_310p, ub_bytes=ub_bytes)
    if p.asked is not None:
        choice = Choice(p.asked, "asked for")
    rows = rows_of_core(p.rows, cores)
    steps = {
        "merge_n": lambda: merged_rows(p.columns, element, ub_bytes),
        "multi_n": lambda: stepped_rows(p.columns, ub_bytes),
    }
    row_step = steps.get(choice.template, lambda: GROUP_ROWS)()
    is_cut = choice.template == "split_d"
    return Plan(
        block_dim=len(rows),
        template=choice.template,
        reason=choice.reason,
        rows_of_core=rows,
        row_step=min(row_step, rows[0]),
        column_step=piece_columns(p.columns, element) if is_cut else p.columns,
    )
