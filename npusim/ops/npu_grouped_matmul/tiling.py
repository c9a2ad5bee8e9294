"""How npu_grouped_matmul is split over cores and buffers: each template for itself."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.plan import Plan

__all__ = ["Plan", "build", "tile"]


def _module_of(p: Problem) -> ModuleType:
    """The module of the kernel that serves the types of *p*."""
    return import_module(f"npusim.ops.npu_grouped_matmul.templates.{p.types.template}")


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split as the template that serves the types does."""
    plan: Plan = _module_of(p).tile(spec, p)
    return plan


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core."""
    blocks: tuple[Block, ...] = _module_of(p).build(spec, p, plan)
    return blocks
