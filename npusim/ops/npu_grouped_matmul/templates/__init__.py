"""The kernels of npu_grouped_matmul, and which of them takes a call."""

from __future__ import annotations

from npusim.devices.schema import DeviceSpec
from npusim.kernel import Block
from npusim.ops.npu_grouped_matmul.choice import in_digits, is_unpacked
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates import (
    a8w4_unpacked,
    antiquant,
    coupled,
    dequantise,
    half_sums,
    msd,
    plain,
)
from npusim.ops.npu_grouped_matmul.tiling import Plan

MODULES = {
    "plain": plain,
    "fixpipe": plain,
    "dequantise": dequantise,
    "a4w4": half_sums,
    "a8w4": half_sums,
    "a8w4_unpacked": a8w4_unpacked,
    "antiquant": antiquant,
    "msd": msd,
    "coupled": coupled,
}
"""Template -> the module with its `tile` and `build`."""


def _taken(p: Problem) -> str:
    """The kernel that takes the call, of those for its types."""
    template = p.types.template
    if template == "a8w4" and is_unpacked(p):
        return "a8w4_unpacked"
    return "msd" if template == "antiquant" and in_digits(p) else template


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split like the template that takes the call."""
    plan: Plan = MODULES[_taken(p)].tile(spec, p)
    return plan


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """A block for each core."""
    blocks: tuple[Block, ...] = MODULES[_taken(p)].build(spec, p, plan)
    return blocks
