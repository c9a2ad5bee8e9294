"""The computation of a kernel for one tile, as steps on values; and which values share a buffer.

An expression is a function that writes steps::

    def sigmoid(chain, x):
        denominator = chain.binary("add", chain.unary("exp", chain.binary("mul", x, -1.0)), 1.0)
        return chain.binary("div", chain.constant(1.0, x.dtype), denominator)

Values are tiles, `(rows, columns)`, or are broadcast to one: a row, one number per row, or a single
number, which is in a register. Tiles of a constant are filled once, not for each tile: otherwise
the vector unit alone would take longer for the Sigmoid of 67 million float16 than the 142 us
measured on a 910B2 (hicann/cann-bench), at rates for which a Gelu of them is correct.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT32, UINT8, DType, RoundMode
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    Binary,
    BinaryOp,
    BinaryScalar,
    Cast,
    Compare,
    CompareOp,
    Copy,
    Duplicate,
    Local,
    MicroOp,
    Register,
    Select,
    Unary,
    UnaryOp,
)

Extent = Literal["tile", "row", "column", "number"]
"""The part of a tile that a value has; a column is one number per row."""
COMMUTATIVE = ("add", "mul", "min", "max")


@dataclass(frozen=True, slots=True)
class Value:
    """An operand of the kernel, or the result of a step."""

    number: int
    dtype: DType
    extent: Extent = "tile"
    is_mask: bool = False
    """One bit per element, in uint8."""


Make = Callable[..., MicroOp]
"""`make(dst, *operands)`: the micro-op of a step; numbers are registers."""


@dataclass(frozen=True, slots=True)
class Step:
    """One vector instruction on a tile, or one per row if an operand is broadcast."""

    make: Make
    operands: tuple[Value, ...]
    result: Value


@dataclass(slots=True)
class Chain:
    """The steps of one tile."""

    spec: DeviceSpec
    steps: list[Step] = field(default_factory=list)
    constants: list[tuple[Value, float]] = field(default_factory=list)
    """Tiles of a constant, and its value. They are filled once, before the first tile."""
    _count: int = 0

    def operand(self, dtype: DType, extent: Extent = "tile") -> Value:
        """An operand of the kernel; all of them precede the first step."""
        return self._value(dtype, extent)

    def unary(self, op: UnaryOp, x: Value) -> Value:
        return self._add(lambda dst, src: Unary(op, dst, src), (x,), x.dtype)

    def binary(self, op: BinaryOp, a: Value, b: Value | float) -> Value:
        if not isinstance(b, Value):
            number = b
            return self._add(lambda dst, x: BinaryScalar(op, dst, x, number), (a,), a.dtype)
        if a.extent == "number" and b.extent != "number" and op in COMMUTATIVE:
            a, b = b, a
        if a.extent == "number":
            a = self.spread(a)

        def make(dst: Local, left: Local, right: Local | Register) -> MicroOp:
            if isinstance(right, str):
                return BinaryScalar(op, dst, left, right)
            return Binary(op, dst, left, right)

        return self._add(make, (a, b), a.dtype)

    def constant(self, number: float, dtype: DType) -> Value:
        """A tile filled with *number*."""
        found = self._value(dtype, "tile")
        self.constants.append((found, number))
        return found

    def spread(self, x: Value) -> Value:
        """*x* broadcast to a whole tile."""
        return x if x.extent == "tile" else self.copy(x)

    def copy(self, x: Value) -> Value:
        """*x* as a whole tile, in a separate buffer."""
        make: Make = Duplicate if x.extent == "number" else Copy
        return self._add(make, (x,), x.dtype, "tile")

    def cast(self, x: Value, dtype: DType) -> Value:
        """*x* as *dtype*, rounded like the vendor's Cast: to nearest even, integers to zero."""
        if x.dtype is dtype:
            return x
        if (x.dtype.bits == 8 and dtype is not FLOAT16) or (
            dtype.bits == 8 and x.dtype is not FLOAT16
        ):
            x = self.cast(x, FLOAT16)
        if dtype.bits == 16 and (x.dtype.bits == 16 or (dtype is BFLOAT16 and x.dtype is INT32)):
            # bfloat16 is only converted from and to float32.
            x = self.cast(x, FLOAT32)
        mode = self._rounding(x.dtype, dtype)
        return self._add(lambda dst, src: Cast(dst, src, mode), (x,), dtype)

    def _rounding(self, src: DType, dst: DType) -> RoundMode:
        if src.is_float and not dst.is_float:
            return "trunc"
        if dst.bits >= src.bits and not (dst is FLOAT32 and not src.is_float):
            return "none"
        # 310P has one conversion to fp16, which also rounds to nearest even.
        is_plain = self.spec.arch == "2002" or not src.is_float
        return "none" if is_plain else "rint"

    def compare(self, op: CompareOp, a: Value, b: Value) -> Value:
        """One bit per element."""
        a, b = self.spread(a), self.spread(b)
        bits = self._value(UINT8, "tile", is_mask=True)
        self.steps.append(Step(lambda dst, x, y: Compare(op, dst, x, y), (a, b), bits))
        return bits

    def select(self, mask: Value, a: Value, b: Value | float) -> Value:
        """*a* where the bit is set, else *b*."""
        a = self.spread(a)
        if isinstance(b, Value):
            return self._add(Select, (mask, a, self.spread(b)), a.dtype)
        return self._add(lambda dst, bits, x: Select(dst, bits, x, b), (mask, a), a.dtype)

    def _add(
        self, make: Make, operands: tuple[Value, ...], dtype: DType, extent: Extent | None = None
    ) -> Value:
        found = self._value(dtype, extent or _together(operands))
        self.steps.append(Step(make, operands, found))
        return found

    def _value(self, dtype: DType, extent: Extent, *, is_mask: bool = False) -> Value:
        self._count += 1
        return Value(self._count - 1, dtype, extent, is_mask)


