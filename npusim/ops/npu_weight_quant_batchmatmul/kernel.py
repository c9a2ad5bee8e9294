"""The programs that the cores run for npu_weight_quant_batchmatmul."""

from __future__ import annotations

from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.tiling import Plan
from npusim.program import Block
from npusim.spec import DeviceSpec

__all__ = ["build"]


def build(_spec: DeviceSpec, _problem: Problem, _plan: Plan) -> tuple[Block, ...]:
    """One block a core."""
    raise NotImplementedError("npu_weight_quant_batchmatmul: has no programs yet; use reference")
