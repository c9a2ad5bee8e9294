"""How npu_add_rms_norm_quant is split over cores and buffers."""

from __future__ import annotations

from npusim.devices.schema import DeviceSpec
from npusim.ops._rms_norm.rows import Choice, Machine, Plan, planned, rows_of_core
from npusim.ops.npu_add_rms_norm_quant.choice import choose, piece_columns
from npusim.ops.npu_add_rms_norm_quant.contract import Problem

__all__ = ["Plan", "tile"]

GROUP_ROWS = 64
"""split_d takes so many rows, a piece of all of them after the other."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split over cores and buffers as the vendor does; see `choice` for the source.

    A step is the rows of which split_d adds up the squares before it scales them; 1 of the others.
    Assumed: that the kernel for a single scale is tiled as the one for a scale a column.
    """
    machine = Machine.of(spec)
    choice = choose(p.rows, p.columns, p.given, machine)
    if p.asked is not None:
        choice = Choice(p.asked, "asked for")
    rows = rows_of_core(p.rows, machine.cores)
    is_cut = choice.template == "split_d"
    row_step = GROUP_ROWS if is_cut else 1
    column_step = piece_columns(p.columns, p.given, machine) if is_cut else p.columns
    return planned(choice, rows, row_step, column_step)
