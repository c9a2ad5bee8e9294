"""How the rows of npu_moe_gating_top_k_softmax are split over cores."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.ops import _protocol
from npusim.ops.npu_moe_gating_top_k_softmax.contract import Problem

__all__ = ["Plan", "tile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Each core has a run of rows, which it goes through one at a time."""

    rows_per_core: int


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Rows evenly over the vector cores.

    The vendor has templates for few columns, for rows that fit and for longer ones
    (ops-transformer@c29bc10 moe/moe_gating_top_k_softmax); all rows do here as those that fit,
    which is assumed.
    """
    rows = ceil_div(p.rows, len(spec.vector_cores))
    return Plan(block_dim=ceil_div(p.rows, rows), rows_per_core=rows)
