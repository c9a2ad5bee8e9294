"""x written in digits, on a vector core: what the msd kernels multiply by the weight.

A plane holds pieces of x, a row each. Each is divided by its largest magnitude, multiplied by a
factor and rounded to a whole number, its first digit; what is left over is multiplied by the next
factor, and so on. Largest magnitudes, sums and digits go to global memory, where the cores that
finish the product find them (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel,
*_msd_split_k.h, *_msd_group.h, *_msd_multicore.h).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, INT8, DType
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
    Global,
    Unary,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.plane import REPEAT, Plane, by_column, spread_rows
from npusim.kernel.queues import Slot

__all__ = ["EIGHT_BITS", "FOUR_BITS", "DigitStage", "Scheme", "fold"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """The type of digits, and the factor of each."""

    dtype: DType
    factors: tuple[float, ...]

    @property
    def weights(self) -> tuple[float, ...]:
        """What each digit is multiplied by to undo its factors, in float32."""
        product, found = np.float32(1), []
        for factor in self.factors:
            product = product * np.float32(factor)
            found.append(float(np.float32(1) / product))
        return tuple(found)


EIGHT_BITS = Scheme(INT8, (127.0, 254.0))
FOUR_BITS = Scheme(INT4, (7.49, 14.98, 14.98))


def fold(builder: Builder, op: BinaryOp, dst: Plane, src: Plane, count: int) -> Plane:
    """The first *count* vectors of 64 of each row: the lower half `op` the upper half, repeatedly.

    Of an odd number the last is carried along. Returns *dst*, or *src* if there is but one vector;
    its first vectors are the result. They may be the same.
    """
    while count > 1:
        half = count // 2
        if src.rows <= half:
            width = half * REPEAT
            for row in range(src.rows):
                low, high = src.row(row, width), src.row(row).at(width, width)
                builder.emit(Binary(op, dst.row(row, width), low, high))
        else:
            for index in range(half):
                low, high = src.chunk(index), src.chunk(half + index)
                builder.emit(Binary(op, dst.chunk(index), low, high))
        builder.barrier("vector")
        if count % 2:
            step(builder, Copy(dst.chunk(half), src.chunk(count - 1)))
        src, count = dst, count - half
    return src


class DigitStage:
    """The buffers of a vector core for planes of some size, and what it does to the planes."""

    def __init__(self, builder: Builder, x: DType, digit: DType, rows: int, columns: int) -> None:
        """Claim room for *rows* x *columns*, a multiple of 64, of *x* and *digit*."""
        self._builder, self._x, self._digit = builder, x, digit
        size = rows * columns
        self._given = builder.queue("ub", x.nbytes(size), "mte2", "vector")
        self._wide = builder.claim("ub", FLOAT32.nbytes(size))
        self._work = builder.claim("ub", FLOAT32.nbytes(size))
        # A block for each row also finds room here, before there are halves.
        blocks_bytes = BLOCK_BYTES * align_up(rows, 8)
        self._half = builder.claim("ub", max(FLOAT16.nbytes(size), blocks_bytes))
        self._digits = builder.queue("ub", digit.nbytes(size), "vector", "mte3")
        number_bytes = FLOAT32.nbytes(align_up(rows, 8))
        self._numbers = builder.queue("ub", number_bytes, "vector", "mte3", 2)

    def take(self, place: Global, rows: int, columns: int, count: int) -> Plane:
        """Load x as float32: *count* numbers in each row of *columns*, then zeros.

        *place* gives a burst for each row, or all rows in one.
        """
        builder = self._builder
        slot = self._given.alloc()
        given = slot.of(self._x, rows * columns)
        builder.load(given, place, self._x.nbytes(columns))
        self._given.enque(slot)
        slot = self._given.deque()
        plane = Plane(self._wide, rows, columns)
        step(builder, Cast(plane.whole(), given, "none"))
        self._given.free(slot)
        if count < columns:
            for row in range(rows):
                builder.emit(Duplicate(plane.row(row).at(count, columns - count), 0.0))
            builder.barrier("vector")
        return plane

    def work(self, plane: Plane) -> Plane:
        """A second plane of the same size; everything here but `divide` writes into it."""
        return Plane(self._work, plane.rows, plane.columns)

    def largest(self, plane: Plane) -> Slot:
        """The largest magnitude of each row; give the slot back with `hand_out`."""
        work = self.work(plane)
        step(self._builder, Unary("abs", work.whole(), plane.whole()))
        return self.reduce("max", fold(self._builder, "max", work, work, len(plane.chunks)))

    def sums(self, plane: Plane) -> Slot:
        """The sum of each row by halves; give the slot back with `hand_out`."""
        return self.reduce("sum", self.halved(plane, len(plane.chunks)))

    def halved(self, plane: Plane, count: int) -> Plane:
        """The first *count* vectors of 64 of each row added up by halves: see `fold`."""
        return fold(self._builder, "add", self.work(plane), plane, count)

    def reduce(self, op: Literal["sum", "max"], plane: Plane, into: Slot | None = None) -> Slot:
        """One number of the first 64 of each row, by neighbours, *into* a place of its own.

        Without such a place give the slot back with `hand_out`.
        """
        partial = self._half.of(FLOAT32, 8 * plane.rows)
        step(self._builder, BlockReduce(op, partial, plane.chunk(0)))
        slot = into or self._numbers.alloc()
        step(self._builder, BlockReduce(op, slot.of(FLOAT32, plane.rows), partial))
        return slot

    def hand_out(self, numbers: Slot, place: Global) -> None:
        """Store a number of each row and give the slot back."""
        self._numbers.enque(numbers)
        slot = self._numbers.deque()
        self._builder.store(place, slot.of(FLOAT32, place.burst_bytes // FLOAT32.nbytes(1)))
        self._numbers.free(slot)

    def divide(self, plane: Plane, numbers: Slot) -> None:
        """Divide each row by its number, while *numbers* has not been handed out."""
        count = align_up(plane.rows, 8)
        blocks = self._half.of(FLOAT32, 8 * count)
        spread_rows(self._builder, blocks, numbers.of(FLOAT32, count))
        by_column(self._builder, "div", plane, blocks)

    def write(self, plane: Plane, place: Global) -> Plane:
        """Round *plane*, ties away from zero, and store it; returns the rounded numbers.

        *place* gives a burst for each row, or all rows in one.
        """
        builder, size = self._builder, plane.rows * plane.columns
        rounded = self.work(plane)
        step(builder, Cast(rounded.whole(), plane.whole(), "round"))
        half = self._half.of(FLOAT16, size)
        step(builder, Cast(half, rounded.whole(), "none"))
        slot = self._digits.alloc()
        step(builder, Cast(slot.of(self._digit, size), half, "none"))
        self._digits.enque(slot)
        slot = self._digits.deque()
        stored = slot.of(self._digit, size)
        builder.store(place, stored, self._digit.nbytes(plane.columns))
        self._digits.free(slot)
        return rounded

    def split(self, plane: Plane, scheme: Scheme, place: Callable[[int], Global]) -> None:
        """Store the digits of rows that lie in [-1, 1], each where *place* says; see `write`."""
        builder, whole = self._builder, plane.whole()
        first, *following = scheme.factors
        step(builder, BinaryScalar("mul", whole, whole, first))
        rounded = self.write(plane, place(0))
        for index, factor in enumerate(following, start=1):
            step(builder, Binary("sub", whole, whole, rounded.whole()))
            step(builder, BinaryScalar("mul", whole, whole, factor))
            rounded = self.write(plane, place(index))
