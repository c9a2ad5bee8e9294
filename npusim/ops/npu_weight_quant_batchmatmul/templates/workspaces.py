"""The workspaces of a kernel, and the names that it has for global memory."""

from __future__ import annotations

from typing import NamedTuple

from npusim.kernel.program import Binding
from npusim.kernel.views import GmView
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan

__all__ = ["RingSlot", "bindings", "ring_slot", "workspace_bytes"]


def workspace_bytes(*views: GmView) -> dict[str, int]:
    """Name -> bytes of the workspaces that *views* make up."""
    found: dict[str, int] = {}
    for view in views:
        found[view.name] = found.get(view.name, 0) + view.nbytes
    return found


def bindings(p: Problem, plan: Plan) -> dict[str, Binding]:
    """Inputs, output and workspaces, each under its own name."""
    names = [*(operand.name for operand in p.inputs), "output", *plan.workspaces]
    return {name: Binding(name) for name in names}


class RingSlot(NamedTuple):
    """What a step uses of a ring, which is filled and read half by half."""

    view: GmView
    waits: bool
    """Whether the step is the first in a half that was filled before: it must have been read."""
    releases: bool
    """Whether the step is the last in a half that is filled again: its readers say when."""


def ring_slot(ring: GmView, slots: int, index: int, count: int) -> RingSlot:
    """What step number *index* of *count* uses of *ring*: *slots* of them, below each other."""
    # (slots x rows, columns): slots are stacked, used in turn
    half, rows = slots // 2, ring.rows // slots
    top = index % slots * rows
    return RingSlot(
        view=ring[top : top + rows, :],
        waits=index >= slots and index % half == 0,
        releases=(index + 1) % half == 0 and index + 1 + half < count,
    )
