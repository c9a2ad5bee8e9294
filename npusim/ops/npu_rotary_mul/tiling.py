"""How npu_rotary_mul is split over cores and buffers."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import FLOAT32, DType
from npusim.data.integers import align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES
from npusim.kernel.launch import share
from npusim.ops import _protocol
from npusim.ops.npu_rotary_mul.contract import Problem

__all__ = ["InterleavedPlan", "Plan", "half_pitch", "row_pitch", "tile"]

KEPT_BYTES = 2048
"""Of the unified buffer, left alone (rope_rotate_half_tiling.cpp)."""
FLOAT_BUFFERS, HALF_BUFFERS = 8, 24
"""What the buffers of a line take, in lines of the input: of float32, and of 16 bits, which are
widened (the same file)."""

REASONS = {
    "split_s": "the buffer holds all vectors of a line",
    "split_bs": "the buffer holds the heads of a line, but not of all batches",
    "split_bsn": "the buffer does not hold the heads of a line",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Each core has lines of its own, for all their heads."""

    lines_of_core: tuple[int, ...]
    line_step: int
    """Lines that are loaded together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterleavedPlan(Plan):
    """Of a line the vectors of so many batches and heads are turned together."""

    batch_step: int
    head_step: int


def half_pitch(dtype: DType, width: int) -> int:
    """Elements from one half of a vector to the other in the buffer: whole blocks."""
    return align_up(dtype.nbytes(width // 2), BLOCK_BYTES) * 8 // dtype.bits


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Lines are dealt out evenly; as many are loaded together as the buffers hold.

    ops-transformer@c29bc10 posembedding/rotary_position_embedding/op_host,
    rope_rotate_half_tiling.cpp.
    """
    if p.is_interleaved:
        return _interleaved(spec, p)
    cores = min(p.lines, len(spec.vector_cores))
    dtype = p.x.element
    buffers = HALF_BUFFERS if dtype.bits == 16 else FLOAT_BUFFERS
    room = (spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - KEPT_BYTES) // buffers
    lines = tuple(len(share(p.lines, cores, core)) for core in range(cores))
    step = room // dtype.nbytes(2 * half_pitch(dtype, p.width))
    return Plan(block_dim=cores, lines_of_core=lines, line_step=min(step, lines[0]))


def row_pitch(dtype: DType, width: int) -> int:
    """Elements from one vector to the next in the buffer where neighbours turn: whole blocks."""
    return align_up(dtype.nbytes(width), BLOCK_BYTES) * 8 // dtype.bits


def _interleaved(spec: DeviceSpec, p: Problem) -> InterleavedPlan:
    """As many lines as fit with all their vectors; else one, with so many batches, or heads of one.

    The same, rope_interleaved_tiling.cpp: split_s, split_bs and split_bsn.
    """
    cores = min(p.lines, len(spec.vector_cores))
    lines = tuple(len(share(p.lines, cores, core)) for core in range(cores))
    dtype, batches, heads = p.x.element, p.outer.count, p.inner.count
    pitch = row_pitch(dtype, p.width)
    # x, cosines and result of its type; then all of them, or what is looked up, as float32.
    vector_bytes = 3 * dtype.nbytes(pitch) + FLOAT32.nbytes(pitch) * (3 if dtype.bits == 16 else 1)
    place_bytes = FLOAT32.nbytes(pitch)
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub") - KEPT_BYTES
    left = room - heads * place_bytes
    line_step = max(0, left) // (batches * heads * vector_bytes)
    if line_step:
        how, steps = "split_s", (min(line_step, lines[0]), batches, heads)
    elif left >= heads * vector_bytes:
        how, steps = "split_bs", (1, left // (heads * vector_bytes), heads)
    else:
        how, steps = "split_bsn", (1, 1, room // (vector_bytes + place_bytes))
    return InterleavedPlan(
        block_dim=cores,
        template=how,
        reason=REASONS[how],
        lines_of_core=lines,
        line_step=steps[0],
        batch_step=steps[1],
        head_step=steps[2],
    )
