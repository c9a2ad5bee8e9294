"""The programs that the cores run for npu_add_rms_norm."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.kernel.views import GmView
from npusim.ops._rms_norm.launch import blocks_of
from npusim.ops.npu_add_rms_norm.contract import Problem
from npusim.ops.npu_add_rms_norm.in_pieces import InPieces
from npusim.ops.npu_add_rms_norm.merged import MergeN, MultiN
from npusim.ops.npu_add_rms_norm.one_row import Normal, SingleN, gamma_of
from npusim.ops.npu_add_rms_norm.tiling import Plan

__all__ = ["build"]

KERNELS: dict[str, type[InPieces | MergeN | MultiN | Normal | SingleN]] = {
    "split_d": InPieces,
    "single_n": SingleN,
    "merge_n": MergeN,
    "multi_n": MultiN,
    "normal": Normal,
}


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with as many rows share their program."""
    assert plan.template is not None
    kernel = KERNELS[plan.template](spec, p, plan)
    x1, x2, output, x = (
        GmView.of(name, p.x.element, p.rows, p.columns) for name in ("x1", "x2", "output", "x")
    )
    rstd = GmView.vector("rstd", FLOAT32, p.rows)
    views = (x1, x2, output, rstd, x)
    return blocks_of(spec, kernel, plan.rows_of_core, plan.row_step, views, (gamma_of(p),))
