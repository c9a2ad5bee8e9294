"""Steps that the gates share: sums in their order, and a softmax or sigmoid of a row."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT32, DType
from npusim.data.integers import ceil_div
from npusim.isa import (
    REPEAT_BYTES,
    Binary,
    BinaryScalar,
    Duplicate,
    Local,
    ScalarAlu,
    ScalarLoad,
    Unary,
    WholeReduce,
)
from npusim.isa.scalar import AluOp
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.reduction import Reduction

__all__ = ["Scores", "bits_of"]

TOTAL, LARGEST = "total", "largest"
"""Registers."""


def bits_of(number: float) -> int:
    """*number* as a register holds it, rounded to float32."""
    return int(np.float32(number).view(np.int32)) & (2**32 - 1)


class Scores:
    """What a row of up to *most* numbers of *dtype*, float32 or float16, is normalised with."""

    def __init__(self, builder: Builder, most: int, dtype: DType = FLOAT32) -> None:
        self.builder, self.dtype = builder, dtype
        self.lanes = REPEAT_BYTES * 8 // dtype.bits
        self.reduction = Reduction(builder, most)
        self.partial = builder.claim("ub", dtype.nbytes(ceil_div(most, self.lanes)))
        self.largest = builder.claim("ub", FLOAT32.nbytes(2))
        self.divisor = builder.claim("ub", dtype.nbytes(most))

    def total(self, values: Local) -> None:
        """The sum of *values* `(n,)` to the register TOTAL.

        ReduceSum of a count of elements: a tree in each repeat, and one repeat after the other
        (asc-devkit, ReduceSum.md). Assumed: that the scalar unit adds up those of several repeats.
        """
        builder, lanes, dtype = self.builder, self.lanes, self.dtype
        whole = values.count // lanes
        partial = self.partial.of(dtype, ceil_div(values.count, lanes))
        if whole:
            sums, repeats = partial.at(0, whole), values.at(0, whole * lanes)
            builder.emit(WholeReduce("sum", sums, repeats))
        if rest := values.count - whole * lanes:
            # A result begins at a block: that of the rest has one of its own.
            single = self.largest.of(dtype, 1)
            builder.emit(WholeReduce("sum", single, values.at(whole * lanes, rest)))
        builder.sync("vector", "scalar")
        parts = [partial.at(index, 1) for index in range(whole)]
        if rest:
            parts.append(self.largest.of(dtype, 1))
        builder.emit(ScalarLoad(TOTAL, parts[0]))
        for part in parts[1:]:
            add: AluOp = "f32_add" if dtype is FLOAT32 else "f16_add"
            builder.emit(ScalarLoad("part", part), ScalarAlu(add, TOTAL, TOTAL, "part"))
        builder.sync("scalar", "vector")

    def sigmoid(self, dst: Local, values: Local) -> None:
        """`1 / (exp(values * -1) + 1)` to *dst*; *values* `(n,)` is overwritten."""
        builder, ones = self.builder, self.divisor.of(FLOAT32, values.count)
        step(builder, BinaryScalar("mul", values, values, -1.0))
        step(builder, Unary("exp", values, values))
        step(builder, BinaryScalar("add", values, values, 1.0))
        step(builder, Duplicate(ones, 1.0))
        step(builder, Binary("div", dst, ones, values))

    def softmax(self, dst: Local, values: Local) -> None:
        """`e * (1 / sum(e))` with `e = exp(values - max(values))` to *dst*."""
        builder = self.builder
        self.exponential(values, values)
        self.total(values)
        builder.emit(ScalarAlu("f32_div", TOTAL, bits_of(1.0), TOTAL))
        step(builder, BinaryScalar("mul", dst, values, TOTAL))

    def exponential(self, values: Local, wide: Local) -> None:
        """`exp(values - max(values))` in place; *wide* has the same numbers as float32."""
        builder = self.builder
        self.reduction.find_largest(self.largest, wide)
        builder.sync("vector", "scalar")
        builder.emit(
            ScalarLoad(LARGEST, self.largest.of(FLOAT32, 1)),
            ScalarAlu("f32_mul", LARGEST, LARGEST, bits_of(-1.0)),
        )
        if self.dtype is not FLOAT32:
            builder.emit(ScalarAlu("f32_to_f16", LARGEST, LARGEST))
        step(builder, BinaryScalar("add", values, values, LARGEST))
        step(builder, Unary("exp", values, values))

    def divide_by_total(self, values: Local, epsilon: float | None = None) -> None:
        """*values* `(n,)` divided by their sum, and *epsilon* on top of it if it is given."""
        builder, divisor = self.builder, self.divisor.of(self.dtype, values.count)
        self.total(values)
        if epsilon is not None:
            builder.emit(ScalarAlu("f32_add", TOTAL, TOTAL, bits_of(epsilon)))
        step(builder, Duplicate(divisor, TOTAL))
        step(builder, Binary("div", values, values, divisor))
