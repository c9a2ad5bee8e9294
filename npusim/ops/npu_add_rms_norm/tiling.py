"""How npu_add_rms_norm is split over cores and buffers."""

from __future__ import annotations

from npusim.devices.schema import DeviceSpec
from npusim.ops._rms_norm.rows import Choice, Machine, Plan, planned, rows_of_core
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


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split over cores and buffers as the vendor does; see `choice` for the source.

    A step is what merge_n and multi_n load together, of the others whose 1 / root is stored
    together.
    """
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
    column_step = piece_columns(p.columns, element) if is_cut else p.columns
    return planned(choice, rows, row_step, column_step)
