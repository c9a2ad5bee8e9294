"""The tensors that cores hand work over in, and the names of global memory in a kernel."""

from __future__ import annotations

from npusim.kernel.program import Binding
from npusim.kernel.views import GmView
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan

__all__ = ["bindings", "workspace_bytes"]


def workspace_bytes(*views: GmView) -> dict[str, int]:
    """The tensors that *views* are all of: name -> bytes."""
    found: dict[str, int] = {}
    for view in views:
        found[view.name] = found.get(view.name, 0) + view.nbytes
    return found


def bindings(p: Problem, plan: Plan) -> dict[str, Binding]:
    """Inputs, output and workspaces, each under its own name."""
    names = [*(operand.name for operand in p.inputs), "output", *plan.workspaces]
    return {name: Binding(name) for name in names}
