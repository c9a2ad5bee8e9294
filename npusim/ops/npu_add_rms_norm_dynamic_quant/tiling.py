"""How npu_add_rms_norm_dynamic_quant is split over cores and buffers."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.ops import _protocol
from npusim.ops._rms_norm.rows import Choice, Machine, rows_of_core
from npusim.ops.npu_add_rms_norm_dynamic_quant.choice import (
    choose,
    slice_columns,
    step_rows,
)
from npusim.ops.npu_add_rms_norm_dynamic_quant.contract import Problem

__all__ = ["Plan", "tile"]

GROUP_ROWS = 128
"""single_row stores the scales of so many rows together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Each core has rows of its own and takes them in steps."""

    rows_of_core: tuple[int, ...]
    row_step: int
    """Rows that are loaded together; of single_row, whose scales are stored together."""
    column_step: int
    """Columns that are loaded together: all, but for slice_d."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split over cores and buffers as the vendor does; see `choice` for the source."""
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
    return Plan(
        block_dim=len(rows),
        template=choice.template,
        reason=choice.reason,
        rows_of_core=rows,
        row_step=min(row_step, rows[0]),
        column_step=column_step,
        workspaces=workspaces,
    )