def _together(operands: tuple[Value, ...]) -> Extent:
    """The extent of a result; a number does not change that of a row or a column."""
    extents: set[Extent] = {x.extent for x in operands} - {"number"}
    return extents.pop() if len(extents) == 1 else "tile"


# ---- buffers ----


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is stored: an operand's buffer, the result's, a constant's, or scratch."""

    kind: Literal["operand", "result", "constant", "work"]
    index: int = 0


KEPT = ("operand", "constant")
"""Places that no step writes."""


def places(
    chain: Chain, operands: list[Value], output: DType
) -> tuple[dict[Value, Place], list[Value]]:
    """The place of each value, and for each scratch buffer a value that gives its size.

    A result reuses the buffer of an operand that is not read afterwards, if it has the same width;
    otherwise that of the kernel's result, if it has; otherwise a free one.
    """
    steps = chain.steps
    last = {value: index for index, step in enumerate(steps) for value in step.operands}
    found = {value: Place("operand", index) for index, value in enumerate(operands)}
    found |= {value: Place("constant", i) for i, (value, _) in enumerate(chain.constants)}
    work: list[Value] = []
    free: list[Place] = [Place("result")]

    def fits(place: Place, value: Value) -> bool:
        if place.kind in KEPT or value.is_mask:
            return False
        if place.kind == "result":
            return value.dtype.bits == output.bits and value.extent == "tile"
        like = work[place.index]
        same = like.dtype.bits == value.dtype.bits and like.extent == value.extent
        return same and not like.is_mask

    for index, step in enumerate(steps):
        done = [found[x] for x in dict.fromkeys(step.operands) if last[x] == index]
        released = [place for place in done if place.kind not in KEPT]
        if index == len(steps) - 1:
            found[step.result] = Place("result")
            continue
        chosen = next((p for p in (*released, *free) if fits(p, step.result)), None)
        if chosen is None:
            chosen = Place("work", len(work))
            work.append(step.result)
        free = [place for place in (*released, *free) if place != chosen]
        found[step.result] = chosen
    return found, work
