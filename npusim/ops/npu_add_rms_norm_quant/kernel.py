"""The programs that the cores run for npu_add_rms_norm_quant."""

from __future__ import annotations

from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.ops._rms_norm.launch import blocks_of
from npusim.ops.npu_add_rms_norm_quant.contract import Problem
from npusim.ops.npu_add_rms_norm_quant.in_pieces import InPieces
from npusim.ops.npu_add_rms_norm_quant.one_row import Normal, SingleN
from npusim.ops.npu_add_rms_norm_quant.steps import vector_of, views_of
from npusim.ops.npu_add_rms_norm_quant.tiling import Plan

__all__ = ["build"]

KERNELS: dict[str, type[InPieces | Normal | SingleN]] = {
    "normal": Normal,
    "single_n": SingleN,
    "split_d": InPieces,
}


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with as many rows share their program."""
    assert plan.template is not None
    kernel = KERNELS[plan.template](spec, p, plan)
    by_row = views_of(p)
    names = {view.name for view in by_row}
    whole = tuple(vector_of(operand) for operand in p.inputs if operand.name not in names)
    return blocks_of(spec, kernel, plan.rows_of_core, plan.row_step, by_row, whole)
