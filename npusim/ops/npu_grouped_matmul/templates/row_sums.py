"""Sums of rows of int8, for weights with an offset: written before the product, added after it.

ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel, grouped_matmul_antiquant_a8w4_msd*.h. Sums are
whole numbers below 2 ** 24, the same in any order. Assumed: that a row is read once more for its
sum, and that repeats are added up by as many levels as it takes.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8
from npusim.data.integers import align_up
from npusim.isa import BLOCK_BYTES, Cast, Duplicate, WholeReduce
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.plane import REPEAT
from npusim.kernel.views import GmView, load, repeat, store

__all__ = ["ROW_SUMS", "RowSums", "sums_of_rows"]

ROW_SUMS = "row_sums"


def sums_of_rows(rows: int) -> GmView:
    """The workspace of them, `(rows,)`."""
    return GmView.vector(ROW_SUMS, FLOAT32, rows)


class RowSums:
    """Buffers for rows of *k* numbers, each there once."""

    def __init__(self, builder: Builder, k: int) -> None:
        self.builder = builder
        self.levels = _levels(k)
        self.x = builder.queue("ub", INT8.nbytes(k), "mte2", "vector")
        self.half = builder.claim("ub", FLOAT16.nbytes(k))
        self.numbers = [builder.claim("ub", FLOAT32.nbytes(count)) for count in self.levels]
        self.out = builder.queue("ub", BLOCK_BYTES, "vector", "mte3")

    def rows(self, x: GmView, index: int, parts: int) -> None:
        """Every *parts*-th row of *x* `(m, k)` from *index* on."""
        for slot, count in zip(self.numbers, self.levels, strict=True):
            # Places that no sum comes to are zero.
            step(self.builder, Duplicate(slot.of(FLOAT32, count), 0.0))
        sums = sums_of_rows(x.rows)
        for row in range(index, x.rows, parts):
            repeat(self.builder, self._row, x[row : row + 1, :], sums[:, row : row + 1])

    def _row(self, x: GmView, total: GmView) -> None:
        builder, k = self.builder, x.columns
        slot = load(builder, self.x, x)
        half = self.half.of(FLOAT16, k)
        step(builder, Cast(half, slot.of(INT8, k), "none"))
        self.x.free(slot)
        step(builder, Cast(self.numbers[0].of(FLOAT32, k), half, "none"))
        out = self.out.alloc()
        for level, count in enumerate(self.levels):
            # (count,) -> (count / 64,)
            is_last = level == len(self.levels) - 1
            result = out if is_last else self.numbers[level + 1]
            values = self.numbers[level].of(FLOAT32, count)
            step(builder, WholeReduce("sum", result.of(FLOAT32, count // REPEAT), values))
        store(builder, self.out, out, total)


def _levels(k: int) -> list[int]:
    """Numbers of each level, whole repeats, until one repeat is left."""
    found = [align_up(k, REPEAT)]
    while found[-1] > REPEAT:
        found.append(align_up(found[-1] // REPEAT, REPEAT))
    return found
