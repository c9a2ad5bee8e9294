"""How npu_rms_norm is split over cores and buffers."""

from __future__ import annotations

from npusim.devices.schema import DeviceSpec
from npusim.ops._rms_norm.rows import Choice, Machine, Plan, planned, rows_of_core
from npusim.ops.npu_rms_norm.choice import (
    ROWS_OF_A_BLOCK,
    choose,
    merged_rows,
    piece_columns,
)
from npusim.ops.npu_rms_norm.contract import Problem

__all__ = ["Plan", "tile"]

GROUP_ROWS = 64
"""1 / root of so many rows is stored together."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split over cores and buffers as the vendor does; see `choice` for the source.

    A step is what merge_n loads together, of the others whose 1 / root is stored together.
    """
    machine, element = Machine.of(spec), p.x.element
    choice = choose(p.rows, p.columns, element, machine, is_mixed=p.is_mixed)
    if p.asked is not None:
        choice = Choice(p.asked, "asked for")
    is_merged = choice.template == "merge_n"
    unit = ROWS_OF_A_BLOCK if is_merged and machine.is_310p else 1
    rows = rows_of_core(p.rows, machine.cores, unit)
    row_step, column_step = GROUP_ROWS, p.columns
    if is_merged:
        row_step = merged_rows(p.columns, element, machine, is_mixed=p.is_mixed)
    elif choice.template == "split_d":
        column_step = piece_columns(p.columns, element, is_mixed=p.is_mixed)
    return planned(choice, rows, row_step, column_step)
