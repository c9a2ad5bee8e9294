"""Cycles of the vector micro-ops: classes that behave alike, and the banks of the buffer."""

from __future__ import annotations

from math import ceil

from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec, VectorClass
from npusim.isa import (
    Axpy,
    Binary,
    BinaryScalar,
    BlockReduce,
    Broadcast,
    Cast,
    Copy,
    Duplicate,
    MulAddDst,
    Reduce,
    Unary,
    reads,
    writes,
)
from npusim.timing.banks import repeat_cycles
from npusim.timing.cost.cycles import Cost

__all__ = ["VectorOp", "vector"]

VectorOp = (
    Cast
    | Unary
    | Binary
    | BinaryScalar
    | Axpy
    | MulAddDst
    | Duplicate
    | Broadcast
    | Reduce
    | BlockReduce
    | Copy
)


def vector(op: VectorOp, spec: DeviceSpec) -> Cost:
    """Cycles of *op*: its repeats at the pace of its class, or of the banks if they are slower."""
    sources, dst = reads(op), writes(op)[0]
    # 8-bit and 4-bit elements run at the rate of 16-bit ones (asc-devkit, vector throughput table).
    widest_bits = max(16, dst.dtype.bits, *(source.dtype.bits for source in sources))
    elements = spec.vector.repeat_bytes * 8 // widest_bits
    # Brcb reads one block a repeat; a reduction walks its source.
    count = sources[0].count if isinstance(op, Reduce | BlockReduce) else dst.count
    repeats = ceil_div(count, elements)
    kind = _class(op, spec)
    narrow = widest_bits == 16
    rate = kind.cycles_per_repeat_16bit if narrow else kind.cycles_per_repeat_32bit
    conflicted = 0
    if not isinstance(op, Broadcast | Reduce | BlockReduce):
        conflicted = repeat_cycles(spec.banks, sources, dst, min(elements, count), repeats)
    return Cost(max(ceil(repeats * rate), conflicted), kind.head_cycles, kind.tail_cycles)


def _class(op: VectorOp, spec: DeviceSpec) -> VectorClass:
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
        # vabs 13/1/16 is nearest to vadds 13/1/18 (pto-isa, cost model).
        case BinaryScalar(op="add" | "sub") | Unary():
            return classes["adds"]
        # Nobody fitted Axpy. It runs at the lanes of muls and add (asc-devkit, vector throughput
        # table), and its second operand meets the first in the banks.
        case BinaryScalar(op="mul") | Axpy():
            return classes["muls"]
        case BinaryScalar():
            return classes["maxs"]
        case MulAddDst():
            return classes["muladd"]
        case Cast():
            return classes["cast"]
        case Duplicate():
            return classes["duplicate"]
        case Broadcast():
            return classes["broadcast"]
        case Reduce():
            return classes["reduce"]
        case BlockReduce():
            return classes["block_reduce"]
        case Copy():
            return classes["copy"]
