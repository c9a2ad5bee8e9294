"""Float rows split into int8 or int4 digits, whose products the cube sums exactly.

A row, divided by its largest magnitude, is in [-1, 1]. It is multiplied by a factor and rounded to
an integer, the first digit; the remainder is multiplied by the next factor and rounded to the
second digit, and so on (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2 op_kernel,
*_msd_split_k.h; ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel,
grouped_matmul_antiquant_a16w8_msd.h).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, INT8, Array, DType, RoundMode
from npusim.data.integers import align_up
from npusim.isa import BLOCK_BYTES, Binary, BinaryOp, BlockReduce, Local
from npusim.kernel.plane import REPEAT, Plane, by_column, spread_rows
from npusim.kernel.repeats import in_reach
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView

__all__ = [
    "EIGHT_BITS",
    "FOUR_BITS",
    "DigitRows",
    "DigitSplitter",
    "Scheme",
    "away",
    "fitted",
    "pair_sum",
]

F32 = np.float32


@dataclass(frozen=True, slots=True)
class Scheme:
    """The type of the digits, and the factor of each."""

    dtype: DType
    factors: tuple[float, ...]

    @property
    def terms(self) -> int:
        """Number of digits per element."""
        return len(self.factors)

    @property
    def weights(self) -> tuple[float, ...]:
        """The factor of each digit that undoes its scaling, in float32."""
        product, found = F32(1), []
        for factor in self.factors:
            product = product * F32(factor)
            found.append(float(F32(1) / product))
        return tuple(found)

    def split(self, rows: Array, largest: Array) -> list[Array]:
        """The digits of float32 *rows* `(..., k)`, whose *largest* magnitudes are `(..., 1)`."""
        rest, found = rows / largest * F32(self.factors[0]), []
        for following in (*self.factors[1:], 0.0):
            rounded = away(rest)
            found.append(fitted(rounded))
            rest = (rest - rounded) * F32(following)
        return found


EIGHT_BITS = Scheme(INT8, (127.0, 254.0))
FOUR_BITS = Scheme(INT4, (7.49, 14.98, 14.98))


def away(values: Array) -> Array:
    """float32 rounded to integers, ties away from zero (CAST_ROUND)."""
    exact = values.astype(np.float64)
    return np.asarray((np.trunc(exact + np.copysign(0.5, exact)) + 0.0).astype(F32))


def fitted(values: Array) -> Array:
    """Integral float32 values as the cube receives them: saturated to int8, with NaN as 0."""
    return np.asarray(np.clip(np.where(np.isnan(values), 0, values), -128, 127).astype(np.int64))


def pair_sum(values: Array) -> Array:
    """Add neighbours, then neighbouring sums, and so on: `(..., 2^j)` to `(..., 1)`.

    BlockReduceSum adds 8 elements this way, and two of them 64 (asc-devkit, ReduceDataBlock.md).
    """
    while values.shape[-1] > 1:
        values = values[..., 0::2] + values[..., 1::2]
    return values


# ---- vector cores: x in digits ----


class DigitRows:
    """Buffers of a vector core for planes of rows, and the steps that write their digits."""

    def __init__(
        self,
        core: VectorCore,
        x: DType,
        scheme: Scheme,
        max_rows: int,
        columns: int,
        whole: RoundMode = "none",
    ) -> None:
        """Claim room for *max_rows* x *columns*, a multiple of 64.

        *whole* is the rounding mode of the cast to digits, which are already integers.
        """
        self.core, self.scheme, self.whole = core, scheme, whole
        size = max_rows * columns
        self.x_in = core.vecin(x, size)
        self._plane, self._work = core.tile(FLOAT32, size), core.tile(FLOAT32, size)
        # One block per row also fits here, before it is used for halves.
        self._half = core.tile(FLOAT16, max(size, BLOCK_BYTES // 2 * align_up(max_rows, 8)))
        self.digits_out = core.vecout(scheme.dtype, size)

    def work(self, plane: Plane) -> Plane:
        """A second plane of the same size; everything here except `divide` writes to it."""
        return Plane(self._work, plane.rows, plane.columns)

    def store_digit(self, plane: Plane, digit: GmView) -> Plane:
        """Round *plane*, ties away from zero, and store it; return the rounded plane.

        Rows of *digit* are those of the plane, or one row contains all of them: see `load`.
        """
        core, size = self.core, plane.rows * plane.columns
        rounded, half = self.work(plane), self._half[:size]
        core.cast(rounded.whole(), plane.whole(), "round")
        # There is no cast from float32 to int8 or int4: through fp16, which is exact for digits.
        core.cast(half, rounded.whole(), self.whole)
        tile = self.digits_out.alloc()
        core.cast(tile[:size], half, self.whole)
        core.store_rows(self.digits_out, tile, digit, size // digit.rows, with_gaps=True)
        return rounded

    def split(self, plane: Plane, *digits: GmView, first: float | str | None = None) -> None:
        """Store the digits of rows in [-1, 1], each digit to its view.

        *first* is a factor, or the register with it, that replaces the first one of the scheme.
        """
        core, whole = self.core, plane.whole()
        # d1 = round(q F1); rest = q F1 - d1; d2 = round(rest F2); and so on
        core.mul(whole, whole, self.scheme.factors[0] if first is None else first)
        rounded = self.store_digit(plane, digits[0])
        for factor, digit in zip(self.scheme.factors[1:], digits[1:], strict=True):
            core.sub(whole, whole, rounded.whole())
            core.mul(whole, whole, factor)
            rounded = self.store_digit(plane, digit)


def reduce_by_halves(core: VectorCore, op: BinaryOp, dst: Plane, src: Plane, count: int) -> Plane:
    """Reduce the first *count* vectors of 64 of each row: lower half `op` upper half, repeatedly.

    With an odd count the last vector is carried to the next round. Returns *dst*, or *src* if there
    is only one vector; its first vectors are the result. Both may be the same plane.
    """
    while count > 1:
        half = count // 2
        if src.rows <= half:
            # One micro-op per row.
            width = half * REPEAT
            for row in range(src.rows):
                lower, upper = src.row(row, width), src.row(row).at(width, width)
                core.emit(Binary(op, dst.row(row, width), lower, upper))
        else:
            # One micro-op for each vector of 64, for all rows at once.
            for index in range(half):
                lower, upper = src.chunk(index), src.chunk(half + index)
                core.emit(*in_reach(Binary(op, dst.chunk(index), lower, upper)))
        core.barrier("vector")
        if count % 2:
            core.copy(dst.chunk(half), src.chunk(count - 1))
        src, count = dst, count - half
    return src


class DigitSplitter(DigitRows):
    """Rows divided by their largest magnitudes and split into digits, with their sums.

    Values of rows (largest magnitudes, sums) are released by `store_values`.
    """

    def __init__(
        self,
        core: VectorCore,
        x: DType,
        scheme: Scheme,
        max_rows: int,
        columns: int,
        *,
        loads_ahead: bool = True,
    ) -> None:
        """Claim room for *max_rows* x *columns*, a multiple of 64.

        *loads_ahead* says whether x of the next plane is loaded as soon as the present one has been
        widened, or only after `split`.
        """
        super().__init__(core, x, scheme, max_rows, columns)
        self.columns, self.loads_ahead = columns, loads_ahead
        self._held: list[Local] = []
        """x of the present plane, while the next one may not be loaded yet."""
        self.values_out = core.vecout(FLOAT32, align_up(max_rows, 8), depth=2)

    def write(
        self,
        sums_first: bool,
        x: GmView,
        rows: int,
        absmax: GmView,
        sums: GmView | None,
        *digits: GmView,
    ) -> None:
        """Write the digits of *x*, a plane of *rows* rows, and two values per row.

        Sums are those of x itself, so they precede the division, and with *sums_first* also the
        largest magnitudes.
        """
        # (rows, columns) fp16 or bf16 -> fp32
        plane = self.load(x, rows)
        if sums is not None and sums_first:
            self.store_values(self.row_sums(plane), sums)
        largest = self.absmax(plane)
        if sums is not None and not sums_first:
            self.store_values(self.row_sums(plane), sums)
        self.divide(plane, largest)
        self.store_values(largest, absmax)
        # (rows, columns) in [-1, 1] -> two or three digits
        self.split(plane, *digits)

    def load(self, x: GmView, rows: int) -> Plane:
        """Load *x* as a plane of *rows* rows in float32, each padded with zeros.

        A row of *x* is a row of the plane, or one row of *x* contains all of them in one burst.
        """
        core, columns = self.core, self.columns
        size, count = rows * columns, x.rows * x.columns // rows
        # (rows, columns) fp16 or bf16 -> fp32, exactly
        loaded = core.load_rows(self.x_in, x, pitch=size // x.rows, with_gaps=True)
        plane = Plane(self._plane, rows, columns)
        core.cast(plane.whole(), loaded[:size])
        if self.loads_ahead:
            self.x_in.free(loaded)
        else:
            self._held.append(loaded)
        # Zeros change neither the largest magnitude nor the sum.
        if count < columns:
            with core.independent():
                for row in range(rows):
                    core.duplicate(plane.row(row).at(count, columns - count), 0.0)
        return plane

    def absmax(self, plane: Plane) -> Local:
        """The largest magnitude of each row."""
        # (rows, columns) -> (rows, 64) by halves -> (rows,)
        work = self.work(plane)
        self.core.abs(work.whole(), plane.whole())
        return self.reduce("max", reduce_by_halves(self.core, "max", work, work, len(plane.chunks)))

    def row_sums(self, plane: Plane) -> Local:
        """The sum of each row by halves."""
        return self.reduce("sum", self.add_halves(plane, len(plane.chunks)))

    def add_halves(self, plane: Plane, count: int) -> Plane:
        """The sum of the first *count* vectors of 64 of each row: see `reduce_by_halves`."""
        return reduce_by_halves(self.core, "add", self.work(plane), plane, count)

    def reduce(self, op: Literal["sum", "max"], plane: Plane, into: Local | None = None) -> Local:
        """One value from the first 64 of each row, by neighbours, written to *into* unless None."""
        core = self.core
        # (rows, 64) -> (rows, 8) -> (rows,)
        partial = self._half.as_dtype(FLOAT32, 8 * plane.rows)
        core.emit(*in_reach(BlockReduce(op, partial, plane.chunk(0))))
        core.barrier("vector")
        values = self.values_out.alloc() if into is None else into
        core.block_reduce(op, values[: plane.rows], partial)
        return values

    def store_values(self, values: Local, view: GmView) -> None:
        """Store one value per row and release its tile."""
        self.core.store_rows(self.values_out, values, view)

    def divide(self, plane: Plane, values: Local) -> None:
        """Divide each row by its value, before *values* is stored."""
        count = align_up(plane.rows, 8)
        # (rows,) -> (rows, 8), one block per row
        blocks = self._half.as_dtype(FLOAT32, 8 * count)
        spread_rows(self.core, blocks, values[:count])
        by_column(self.core, "div", plane, blocks)

    def split(self, plane: Plane, *digits: GmView, first: float | str | None = None) -> None:
        """See :meth:`DigitRows.split`; the next x may be loaded afterwards."""
        super().split(plane, *digits, first=first)
        while self._held:
            self.x_in.free(self._held.pop())
