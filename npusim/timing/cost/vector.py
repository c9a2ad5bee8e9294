"""Cycles of the vector micro-ops, from their class and the banks of the buffer."""

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
    # vaddrelu and vsubrelu have not been measured: like an addition.
    "add_relu": "add",
    "sub_relu": "add",
}
"""Operation on two vectors -> its class."""
BINARY_SCALAR: dict[BinaryOp | ScalarFormOp, VectorClassName] = {
    "add": "adds",
    "sub": "adds",
    "mul": "muls",
    "div": "div",
    "min": "maxs",
    "max": "maxs",
    # vlrelu, vshl and vshr have not been measured: like muls and adds.
    "leaky_relu": "muls",
    "shift_left": "adds",
    "shift_right": "adds",
    "shift_right_round": "adds",
}
"""Operation on a vector and a scalar -> its class."""
UNARY: dict[UnaryOp, VectorClassName] = {
    # vabs 13/1/16 is closest to vadds 13/1/18 (pto-isa, cost model).
    "abs": "adds",
    # vrelu is 10/1/13 there, like vmaxs.
    "relu": "maxs",
    "not": "logic",
    "exp": "transcendental",
    "ln": "ln",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    # vrec has not been measured. It has the lanes of rsqrt (asc-devkit, vector throughput table).
    "reciprocal": "rsqrt",
}
"""Operation on one vector -> its class."""


def vector(
    op: MicroOp,
    spec: DeviceSpec,
    kind: VectorClass,
    *,
    reduces: bool = False,
    expands: bool = False,
) -> Cost:
    """Cycles of *op*: its repeats at the rate of *kind*, or of the banks if they are slower.

    A micro-op that *reduces* iterates over its source, one that *expands* over its result (Brcb
    reads one block per repeat); bank conflicts are not counted for either.
    """
    sources, dst = reads(op), writes(op)[0]
    # 8-bit and 4-bit elements have the rate of 16-bit ones (asc-devkit, vector throughput table).
    widest_bits = max(16, dst.dtype.bits, *(source.dtype.bits for source in sources))
    elements = spec.vector.repeat_bytes * 8 // widest_bits
    # A partial repeat of a strided operand counts in full, like a mask.
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
        # Without conflicts banks take a cycle per repeat; then only the unit's rate counts.
        body = max(body, conflicted) if conflicted > repeats else body
    return Cost(body, kind.head_cycles, kind.tail_cycles)
