"""The first and the last stage of msd multicore, on a vector core."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32, DType
from npusim.data.integers import align_up
from npusim.isa import Binary, BinaryScalar, Cast, Global, Local, ScalarAlu, ScalarLoad
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.plane import REPEAT, Plane, by_column, by_row, multiply_add, spread_rows
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits import DigitStage
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_columns import Columns

__all__ = ["Finish", "RowSplit"]

FIRST, SECOND = 127.499, 127.499**2 * 2
"""Factors of the digits; the product is formed in double and rounded when it is used."""
UNDO_FIRST, UNDO_SECOND = (float(np.float32(1) / np.float32(x)) for x in (FIRST, SECOND))
ONE_BITS = 0x3F80_0000
"""1.0 as the scalar unit sees it."""
DIVIDED_K = 128
"""From here on a row is multiplied by the reciprocal of its largest magnitude."""
HALVED_K = 4096
"""From here on a row is added up by halves."""
CALL_ROWS = 64
"""Rows of the output for which parameters are loaded once."""


class RowSplit:
    """Two digits, the largest magnitude and the sum of a row of x at a time."""

    def __init__(self, builder: Builder, p: Problem, digit: DType) -> None:
        self._builder, self._f = builder, p.traits
        self._element = p.x.element
        self._wide = align_up(p.traits.k, REPEAT)
        self._is_precise = p.choice.form == "multicore_hp"
        self._stage = DigitStage(builder, p.x.element, digit, 1, self._wide)
        self._first = builder.claim("ub", FLOAT32.nbytes(8))

    def row(self, row: int) -> None:
        """Split row *row*."""
        number = FLOAT32.nbytes(row)
        shifts = {
            "x": self._element.nbytes(row * self._f.k),
            "digits": row * self._f.k,
            "most": number,
            "sums": number,
        }
        self._builder.call("row", shifts, self._row)

    def _row(self) -> None:
        builder, stage, k = self._builder, self._stage, self._f.k
        place = Global("x", 0, self._element.nbytes(k))
        plane = stage.take(place, 1, self._wide, k)
        most = stage.largest(plane)
        if not self._is_precise:
            self._store_sum(stage.reduce("sum", self._row_sum(plane)))
        self._normalise(plane, most)
        whole, work = plane.whole(), stage.work(plane)
        step(builder, BinaryScalar("mul", work.whole(), whole, FIRST))
        undone = stage.write(work, Global("digits", 0, k)).whole()
        step(builder, BinaryScalar("mul", undone, undone, UNDO_FIRST))
        step(builder, Binary("sub", whole, whole, undone))
        if self._is_precise:
            stage.reduce("sum", stage.halved(work, k // REPEAT), self._first)
        step(builder, BinaryScalar("mul", whole, whole, SECOND))
        undone = stage.write(plane, Global("digits", self._f.m * k, k)).whole()
        if self._is_precise:
            step(builder, BinaryScalar("mul", undone, undone, UNDO_SECOND))
            self._store_sum(self._precise_sum(stage.halved(work, k // REPEAT), most))
        stage.hand_out(most, Global("most", 0, FLOAT32.nbytes(1)))

    def _store_sum(self, total: Slot) -> None:
        self._stage.hand_out(total, Global("sums", 0, FLOAT32.nbytes(1)))

    def _row_sum(self, plane: Plane) -> Plane:
        """Vectors of 64 added up; a tail of 32 comes last, with zeros beside it."""
        stage, count = self._stage, self._f.k // REPEAT
        if self._f.k >= HALVED_K:
            total = stage.halved(plane, count)
            following = range(count, self._wide // REPEAT)
        else:
            total, following = plane, range(1, self._wide // REPEAT)
        into = stage.work(plane)
        for index in following:
            dst, numbers = into.chunk(0), plane.chunk(index)
            step(self._builder, Binary("add", dst, total.chunk(0), numbers))
            total = into
        return total

    def _precise_sum(self, rest: Plane, most: Slot) -> Slot:
        """The sum of what both digits stand for."""
        total = self._stage.reduce("sum", rest)
        one = total.of(FLOAT32, 1)
        step(self._builder, Binary("add", one, self._first.of(FLOAT32, 1), one))
        step(self._builder, Binary("mul", one, one, most.of(FLOAT32, 1)))
        return total

    def _normalise(self, plane: Plane, most: Slot) -> None:
        builder = self._builder
        if self._f.k < DIVIDED_K:
            self._stage.divide(plane, most)
            return
        builder.sync("vector", "scalar")
        builder.emit(ScalarLoad("most", most.of(FLOAT32, 1)))
        builder.sync("scalar", "vector")
        builder.emit(ScalarAlu("f32_div", "share", ONE_BITS, "most"))
        step(builder, BinaryScalar("mul", plane.whole(), plane.whole(), "share"))


class Finish:
    """Puts the products of both digits together, scales them, and makes them y."""

    def __init__(self, builder: Builder, p: Problem, rows: int, columns: int) -> None:
        """Claim room for *rows* x *columns* at a time."""
        self._builder, self._p, self._rows, self._columns = builder, p, rows, columns
        wide = align_up(columns, REPEAT)
        self._vectors = Columns(builder, p, wide)
        self._high = align_up(rows, 8)
        self._numbers = builder.queue("ub", 2 * FLOAT32.nbytes(self._high), "mte2", "vector")
        self._blocks = builder.claim("ub", 2 * FLOAT32.nbytes(8 * self._high))
        both = 2 * INT32.nbytes(rows * wide)
        self._products = builder.queue("ub", both, "mte2", "vector", 2)
        out = p.output.element.nbytes(rows * wide)
        self._results = builder.queue("ub", out, "vector", "mte3", 2)

    def columns(self, column: int, count: int) -> None:
        """Finish all rows of *count* columns from *column* on."""
        f, out = self._p.traits, self._p.output.element
        step_rows = align_up(CALL_ROWS, self._rows)
        for left, width in pieces(count, self._columns):
            for top, rows in pieces(f.m, step_rows):
                first = top * f.n + column + left
                shifts = {
                    "products": INT32.nbytes(first),
                    "output": out.nbytes(first),
                    "most": FLOAT32.nbytes(top),
                    "sums": FLOAT32.nbytes(top),
                    **self._vectors.shifts(column + left),
                }
                key = ("finish", rows, width)
                self._builder.call(key, shifts, self._writing(rows, width))

    def _writing(self, rows: int, columns: int) -> Callable[[], None]:
        return lambda: self._block(rows, columns)

    def _block(self, rows: int, columns: int) -> None:
        vectors = self._vectors.take(columns)
        for top, count in pieces(rows, self._rows):
            most, sums = self._take_numbers(top, count)
            self._tile(top, count, columns, vectors, most, sums)

    def _take_numbers(self, row: int, count: int) -> tuple[Local, Local]:
        """Largest magnitudes and sums of rows, each as a block of eight."""
        slot, nbytes = self._numbers.alloc(), FLOAT32.nbytes(count)
        upper = FLOAT32.nbytes(self._high)
        for index, name in enumerate(("most", "sums")):
            place = Global(name, FLOAT32.nbytes(row), nbytes)
            self._builder.load(slot.of(FLOAT32, count, index * upper), place)
        self._numbers.enque(slot)
        slot = self._numbers.deque()
        blocks = self._blocks.of(FLOAT32, 16 * self._high)
        spread_rows(self._builder, blocks, slot.of(FLOAT32, 2 * self._high))
        self._numbers.free(slot)
        middle = 8 * self._high
        return blocks.at(0, middle), blocks.at(middle, middle)

    def _tile(
        self,
        row: int,
        count: int,
        columns: int,
        vectors: dict[str, Local],
        most: Local,
        sums: Local,
    ) -> None:
        builder, f, out = self._builder, self._p.traits, self._p.output.element
        wide = align_up(columns, REPEAT)
        line = INT32.nbytes(f.n)
        slot = self._products.alloc()
        half = INT32.nbytes(count * wide)
        for term in (0, 1):
            start = (term * f.m + row) * line
            place = Global("products", start, INT32.nbytes(columns), count, line)
            dst = slot.of(INT32, count * wide, term * half)
            builder.load(dst, place, INT32.nbytes(wide))
        self._products.enque(slot)
        slot = self._products.deque()
        both = slot.of(FLOAT32, 2 * count * wide)
        step(builder, Cast(both, slot.of(INT32, 2 * count * wide), "none"))
        plane, second = Plane(slot, count, wide), Plane(slot, count, wide, half).whole()
        whole = plane.whole()
        step(builder, BinaryScalar("mul", whole, whole, UNDO_FIRST))
        step(builder, BinaryScalar("mul", second, second, UNDO_SECOND))
        step(builder, Binary("add", whole, whole, second))
        by_column(builder, "mul", plane, most)
        if "antiquant_offset" in vectors:
            multiply_add(builder, plane, sums, vectors["antiquant_offset"])
        by_row(builder, "mul", plane, vectors["antiquant_scale"])
        if "bias" in vectors:
            by_row(builder, "add", plane, vectors["bias"])
        result = self._results.alloc()
        step(builder, Cast(result.of(out, count * wide), whole, "round"))
        self._products.free(slot)
        self._results.enque(result)
        result = self._results.deque()
        place = Global("output", out.nbytes(row * f.n), out.nbytes(columns), count, out.nbytes(f.n))
        builder.store(place, result.of(out, count * wide), out.nbytes(wide))
        self._results.free(result)
