"""How npu_add_rms_norm is split over cores and buffers."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.devices.schema import DeviceSpec
from npusim.ops import _protocol
from npusim.ops._rms_norm.rows import Choice, Machine, rows_of_core
from npusim.ops.npu_add_rms_norm.choice import (
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
    machine, element = Machine.of(spec), p.x.element
    choice = choose(p.rows, p.columns, element, machine)
    if p.asked is not None:
        choice = Choice(p.asked, "asked for")
    rows = rows_of_core(p.rows, machine.cores)
    row_step = GROUP_ROWS
    if choice.template == "merge_n":
        row_step = merged_rows(p.columns, element, machine)
    elif choice.template == "multi_n":
        row_step = stepped_rows(p.columns, machine)
    is_cut = choice.template == "split_d"
    return Plan(
        block_dim=len(rows),
        template=choice.template,
        reason=choice.reason,
        rows_of_core=rows,
        row_step=min(row_step, rows[0]),
        column_step=piece_columns(p.columns, element) if is_cut else p.columns,
    )
