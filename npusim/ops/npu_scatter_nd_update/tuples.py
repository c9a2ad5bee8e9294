"""Index tuples that become numbers of rows, in the unified buffer.

ops-nn@e5c3fa9 index/scatter_nd_update/op_kernel/arch22. The buffer holds a tuple's numbers and
three words more. Assumed: that the numbers of one dimension come out of the tuples by Gather.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, INT32
from npusim.isa import (
    Binary,
    BinaryScalar,
    Cast,
    Duplicate,
    Gather,
    Local,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.sequences import count_up
from npusim.kernel.views import GmView
from npusim.ops.npu_scatter_nd_update.contract import Problem

__all__ = ["Tuples"]


class Tuples:
    """Writes tiles of row numbers and positions into the workspace."""

    def __init__(self, builder: Builder, p: Problem, most: int, *, is_sorted: bool) -> None:
        self.builder, self.p, self.is_sorted = builder, p, is_sorted
        self.tuples = builder.claim("ub", p.index_type.nbytes(most * len(p.strides)))
        self.places, self.numbers, self.rows = (
            builder.claim("ub", INT32.nbytes(most)) for _ in range(3)
        )

    def write(
        self, indices: GmView, rows: GmView, positions: GmView, first: int, count: int
    ) -> None:
        """The tile of *count* tuples from number *first* on: its *rows* and their *positions*."""
        builder, depth = self.builder, len(self.p.strides)
        here = indices[:, first * depth : (first + count) * depth]
        tuples = self.tuples.of(self.p.index_type, here.columns)
        builder.data_copy(tuples, here.operand)
        builder.sync("mte2", "vector")
        if self.p.index_type is not INT32:
            narrow = self.tuples.of(INT32, here.columns)
            step(builder, Cast(narrow, tuples, "none"))
            tuples = narrow
        numbers = self._linear(tuples, count)
        if self.is_sorted:
            keys = self.numbers.of(FLOAT32, count)
            step(builder, Cast(keys, numbers, "none"))
            step(builder, Cast(numbers, keys, "rint"))
        places = self._steps(count, first, 1)
        builder.sync("vector", "mte3")
        there = slice(first, first + count)
        builder.data_copy(rows[:, there].operand, numbers)
        builder.data_copy(positions[:, there].operand, places)
        # Before the next tile comes.
        builder.barrier()

    def _linear(self, tuples: Local, count: int) -> Local:
        """The number of the row of each of *tuples* `(count, a)`."""
        builder, strides = self.builder, self.p.strides
        if len(strides) == 1:
            return tuples
        rows, numbers = self.rows.of(INT32, count), self.numbers.of(INT32, count)
        step(builder, Duplicate(rows, 0))
        places = self._steps(count, 0, INT32.nbytes(len(strides)))
        for axis, stride in enumerate(strides):
            if axis:
                step(builder, BinaryScalar("add", places, places, INT32.nbytes(1)))
            step(builder, Gather(numbers, tuples, places))
            step(builder, BinaryScalar("mul", numbers, numbers, stride))
            step(builder, Binary("add", rows, rows, numbers))
        return rows

    def _steps(self, count: int, first: int, each: int) -> Local:
        """*first*, *first* + *each*, ..., *count* numbers."""
        places = self.places.of(INT32, count)
        count_up(self.builder, places, first, each)
        return places
