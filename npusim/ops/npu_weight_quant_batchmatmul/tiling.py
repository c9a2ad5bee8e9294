"""How npu_weight_quant_batchmatmul is split over cores and buffers."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.spec import DeviceSpec

__all__ = ["Plan", "tile"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Who works on what."""

    template: str
    form: str
    why: str
    launched: int


def tile(_spec: DeviceSpec, _problem: Problem) -> Plan:
    """Split over cores and buffers as the vendor does."""
    raise NotImplementedError("npu_weight_quant_batchmatmul: has no tiling yet; use reference")
