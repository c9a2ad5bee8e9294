"""How npu_add_rms_norm_dynamic_quant is split over cores and buffers."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.ops._rms_norm.rows import Choice, Machine, Plan, planned, rows_of_core
from npusim.ops.npu_add_rms_norm_dynamic_quant.choice import (
    choose,
    slice_columns,
    step_rows,
)
from npusim.ops.npu_add_rms_norm_dynamic_quant.contract import Problem

__all__ = ["Plan", "tile"]

GROUP_ROWS = 128
"""single_row stores the scales of so many rows together."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split over cores and buffers as the vendor does; see `choice` for the source.

    A step is what normal loads together, of single_row whose scales are stored together.
    """
    machine, traits = Machine.of(spec), {"is_int4": p.is_int4, "has_beta": p.beta is not None}
    choice = choose(p.columns, machine, **traits)
    if p.asked is not None:
        choice = Choice(p.asked, "asked for")
    rows = rows_of_core(p.rows, machine.cores)
    row_step, column_step = 1, p.columns
    workspaces: dict[str, int] = {}
    if choice.template == "normal":
        row_step = step_rows(p.columns, machine, **traits)
    elif choice.template == "single_row":
        row_step = GROUP_ROWS
    else:
        column_step = slice_columns(p.columns, is_int4=p.is_int4)
        # Each core has a row of fp32 for each output, again and again.
        workspaces = {"workspace": FLOAT32.nbytes(len(rows) * sum(p.taken) * p.columns)}
    return planned(choice, rows, row_step, column_step, workspaces)
