"""The vendor's kernels for matmul: how each splits a call, and what its cores run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.ops.matmul.check import Problem
from npusim.ops.matmul.choice import Template
from npusim.ops.matmul.templates import (
    bl1_aligned_output,
    deterministic_split_k,
    nd2nz,
    split_k,
    whole_k,
)
from npusim.ops.matmul.templates.plan import Plan

__all__ = ["Plan", "build", "tile"]

Tile = Callable[[DeviceSpec, Problem], Plan]
Build = Callable[[DeviceSpec, Problem, Any], tuple[Block, ...]]

KERNELS: dict[Template, tuple[Tile, Build]] = {
    "bl1_aligned_output": (bl1_aligned_output.tile, bl1_aligned_output.build),
    "al1_split_k": (split_k.tile_al1, split_k.build),
    "bl1_full_load": (whole_k.tile_full_load, whole_k.build),
    "single_core_split_k": (split_k.tile_single_core, split_k.build),
    "deterministic_split_k": (deterministic_split_k.tile, deterministic_split_k.build),
    "v2": (whole_k.tile_v2, whole_k.build),
    "nd2nz": (nd2nz.tile, nd2nz.build),
    "base": (whole_k.tile_base, whole_k.build),
}


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split as the template that takes the call does."""
    return KERNELS[p.choice.template][0](spec, p)


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core."""
    return KERNELS[p.choice.template][1](spec, p, plan)
