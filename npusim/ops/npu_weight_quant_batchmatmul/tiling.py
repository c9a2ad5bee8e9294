"""How npu_weight_quant_batchmatmul is split over cores and buffers: each template for itself."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from npusim.devices.schema import DeviceSpec
from npusim.ops.npu_weight_quant_batchmatmul.choice import Choice
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan

__all__ = ["Plan", "module_of", "tile"]

MODULES = {
    ("msd", "multicore"): "msd.multicore",
    ("msd", "multicore_hp"): "msd.multicore",
    ("msd", "split_k"): "msd.split_k",
    ("msd", "per_group"): "msd.per_group",
}
"""Forms with a kernel of their own; the others bear their template's name."""


def module_of(choice: Choice) -> ModuleType:
    """The module of the kernel that *choice* names."""
    name = MODULES.get((choice.template, choice.form), choice.template)
    return import_module(f"npusim.ops.npu_weight_quant_batchmatmul.templates.{name}")


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split as the template that takes the call does."""
    plan: Plan = module_of(p.choice).tile(spec, p)
    return plan
