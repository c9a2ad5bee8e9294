"""How npu_rotary_mul is split over cores and buffers."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import DType
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.kernel.launch import share
from npusim.ops import _protocol
from npusim.ops.npu_rotary_mul.contract import Problem

__all__ = ["Plan", "half_pitch", "tile"]

KEPT_BYTES = 2048
"""Of the unified buffer, left alone (rope_rotate_half_tiling.cpp)."""
FLOAT_BUFFERS, HALF_BUFFERS = 8, 24
"""What the buffers of a line take, in lines of the input: of float32, and of 16 bits, which are
widened (the same file)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Each core has lines of its own, for all their heads."""

    lines_of_core: tuple[int, ...]
    line_step: int
    """Lines that are loaded together."""


def half_pitch(dtype: DType, width: int) -> int:
    """Elements from one half of a vector to the other in the buffer: whole blocks."""
    return align_up(dtype.nbytes(width // 2), BLOCK_BYTES) * 8 // dtype.bits


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Lines are dealt out evenly; as many are loaded together as the buffers hold.

    ops-transformer@c29bc10 posembedding/rotary_position_embedding/op_host,
    rope_rotate_half_tiling.cpp.
    """
    cores = min(p.lines, len(spec.vector_cores))
    dtype = p.x.element
    buffers = HALF_BUFFERS if dtype.bits == 16 else FLOAT_BUFFERS
    room = (spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - KEPT_BYTES) // buffers
    lines = tuple(len(share(p.lines, cores, core)) for core in range(cores))
    step = room // dtype.nbytes(2 * half_pitch(dtype, p.width))
    return Plan(block_dim=cores, lines_of_core=lines, line_step=min(step, lines[0]))
