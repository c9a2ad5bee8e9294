"""The programs that the cores run for npu_dequant_swiglu_quant."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, INT8
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.views import GmView, bindings
from npusim.ops.npu_dequant_swiglu_quant.by_row import ByRow
from npusim.ops.npu_dequant_swiglu_quant.contract import Problem
from npusim.ops.npu_dequant_swiglu_quant.groups import InGroups
from npusim.ops.npu_dequant_swiglu_quant.tiling import Plan, Segment, segments_of

__all__ = ["build"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with the same segments, counted from their first row, share one."""
    kernel = InGroups(spec, p, plan) if p.group_index is not None else ByRow(spec, p, plan)
    programs: dict[tuple[Segment, ...], Program] = {}
    blocks: list[Block] = []
    for core, segments in enumerate(segments_of(p, plan)):
        start = segments[0][1] if segments else 0
        moved = tuple((group, first - start, rows) for group, first, rows in segments)
        if moved not in programs:
            programs[moved] = _program(kernel, moved)
        blocks.append(Block(core, "aiv", programs[moved], _bindings(p, plan, core, start)))
    return tuple(blocks)


def _program(kernel: InGroups | ByRow, segments: tuple[Segment, ...]) -> Program:
    if isinstance(kernel, InGroups):
        return kernel.program(segments)
    ((_, _, rows),) = segments
    return kernel.program(rows)


def _bindings(p: Problem, plan: Plan, core: int, start: int) -> dict[str, Binding]:
    """Rows from *start* on; all of what belongs to columns and groups."""
    views = [
        GmView.of("x", p.x.element, p.rows, 2 * p.columns)[start:, :],
        GmView.of("output", INT8, p.rows, p.columns)[start:, :],
        GmView.vector("scale", FLOAT32, p.rows)[:, start:],
    ]
    for operand in p.inputs:
        whole = GmView.vector(operand.name, operand.element, operand.spec.size)
        if operand.name == "activation_scale":
            views.append(whole[:, start:])
        elif operand.name != "x":
            views.append(whole)
    found = bindings(*views)
    for name, nbytes in plan.workspaces.items():
        found[name] = Binding(name, core * (nbytes // plan.block_dim))
    return found
