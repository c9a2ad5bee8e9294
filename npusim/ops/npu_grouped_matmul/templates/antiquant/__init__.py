"""The templates antiquant and antiquant_performance: float rows by a weight of int8 or int4.

Vector cores dequantise the weight into a workspace, and cube cores multiply by what they find
there. In antiquant each cube core has one vector core, which makes the columns of its next block
while it multiplies; in antiquant_performance all vector cores make the columns of a round together.
Both give the same numbers (ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel,
grouped_matmul_antiquant*.h; op_host/op_tiling/grouped_matmul_tiling.cpp).
"""

from __future__ import annotations

from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.antiquant import normal, performance
from npusim.ops.npu_grouped_matmul.templates.antiquant.weights import (
    AntiquantPlan,
    is_performance,
)

__all__ = ["build", "tile"]


def tile(spec: DeviceSpec, p: Problem) -> AntiquantPlan:
    """Split as the template that takes the call does."""
    return performance.tile(spec, p) if is_performance(spec, p) else normal.tile(spec, p)


def build(spec: DeviceSpec, p: Problem, plan: AntiquantPlan) -> tuple[Block, ...]:
    """A cube core and one or two vector cores a group."""
    if plan.template == "antiquant":
        return normal.build(spec, p, plan)
    return performance.build(spec, p, plan)
