"""How npu_dynamic_quant is split over cores and buffers."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.launch import share
from npusim.ops import _protocol
from npusim.ops.npu_dynamic_quant.choice import Template, choose, max_columns
from npusim.ops.npu_dynamic_quant.contract import Problem

__all__ = ["Plan", "tile"]

SINGLE_ROW_ELEMENTS = 16384
"""The template single_row loads at most so many elements at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Each core has rows of its own and takes them in pieces."""

    template: Template
    reason: str
    rows_of_core: tuple[int, ...]
    row_step: int
    """Rows that are loaded together, and worked on one after the other."""
    column_step: int
    """Columns that are loaded together: all, but for rows too long for the buffer."""
    depth: int
    """Buffers of x: 1 loads and computes in turn, 2 at the same time."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split over cores and buffers as the vendor does; only as many cores as have work are started.

    ops-nn@e5c3fa9 quant/dynamic_quant/op_host. Assumed: single_row does not load ahead; a piece of
    large has as many columns as a row of base may have. Inferred: rows that are loaded together are
    worked on one after the other, since on one core of an Atlas A3 nine rows of 512 take a third of
    a microsecond a row longer than six (aiconfigurator-npu).
    """
    smooth = p.smooth_scales is not None
    ub_bytes = spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    choice = choose(p.rows, p.columns, smooth, ub_bytes)
    template = choice.template
    row_step, column_step = 1, p.columns
    if template == "single_row":
        row_step = SINGLE_ROW_ELEMENTS // p.columns
    elif template == "multi_row":
        row_step = max_columns(template, smooth, ub_bytes) // p.columns
    elif template == "large":
        column_step = max_columns("base", smooth, ub_bytes)
    rows = _rows_of_core(template, p.rows, row_step, len(spec.vector_cores))
    row_step = min(row_step, rows[0])
    depth = 2 if template == "db" else 1
    return Plan(
        block_dim=len(rows),
        template=template,
        reason=choice.reason,
        rows_of_core=rows,
        row_step=row_step,
        column_step=column_step,
        depth=depth,
    )


def _rows_of_core(template: Template, rows: int, row_step: int, cores: int) -> tuple[int, ...]:
    """Rows of each core that is started: never more than those of the first one."""
    if template == "single_row":
        each = ceil_div(rows, cores)
        full = (each,) * ((rows - 1) // each)
        return (*full, rows - sum(full))
    if template == "multi_row":
        # A core is not started for less than a whole piece.
        cores = min(cores, max(1, rows // row_step))
    cores = min(cores, rows)
    return tuple(len(share(rows, cores, core)) for core in range(cores))
