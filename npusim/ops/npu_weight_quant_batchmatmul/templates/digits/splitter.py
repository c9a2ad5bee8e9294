"""x written in digits, on a vector core: what the msd kernels multiply by the weight.

A plane holds pieces of x, a row each. Each is divided by its largest magnitude, multiplied by a
factor and rounded to a whole number, its first digit; the remainder is multiplied by the next
factor, and so on. Largest magnitudes, sums and digits go to global memory, where the cores that
finish the product find them (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel,
*_msd_split_k.h, *_msd_group.h, *_msd_multicore.h).
"""

from __future__ import annotations

from typing import Literal

from npusim.data.dtypes import FLOAT16, FLOAT32, DType
from npusim.data.integers import align_up
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryOp,
    BinaryScalar,
    BlockReduce,
    Cast,
    Copy,
    Duplicate,
    Unary,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.plane import REPEAT, Plane, by_column, spread_rows
from npusim.kernel.queues import Slot
from npusim.kernel.repeats import in_reach
from npusim.kernel.views import GmView, load, store
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.scheme import Scheme

__all__ = ["DigitSplitter", "reduce_by_halves"]


def reduce_by_halves(builder: Builder, op: BinaryOp, dst: Plane, src: Plane, count: int) -> Plane:
    """Reduce the first *count* vectors of 64 of each row: lower half `op` upper half, repeatedly.

    With an odd number the last vector is kept for the next round. Returns *dst*, or *src* if there
    is but one vector; its first vectors are the result. They may be the same.
    """
    while count > 1:
        half = count // 2
        if src.rows <= half:
            # A micro-op a row.
            width = half * REPEAT
            for row in range(src.rows):
                lower, upper = src.row(row, width), src.row(row).at(width, width)
                builder.emit(Binary(op, dst.row(row, width), lower, upper))
        else:
            # A micro-op for each vector of 64, all rows at once.
            for index in range(half):
                lower, upper = src.chunk(index), src.chunk(half + index)
                builder.emit(*in_reach(Binary(op, dst.chunk(index), lower, upper)))
        builder.barrier("vector")
        if count % 2:
            step(builder, Copy(dst.chunk(half), src.chunk(count - 1)))
        src, count = dst, count - half
    return src


