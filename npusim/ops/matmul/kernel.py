"""The programs that the cores run for matmul: those of its template."""

from __future__ import annotations

from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.ops.matmul.contract import Problem
from npusim.ops.matmul.tiling import Plan, module_of

__all__ = ["build"]


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core."""
    blocks: tuple[Block, ...] = module_of(p.choice).build(spec, p, plan)
    return blocks
