"""The templates of float rows by a weight of int8 or int4.

In msd, of few rows by int8, vector cores write x in digits. In the others they dequantise the
weight into a workspace, and cube cores multiply by what they find there: in antiquant each cube
core has one vector core, which makes the columns of its next block while it multiplies; in
antiquant_performance all vector cores make the columns of a round together. These two give the same
numbers (ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel, grouped_matmul_antiquant*.h;
op_host/op_tiling/grouped_matmul_tiling.cpp).
"""

from __future__ import annotations

from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.ops.npu_grouped_matmul.antiquant import in_digits
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.antiquant import msd, normal, performance
from npusim.ops.npu_grouped_matmul.templates.antiquant.weights import (
    AntiquantPlan,
    is_performance,
)

__all__ = ["build", "tile"]


def tile(spec: DeviceSpec, p: Problem) -> AntiquantPlan:
    """Split as the template that takes the call does."""
    if in_digits(p):
        return msd.tile(spec, p)
    return performance.tile(spec, p) if is_performance(spec, p) else normal.tile(spec, p)


def build(spec: DeviceSpec, p: Problem, plan: AntiquantPlan) -> tuple[Block, ...]:
    """A cube core and one or two vector cores a group."""
    if plan.template == "msd":
        return msd.build(spec, p, plan)
    if plan.template == "antiquant":
        return normal.build(spec, p, plan)
    return performance.build(spec, p, plan)
