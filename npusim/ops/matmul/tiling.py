"""How matmul is split over cores and buffers: each template for itself."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from npusim.devices.schema import DeviceSpec
from npusim.ops.matmul.choice import Choice
from npusim.ops.matmul.contract import Problem
from npusim.ops.matmul.templates.plan import Plan

__all__ = ["Plan", "module_of", "tile"]


def module_of(choice: Choice) -> ModuleType:
    """The module of the kernel that *choice* names: it has `tile` and `build`."""
    return import_module(f"npusim.ops.matmul.templates.{choice.template}")


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split as the template that takes the call does."""
    plan: Plan = module_of(p.choice).tile(spec, p)
    return plan
