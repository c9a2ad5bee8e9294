"""The programs that the cores run for npu_rms_norm."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.kernel.views import GmView
from npusim.ops._rms_norm.launch import blocks_of
from npusim.ops.npu_rms_norm.contract import Problem
from npusim.ops.npu_rms_norm.in_pieces import InPieces
from npusim.ops.npu_rms_norm.merged import Merged
from npusim.ops.npu_rms_norm.one_row import Normal, gamma_of
from npusim.ops.npu_rms_norm.tiling import Plan

__all__ = ["build"]

KERNELS: dict[str, type[Merged | Normal | InPieces]] = {
    "merge_n": Merged,
    "normal": Normal,
    "single_row": Normal,
    "split_d": InPieces,
}


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core; cores with as many rows share their program."""
    assert plan.template is not None
    kernel = KERNELS[plan.template](spec, p, plan)
    x, output = (GmView.of(name, p.x.element, p.rows, p.columns) for name in ("x", "output"))
    rstd = GmView.vector("rstd", FLOAT32, p.rows)
    views = (x, output, rstd)
    return blocks_of(spec, kernel, plan.rows_of_core, plan.row_step, views, (gamma_of(p),))
