"""How npu_group_quant is split over cores and buffers."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.devices.schema import DeviceSpec
from npusim.kernel.launch import share
from npusim.ops import _protocol
from npusim.ops.npu_group_quant.contract import Problem

__all__ = ["CHUNK", "Plan", "tile"]

CHUNK = 8192
"""Columns that a core works on at a time (ops-nn, group_quant_tiling.cpp)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Rows are shared out evenly; a core works on one at a time, with single buffers."""

    rows_of_core: tuple[int, ...]
    column_step: int


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split rows over all vector cores; the first cores take one more where they do not divide.

    ops-nn@e5c3fa9 quant/group_quant/op_host/group_quant_tiling.cpp.
    """
    cores = min(p.rows, len(spec.vector_cores))
    rows = tuple(len(share(p.rows, cores, core)) for core in range(cores))
    return Plan(block_dim=cores, rows_of_core=rows, column_step=min(CHUNK, p.columns))
