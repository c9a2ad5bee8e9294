"""How long each micro-op holds its pipe when nobody else is in the way, in cycles of its core.

Vector: `head + max(repeats x rate, bank cycles) + tail`, a repeat being 256 bytes of the widest
operand; the head is paid when the pipe was drained, the tail before anybody may read the result.
Copies: bytes as the memory moves them (whole sectors, whole lines where a burst starts off one),
which the links of ``memory`` turn into time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from npusim.banks import repeat_cycles
from npusim.isa import (
    Barrier,
    Binary,
    BinaryScalar,
    Broadcast,
    Cast,
    Copy,
    Duplicate,
    Global,
    Load,
    MicroOp,
    Reduce,
    ScalarAlu,
    ScalarLoad,
    ScalarLoop,
    ScalarStore,
    SetFlag,
    Store,
    Trap,
    WaitFlag,
    reads,
    writes,
)
from npusim.spec import DeviceSpec, VectorClass

__all__ = ["Charge", "Cost", "charge", "cost"]

VectorOp = Cast | Binary | BinaryScalar | Duplicate | Broadcast | Reduce | Copy


@dataclass(frozen=True, slots=True)
class Cost:
    """Cycles of a micro-op whose time does not depend on other cores."""

    body: int
    head: int = 0
    """Paid before the body when the pipe was drained."""
    tail: int = 0
    """From the end of the body until the result is there."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What a copy asks of the memory."""

    nbytes: int
    """Bytes as moved, partial sectors and lines filled up."""
    hold_cycles: int
    """The pipe is held at least this long."""


# ---- vector ----


def _vector_class(op: VectorOp, spec: DeviceSpec) -> VectorClass:
    classes = spec.vector.classes
    match op:
        case Binary(op="add" | "sub"):
            return classes["add"]
        case Binary(op="mul"):
            return classes["mul"]
        case Binary(op="div") | BinaryScalar(op="div"):
            return classes["div"]
        case Binary():
            return classes["max"]
        case BinaryScalar(op="add" | "sub"):
            return classes["adds"]
        case BinaryScalar(op="mul"):
            return classes["muls"]
        case BinaryScalar():
            return classes["maxs"]
        case Cast():
            return classes["cast"]
        case Duplicate():
            return classes["duplicate"]
        case Broadcast():
            return classes["broadcast"]
        case Reduce():
            return classes["reduce"]
        case Copy():
            return classes["copy"]


def _vector(op: VectorOp, spec: DeviceSpec) -> Cost:
    sources, dst = reads(op), writes(op)[0]
    # 8-bit and 4-bit elements run at the rate of 16-bit ones (asc-devkit, vector throughput table).
    widest_bits = max(16, dst.dtype.bits, *(source.dtype.bits for source in sources))
    elements = spec.vector.repeat_bytes * 8 // widest_bits
    # Brcb reads one block a repeat; a reduction walks its source.
    count = sources[0].count if isinstance(op, Reduce) else dst.count
    repeats = -(-count // elements)
    kind = _vector_class(op, spec)
    narrow = widest_bits == 16
    rate = kind.cycles_per_repeat_16bit if narrow else kind.cycles_per_repeat_32bit
    conflicted = 0
    if not isinstance(op, Broadcast | Reduce):
        conflicted = repeat_cycles(spec.banks, sources, dst, min(elements, count), repeats)
    return Cost(max(ceil(repeats * rate), conflicted), kind.head_cycles, kind.tail_cycles)


# ---- scalar ----


def _scalar(op: ScalarLoad | ScalarStore | ScalarAlu | Trap, spec: DeviceSpec) -> int:
    match op:
        case ScalarLoad():
            return spec.scalar.load_cycles
        case ScalarStore():
            return spec.scalar.store_cycles
        case ScalarAlu() | Trap():
            return spec.scalar.alu_cycles


def cost(op: MicroOp, spec: DeviceSpec) -> Cost:
    """Cycles of *op*; raises TypeError for copies, whose time other cores decide: see `charge`."""
    match op:
        case Cast() | Binary() | BinaryScalar() | Duplicate() | Broadcast() | Reduce() | Copy():
            return _vector(op, spec)
        case ScalarLoad() | ScalarStore() | ScalarAlu() | Trap():
            return Cost(_scalar(op, spec))
        case ScalarLoop():
            return Cost(op.count * sum(_scalar(part, spec) for part in op.body))
        case SetFlag():
            return Cost(spec.sync.set_flag_cycles)
        case WaitFlag():
            return Cost(spec.sync.wait_flag_cycles)
        case Barrier():
            return Cost(spec.sync.barrier_cycles)
        case _:
            raise TypeError(f"cost: {op} must be charged with the offset of its tensor; use charge")


# ---- copies ----


def _moved_bytes(place: Global, base_bytes: int, spec: DeviceSpec) -> int:
    """Bytes of the requests that *place* is cut into.

    A burst that starts on a sector moves whole sectors. One that does not moves every line it
    touches: rows of 2048 bytes at odd addresses then cost 5 lines for 4, and the official copy
    example loses 22 % on them (asc-devkit, 05_best_practices, data_copy: N = 12287).
    """
    sector, line = spec.transfer.sector_bytes, spec.l2.line_bytes
    moved = 0
    start = base_bytes + place.offset_bytes
    # The pattern repeats as soon as the stride has come back to the start of a line.
    steps = place.bursts if place.stride_bytes % line else 1
    for _ in range(steps):
        if start % sector == 0:
            moved += -(-place.burst_bytes // sector) * sector
        else:
            moved += ((start + place.burst_bytes - 1) // line - start // line + 1) * line
        start += place.stride_bytes
    return moved * (place.bursts // steps)


def charge(op: Load | Store, base_bytes: int, spec: DeviceSpec) -> Charge:
    """What *op* asks of the memory when its tensor's binding begins at *base_bytes*."""
    place = op.src if isinstance(op, Load) else op.dst
    hold = max(spec.transfer.issue_cycles, place.bursts * spec.transfer.burst_cycles)
    return Charge(_moved_bytes(place, base_bytes, spec), hold)