class DigitSplitter:
    """The buffers of a vector core for planes of some size, and what it does to the planes."""

    def __init__(
        self,
        builder: Builder,
        x: DType,
        scheme: Scheme,
        max_rows: int,
        columns: int,
        *,
        loads_ahead: bool = True,
    ) -> None:
        """Claim room for *max_rows* x *columns*, a multiple of 64.

        *loads_ahead* says whether x of the next plane is loaded as soon as that of this one has
        been widened, or only when `split` is done.
        """
        self._builder, self._scheme, self._columns = builder, scheme, columns
        size = max_rows * columns
        self._raw = builder.queue("ub", x.nbytes(size), "mte2", "vector")
        self._loads_ahead = loads_ahead
        self._held: list[Slot] = []
        """x of the plane under way, if the next one is not to be loaded yet."""
        self._plane = builder.claim("ub", FLOAT32.nbytes(size))
        self._work = builder.claim("ub", FLOAT32.nbytes(size))
        # A block for each row also finds room here, before there are halves.
        blocks_bytes = BLOCK_BYTES * align_up(max_rows, 8)
        self._half = builder.claim("ub", max(FLOAT16.nbytes(size), blocks_bytes))
        self._digits = builder.queue("ub", scheme.dtype.nbytes(size), "vector", "mte3")
        number_bytes = FLOAT32.nbytes(align_up(max_rows, 8))
        self._numbers = builder.queue("ub", number_bytes, "vector", "mte3", 2)

    def load(self, x: GmView, rows: int) -> Plane:
        """*x* as a plane of *rows* rows in float32, each filled up with zeros.

        A row of *x* is a row of the plane, or one row of *x* is all of them in one burst.
        """
        builder, columns = self._builder, self._columns
        size, count = rows * columns, x.rows * x.columns // rows
        # (rows, columns) fp16 or bf16 -> fp32, exactly
        slot = load(builder, self._raw, x, pitch=size // x.rows, with_gaps=True)
        plane = Plane(self._plane, rows, columns)
        step(builder, Cast(plane.whole(), slot.of(x.dtype, size), "none"))
        if self._loads_ahead:
            self._raw.free(slot)
        else:
            self._held.append(slot)
        # Zeros change neither the largest magnitude nor the sum.
        if count < columns:
            for row in range(rows):
                builder.emit(Duplicate(plane.row(row).at(count, columns - count), 0.0))
            builder.barrier("vector")
        return plane

    def work(self, plane: Plane) -> Plane:
        """A second plane of the same size; everything here but `divide` writes into it."""
        return Plane(self._work, plane.rows, plane.columns)

    def absmax(self, plane: Plane) -> Slot:
        """The largest magnitude of each row; give the slot back with `store_numbers`."""
        # (rows, columns) -> (rows, 64) by halves -> (rows,)
        work = self.work(plane)
        step(self._builder, Unary("abs", work.whole(), plane.whole()))
        halves = reduce_by_halves(self._builder, "max", work, work, len(plane.chunks))
        return self.reduce("max", halves)

    def row_sums(self, plane: Plane) -> Slot:
        """The sum of each row by halves; give the slot back with `store_numbers`."""
        return self.reduce("sum", self.add_halves(plane, len(plane.chunks)))

    def add_halves(self, plane: Plane, count: int) -> Plane:
        """The first *count* vectors of 64 of each row added up: see `reduce_by_halves`."""
        return reduce_by_halves(self._builder, "add", self.work(plane), plane, count)

    def reduce(self, op: Literal["sum", "max"], plane: Plane, into: Slot | None = None) -> Slot:
        """One number of the first 64 of each row, by neighbours, in the slot *into* if not None.

        Otherwise give the slot back with `store_numbers`.
        """
        # (rows, 64) -> (rows, 8) -> (rows,)
        partial = self._half.of(FLOAT32, 8 * plane.rows)
        self._builder.emit(*in_reach(BlockReduce(op, partial, plane.chunk(0))))
        self._builder.barrier("vector")
        slot = into or self._numbers.alloc()
        step(self._builder, BlockReduce(op, slot.of(FLOAT32, plane.rows), partial))
        return slot

    def store_numbers(self, numbers: Slot, view: GmView) -> None:
        """Store a number of each row and give the slot back."""
        store(self._builder, self._numbers, numbers, view)

    def divide(self, plane: Plane, numbers: Slot) -> None:
        """Divide each row by its number, while *numbers* has not been stored."""
        count = align_up(plane.rows, 8)
        # (rows,) -> (rows, 8), a block for each row
        blocks = self._half.of(FLOAT32, 8 * count)
        spread_rows(self._builder, blocks, numbers.of(FLOAT32, count))
        by_column(self._builder, "div", plane, blocks)

    def store_digit(self, plane: Plane, digit: GmView) -> Plane:
        """Round *plane*, ties away from zero, and store it; returns the rounded numbers.

        Rows of *digit* are those of the plane, or one row is all of them: see `load`.
        """
        builder, size = self._builder, plane.rows * plane.columns
        rounded = self.work(plane)
        step(builder, Cast(rounded.whole(), plane.whole(), "round"))
        # There is no cast from float32 to int8 or int4: by way of fp16, exact for digits.
        half = self._half.of(FLOAT16, size)
        step(builder, Cast(half, rounded.whole(), "none"))
        slot = self._digits.alloc()
        step(builder, Cast(slot.of(digit.dtype, size), half, "none"))
        store(builder, self._digits, slot, digit, size // digit.rows, with_gaps=True)
        return rounded

    def split(self, plane: Plane, *digits: GmView) -> None:
        """Store the digits of rows in [-1, 1], each digit to its view."""
        builder, whole = self._builder, plane.whole()
        # d1 = round(q F1); rest = q F1 - d1; d2 = round(rest F2); and so on
        first, *following = self._scheme.factors
        step(builder, BinaryScalar("mul", whole, whole, first))
        rounded = self.store_digit(plane, digits[0])
        for factor, digit in zip(following, digits[1:], strict=True):
            step(builder, Binary("sub", whole, whole, rounded.whole()))
            step(builder, BinaryScalar("mul", whole, whole, factor))
            rounded = self.store_digit(plane, digit)
        while self._held:
            self._raw.free(self._held.pop())
