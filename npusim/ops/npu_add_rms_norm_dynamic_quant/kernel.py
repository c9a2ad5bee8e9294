"""The programs that the cores run for npu_add_rms_norm_dynamic_quant."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.kernel.views import GmView
from npusim.ops._rms_norm.launch import blocks_of
from npusim.ops.npu_add_rms_norm_dynamic_quant.contract import Problem
from npusim.ops.npu_add_rms_norm_dynamic_quant.in_slices import InSlices
from npusim.ops.npu_add_rms_norm_dynamic_quant.one_row import SingleRow
from npusim.ops.npu_add_rms_norm_dynamic_quant.several_rows import Normal
from npusim.ops.npu_add_rms_norm_dynamic_quant.steps import vector_of, views_of
from npusim.ops.npu_add_rms_norm_dynamic_quant.tiling import Plan

__all__ = ["build"]

KERNELS: dict[str, type[InSlices | Normal | SingleRow]] = {
    "normal": Normal,
    "single_row": SingleRow,
    "slice_d": InSlices,
}


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with as many rows share their program."""
    assert plan.template is not None
    kernel = KERNELS[plan.template](spec, p, plan)
    others = [operand.name for operand in (p.gamma, p.beta, *p.smooth) if operand is not None]
    whole = tuple(vector_of(p, name) for name in others)
    by_core: tuple[GmView, ...] = ()
    if "workspace" in plan.workspaces:
        rows = plan.workspaces["workspace"] // FLOAT32.nbytes(p.columns)
        by_core = (GmView.of("workspace", FLOAT32, rows, p.columns),)
    by_row = tuple(views_of(p).values())
    rows_of_core = plan.rows_of_core
    return blocks_of(spec, kernel, rows_of_core, plan.row_step, by_row, whole, by_core)
