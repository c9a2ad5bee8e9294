"""The programs that the cores run for npu_dynamic_quant.

Rows become fp32, are multiplied by the smooth scales, and give M, their largest magnitude; then
they are multiplied by 127 / M, rounded and narrowed to int8 or int4. The templates differ in how
many rows an instruction takes, in what they load at a time, and in who divides: see `choice`.
"""

from __future__ import annotations

from typing import Protocol

from npusim.devices.schema import DeviceSpec
from npusim.kernel.builder import Builder
from npusim.kernel.program import Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, bindings, repeat
from npusim.ops.npu_dynamic_quant import coupled, groups
from npusim.ops.npu_dynamic_quant.choice import Template
from npusim.ops.npu_dynamic_quant.contract import Problem
from npusim.ops.npu_dynamic_quant.long_rows import Large
from npusim.ops.npu_dynamic_quant.one_row import Base, Db
from npusim.ops.npu_dynamic_quant.row_steps import matrices
from npusim.ops.npu_dynamic_quant.several_rows import MultiRow, SingleRow
from npusim.ops.npu_dynamic_quant.tiling import Plan

__all__ = ["build"]


class Kernel(Protocol):
    """What a template does with the rows of a core."""

    builder: Builder

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None: ...

    def begin(self) -> None:
        """Write the steps before the first row."""

    def piece(self, x: GmView, output: GmView, scale: GmView) -> None:
        """Compute *output* and *scale* `(rows,)` from *x*, `(rows, columns)` like *output*."""


KERNELS: dict[Template, type[Kernel]] = {
    "single_row": SingleRow,
    "multi_row": MultiRow,
    "db": Db,
    "base": Base,
    "large": Large,
}


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with as many rows share their program."""
    if spec.arch == "2002":
        return coupled.build(spec, p, plan)
    if p.group_index is not None:
        return groups.build(spec, p, plan)
    kernel = KERNELS[plan.template](spec, p, plan)
    programs: dict[int, Program] = {}
    blocks: list[Block] = []
    x, output, scale = matrices(p)
    smooth = [GmView.vector("smooth_scales", p.x.element, p.columns)] if p.smooth_scales else []
    first = 0
    for core, rows in enumerate(plan.rows_of_core):
        if rows not in programs:
            programs[rows] = _program(kernel, p, rows, plan.row_step)
        bound = bindings(x[first:, :], output[first:, :], scale[:, first:], *smooth)
        blocks.append(Block(core, spec.vector_cores[core], programs[rows], bound))
        first += rows
    return tuple(blocks)


def _program(kernel: Kernel, p: Problem, rows: int, row_step: int) -> Program:
    """*rows* rows, piece by piece."""
    x, output, scale = matrices(p)
    kernel.begin()
    for row, count in pieces(rows, row_step):
        here = slice(row, row + count)
        repeat(kernel.builder, kernel.piece, x[here, :], output[here, :], scale[:, here])
    return kernel.builder.build()
