"""Steps that the gates share: sums in their order, and a softmax or sigmoid of a row."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import ceil_div
from npusim.isa import (
    Binary,
    BinaryScalar,
    Duplicate,
    Local,
    ScalarAlu,
    ScalarLoad,
    Unary,
    WholeReduce,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.kernel.reduction import Reduction

__all__ = ["LANES", "Scores", "bits_of"]

LANES = 64
"""fp32 numbers of a repeat."""
TOTAL, LARGEST = "total", "largest"
"""Registers."""


def bits_of(number: float) -> int:
    """*number* as a register holds it, rounded to float32."""
    return int(np.float32(number).view(np.int32)) & (2**32 - 1)


class Scores:
    """What a row of up to *most* fp32 numbers is normalised with."""

    def __init__(self, builder: Builder, most: int) -> None:
        self.builder = builder
        self.reduction = Reduction(builder, most)
        self.partial = builder.claim("ub", FLOAT32.nbytes(ceil_div(most, LANES)))
        self.largest = builder.claim("ub", FLOAT32.nbytes(2))
        self.divisor: Slot = builder.claim("ub", FLOAT32.nbytes(most))

    def total(self, values: Local) -> None:
        """The sum of *values* `(n,)` to the register TOTAL.

        ReduceSum of a count of elements: a tree in each repeat, and one repeat after the other
        (asc-devkit, ReduceSum.md). Assumed: that the scalar unit adds up those of several repeats.
        """
        builder, whole = self.builder, values.count // LANES
        partial = self.partial.of(FLOAT32, ceil_div(values.count, LANES))
        if whole:
            sums, repeats = partial.at(0, whole), values.at(0, whole * LANES)
            builder.emit(WholeReduce("sum", sums, repeats))
        if rest := values.count - whole * LANES:
            # A result begins at a block: that of the rest has one of its own.
            single = self.largest.of(FLOAT32, 1)
            builder.emit(WholeReduce("sum", single, values.at(whole * LANES, rest)))
        builder.sync("vector", "scalar")
        parts = [partial.at(index, 1) for index in range(whole)]
        if rest:
            parts.append(self.largest.of(FLOAT32, 1))
        builder.emit(ScalarLoad(TOTAL, parts[0]))
        for part in parts[1:]:
            builder.emit(ScalarLoad("part", part), ScalarAlu("f32_add", TOTAL, TOTAL, "part"))
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
        self.reduction.find_largest(self.largest, values)
        builder.sync("vector", "scalar")
        builder.emit(
            ScalarLoad(LARGEST, self.largest.of(FLOAT32, 1)),
            ScalarAlu("f32_mul", LARGEST, LARGEST, bits_of(-1.0)),
        )
        step(builder, BinaryScalar("add", values, values, LARGEST))
        step(builder, Unary("exp", values, values))
        self.total(values)
        builder.emit(ScalarAlu("f32_div", TOTAL, bits_of(1.0), TOTAL))
        step(builder, BinaryScalar("mul", dst, values, TOTAL))

    def divide_by_total(self, values: Local, epsilon: float) -> None:
        """*values* `(n,)` divided by their sum and *epsilon*."""
        builder, divisor = self.builder, self.divisor.of(FLOAT32, values.count)
        self.total(values)
        builder.emit(ScalarAlu("f32_add", TOTAL, TOTAL, bits_of(epsilon)))
        step(builder, Duplicate(divisor, TOTAL))
        step(builder, Binary("div", values, values, divisor))
