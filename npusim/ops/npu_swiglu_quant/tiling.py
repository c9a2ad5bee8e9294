"""How npu_swiglu_quant is split over cores and buffers."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.kernel.launch import share
from npusim.ops import _protocol
from npusim.ops.npu_swiglu_quant.contract import Problem

__all__ = ["Plan", "tile"]

MAX_PIECE_ROWS = 255
BYTES_OF_COLUMN = 25
"""Of the buffer, for an element of y: twice x, y, and five numbers in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Each core has rows of its own and takes them in pieces of whole rows, all buffers single."""

    rows_of_core: tuple[int, ...]
    row_step: int


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Split rows over all vector cores, the first ones taking one more.

    ops-nn@e5c3fa9 quant/swi_glu_quant/op_host/swi_glu_quant_tiling.cpp.
    """
    cores = min(p.rows, len(spec.vector_cores))
    rows = tuple(len(share(p.rows, cores, core)) for core in range(cores))
    ub_bytes = spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    columns = align_up(p.columns, BLOCK_BYTES // p.x.element.nbytes(1))
    fitting = ub_bytes // BYTES_OF_COLUMN // columns
    row_step = max(1, min(MAX_PIECE_ROWS, fitting, rows[0]))
    return Plan(block_dim=cores, rows_of_core=rows, row_step=row_step)
