"""Cycles of the vector micro-ops: classes that behave alike, and the banks of the buffer."""

from __future__ import annotations

from math import ceil

from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec, VectorClass, VectorClassName
from npusim.isa import BinaryOp, BitwiseOp, MicroOp, ReluOp, ScalarFormOp, UnaryOp, reads, writes
from npusim.timing.banks import repeat_cycles
from npusim.timing.cost.cycles import Cost

__all__ = ["BINARY", "BINARY_SCALAR", "UNARY", "vector"]

BINARY: dict[BinaryOp | BitwiseOp | ReluOp, VectorClassName] = {
    "add": "add",
    "sub": "add",
    "mul": "mul",
    "div": "div",
    "min": "max",
    "max": "max",
    "and": "logic",
    "or": "logic",
    # Nobody fitted vaddrelu and vsubrelu: as a sum.
    "add_relu": "add",
    "sub_relu": "add",
}
"""What a micro-op on two vectors does -> its class."""
BINARY_SCALAR: dict[BinaryOp | ScalarFormOp, VectorClassName] = {
    "add": "adds",
    "sub": "adds",
    "mul": "muls",
    "div": "div",
    "min": "maxs",
    "max": "maxs",
    # Nobody fitted vlrelu, vshl and vshr: as a product by a scalar, and as a sum with one.
    "leaky_relu": "muls",
    "shift_left": "adds",
    "shift_right": "adds",
    "shift_right_round": "adds",
}
"""The same for a vector and a scalar."""
UNARY: dict[UnaryOp, VectorClassName] = {
    # vabs 13/1/16 is nearest to vadds 13/1/18 (pto-isa, cost model).
    "abs": "adds",
    # vrelu is 10/1/13 there, as vmaxs.
    "relu": "maxs",
    "not": "logic",
    "exp": "transcendental",
    "ln": "ln",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    # Nobody fitted vrec. It runs at the lanes of rsqrt (asc-devkit, vector throughput table).
    "reciprocal": "rsqrt",
}
"""The same for one vector."""


def vector(
    op: MicroOp,
    spec: DeviceSpec,
    kind: VectorClass,
    *,
    reduces: bool = False,
    expands: bool = False,
) -> Cost:
    """Cycles of *op*: its repeats at the pace of *kind*, or of the banks if they are slower.

    A micro-op that *reduces* walks its source and one that *expands* its result (Brcb reads one
    block a repeat); both leave the banks alone.
    """
    sources, dst = reads(op), writes(op)[0]
    # 8-bit and 4-bit elements run at the rate of 16-bit ones (asc-devkit, vector throughput table).
    widest_bits = max(16, dst.dtype.bits, *(source.dtype.bits for source in sources))
    elements = spec.vector.repeat_bytes * 8 // widest_bits
    # Strided operands may end a repeat early, as a mask does.
    for local in (*sources, dst):
        if local.is_strided:
            elements = min(elements, local.repeat_elements)
    count = sources[0].count if reduces else dst.count
    repeats = ceil_div(count, elements)
    is_narrow = widest_bits == 16
    rate = kind.cycles_per_repeat_16bit if is_narrow else kind.cycles_per_repeat_32bit
    body = ceil(repeats * rate)
    if not (reduces or expands):
        conflicted = repeat_cycles(spec.banks, sources, dst, min(elements, count), repeats)
        # A cycle a repeat is what banks take without a conflict: then the unit alone decides.
        body = max(body, conflicted) if conflicted > repeats else body
    return Cost(body, kind.head_cycles, kind.tail_cycles)
