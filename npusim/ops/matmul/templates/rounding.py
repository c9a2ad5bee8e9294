"""fp32 sums in global memory that vector cores round to the type of the output, ties to even."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, DType
from npusim.data.integers import align_down, align_up
from npusim.isa import Cast
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.plane import REPEAT
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, load, repeat, store

__all__ = ["Rounder"]


class Rounder:
    """Rounds the rows of one vector core; sums and results are double buffered."""

    def __init__(self, builder: Builder, element: DType) -> None:
        """Claim all of the unified buffer."""
        self._builder = builder
        # Two halves, each with some sums and what becomes of them.
        bytes_each = FLOAT32.nbytes(1) + element.nbytes(1)
        self._count = align_down(builder.room_bytes("ub") // 2 // bytes_each, REPEAT)
        self._sums = builder.queue("ub", FLOAT32.nbytes(self._count), "mte2", "vector", 2)
        self._results = builder.queue("ub", element.nbytes(self._count), "vector", "mte3", 2)

    def write(self, sums: GmView, output: GmView) -> None:
        """`output = sums`, both (rows, columns), as many whole rows at a time as fit."""
        for column, columns in pieces(sums.columns, self._count):
            rows_each = self._count // align_up(columns, REPEAT)
            across = slice(column, column + columns)
            for row, rows in pieces(sums.rows, rows_each):
                here = slice(row, row + rows), across
                repeat(self._builder, self._round, sums[here], output[here])

    def _round(self, sums: GmView, output: GmView) -> None:
        builder, columns = self._builder, align_up(sums.columns, REPEAT)
        # (rows, columns) fp32, rows filled up to whole repeats -> the type of the output
        slot = load(builder, self._sums, sums, pitch=columns)
        result = self._results.alloc()
        count = sums.rows * columns
        step(builder, Cast(result.of(output.dtype, count), slot.of(FLOAT32, count), "rint"))
        self._sums.free(slot)
        store(builder, self._results, result, output, pitch=columns)
