"""From scaled float16 sums to the output, on a vector core."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32, DType
from npusim.data.integers import align_up
from npusim.isa import Binary, Cast
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.plane import REPEAT, by_row
from npusim.kernel.views import GmView, load, store
from npusim.ops._nibbles.row_numbers import RowNumbers
from npusim.ops._nibbles.sums import DigitSums, HalfSums

__all__ = ["Finish"]


class Finish:
    """`y((sum [+ number of the column]) * number of the row)`, rounded to nearest even."""

    def __init__(
        self,
        builder: Builder,
        block: tuple[int, int],
        out: DType,
        *,
        digits: bool,
        offset: bool,
    ) -> None:
        """Room for so many rows and columns of the output.

        *digits* says whether a row of sums is two, of high and of low digits, and *offset* whether
        numbers of the columns are added.
        """
        rows, columns = block
        width = align_up(columns, REPEAT)
        self._builder = builder
        self._sums = (DigitSums if digits else HalfSums)(builder, rows, width)
        offset_bytes = FLOAT32.nbytes(width) if offset else 0
        self._offset = builder.queue("ub", offset_bytes, "mte2", "vector")
        self._tokens = RowNumbers(builder, rows)
        self._out = builder.queue("ub", out.nbytes(rows * width), "vector", "mte3", 2)

    def rows(
        self,
        sums: GmView,
        output: GmView,
        offset: GmView | None,
        token: GmView,
        product: tuple[GmView, GmView] | None = None,
    ) -> None:
        """*output* `(rows, columns)`, *offset* `(columns,)`, *token* `(rows,)`.

        To sums of digits the *product* of numbers of the rows and of the columns may be added.
        """
        builder, out = self._builder, output.dtype
        # fp32, rows filled up to whole repeats
        plane = self._sums.take(sums)
        if offset is not None:
            slot = load(builder, self._offset, offset)
            by_row(builder, "add", plane, slot.of(FLOAT32, offset.columns))
            self._offset.free(slot)
        if product is not None:
            assert isinstance(self._sums, DigitSums)
            of_rows, of_columns = product
            work = self._sums.work_like(plane)
            slot = load(builder, self._offset, of_columns)
            self._tokens.product(work, of_rows, slot.of(FLOAT32, of_columns.columns))
            self._offset.free(slot)
            step(builder, Binary("add", plane.whole(), work.whole(), plane.whole()))
        self._tokens.multiply(plane, token)
        result = self._out.alloc()
        count = plane.rows * plane.columns
        step(builder, Cast(result.of(out, count), plane.whole(), "rint"))
        store(builder, self._out, result, output, pitch=plane.columns)
