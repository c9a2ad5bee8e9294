"""What gates share: sums in their order, and a softmax or sigmoid of a row."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, Array, DType
from npusim.data.integers import ceil_div
from npusim.isa import REPEAT_BYTES, Local, WholeReduce
from npusim.isa.scalar import AluOp
from npusim.kernel import VectorCore
from npusim.kernel.reduction import Reduction

__all__ = ["FLOATS", "NOTHING", "Scores", "descending", "row_sums"]

FLOATS = (FLOAT32, FLOAT16, BFLOAT16)
"""What tokens are made of (ops-transformer@c29bc10, moe: for A2 and A3)."""
NOTHING = float("-inf")
"""The key of what fills a list up."""
TOTAL, LARGEST, PART = "total", "largest", "part"
"""Registers."""


class Scores:
    """What a row of up to *most* elements of *dtype*, float32 or float16, is normalised with."""

    def __init__(self, core: VectorCore, most: int, dtype: DType = FLOAT32) -> None:
        self.core, self.dtype = core, dtype
        self.lanes = REPEAT_BYTES * 8 // dtype.bits
        self.reduction = Reduction(core, most)
        self.partial = core.tile(dtype, ceil_div(most, self.lanes))
        self.largest = core.claim("ub", FLOAT32.nbytes(2))
        self.divisor = core.tile(dtype, most)

    def total(self, values: Local) -> None:
        """The sum of *values* `(n,)` to the register TOTAL.

        ReduceSum of a count of elements: a tree in each repeat, and one repeat after the other
        (asc-devkit, ReduceSum.md). Assumed: that the scalar unit adds up those of several repeats.
        """
        core, lanes = self.core, self.lanes
        whole = values.count // lanes
        parts = [self.partial[index : index + 1] for index in range(whole)]
        if whole:
            core.emit(WholeReduce("sum", self.partial[:whole], values[: whole * lanes]))
        if rest := values.count - whole * lanes:
            # A result begins at a block: that of the rest has one of its own.
            parts.append(self.largest.of(self.dtype, 1))
            core.emit(WholeReduce("sum", parts[-1], values.at(whole * lanes, rest)))
        core.sync("vector", "scalar")
        core.get_value(TOTAL, parts[0])
        add: AluOp = "f32_add" if self.dtype is FLOAT32 else "f16_add"
        for part in parts[1:]:
            core.get_value(PART, part)
            core.alu(add, TOTAL, TOTAL, PART)
        core.sync("scalar", "vector")

    def sigmoid(self, dst: Local, values: Local) -> None:
        """`1 / (exp(values * -1) + 1)` to *dst*; *values* `(n,)` is overwritten."""
        core, ones = self.core, self.divisor[: values.count]
        core.mul(values, values, -1.0)
        core.exp(values, values)
        core.add(values, values, 1.0)
        core.duplicate(ones, 1.0)
        core.div(dst, ones, values)

    def softmax(self, dst: Local, values: Local) -> None:
        """`e * (1 / sum(e))` with `e = exp(values - max(values))` to *dst*."""
        self.exponential(values, values)
        self.total(values)
        self.core.alu("f32_div", TOTAL, 1.0, TOTAL)
        self.core.mul(dst, values, TOTAL)

    def exponential(self, values: Local, wide: Local) -> None:
        """`exp(values - max(values))` in place; *wide* has the same elements as float32."""
        core = self.core
        self.reduction.find_largest(self.largest, wide)
        core.sync("vector", "scalar")
        core.get_value(LARGEST, self.largest.of(FLOAT32, 1))
        core.alu("f32_mul", LARGEST, LARGEST, -1.0)
        if self.dtype is not FLOAT32:
            core.alu("f32_to_f16", LARGEST, LARGEST)
        core.add(values, values, LARGEST)
        core.exp(values, values)

    def divide_by_total(self, values: Local, epsilon: float | None = None) -> None:
        """*values* `(n,)` divided by their sum, and *epsilon* on top of it if it is given."""
        core, divisor = self.core, self.divisor[: values.count]
        self.total(values)
        if epsilon is not None:
            core.alu("f32_add", TOTAL, TOTAL, epsilon)
        core.duplicate(divisor, TOTAL)
        core.div(values, values, divisor)


# ---- the same on whole arrays ----


def row_sums(x: Array) -> Array:
    """Neighbours onto neighbours in 256 bytes of a row, then one such sum after the other."""
    lanes = REPEAT_BYTES // x.itemsize
    total: Array | None = None
    for start in range(0, x.shape[1], lanes):
        part = np.zeros((len(x), lanes), x.dtype)
        columns = x[:, start : start + lanes]
        part[:, : columns.shape[1]] = columns
        while part.shape[1] > 1:
            part = part[:, 0::2] + part[:, 1::2]
        total = part[:, 0] if total is None else total + part[:, 0]
    assert total is not None
    return total


def descending(ranks: Array) -> Array:
    """The places of *ranks* from the largest on, of equal ones the first one first."""
    return np.argsort(-ranks, axis=-1, kind="stable")
