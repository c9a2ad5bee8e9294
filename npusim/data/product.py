"""The values of the cube: products of matrices, the same bits on every machine.

Integer products are exact. For fp16 and bf16 the order of the additions inside the cube is not
public; the model is *ascending k, one block at a time: its products and their sum exact, added to
the fp32 accumulator with one rounding to nearest even*. :data:`CubeOrder` is the width of a block.
NaN and inf follow IEEE 754 (asc-devkit, Mmad.md, special values); a zero result is always +0.

BLAS does the work, in an unspecified order. So each route states why the order does not matter:
every partial sum is exact, or the error is bounded, and results that the bound leaves uncertain are
recomputed without error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from npusim.data.blas import one_thread
from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, Array
from npusim.data.int_product import product_shape
from npusim.data.integers import ceil_div

__all__ = [
    "REACH",
    "WIDTHS",
    "CubeOrder",
    "Double",
    "LeftFactor",
    "RightFactor",
    "Single",
    "add_float_product",
    "float_product",
]

CubeOrder = Literal["k16", "k8", "k4", "k1"]
"""How many products the cube sums before it rounds: 16 (one fractal of fp16), 8, 4 or 1."""

WIDTHS = {"k16": 16, "k8": 8, "k4": 4, "k1": 1}

Double = NDArray[np.float64]
Single = NDArray[np.float32]


# ---- floats ----

# A float64 tile and what it is added to stay in the second-level cache (measured).
_TILE_COLUMNS, _TILE_SUMS = 512, 2**15
# A float64 halfway between two fp32 has the first of its 29 low bits set, and no other.
_ABOVE_TIE, _TIE = 35, -(2**63)
_MAGNITUDE = np.int32(2**31 - 1)
"""All bits of an fp32 except its sign."""
REACH = 2.0**53 - 2.0**40
"""Multiples of a power of two that float64 holds, less a margin since bounds were rounded."""
_BLOCKS_AHEAD = 8
"""Blocks that are tested together: their bounds grow slowly enough."""
_NO_ROWS = np.zeros(0, np.intp)


def float_product(a: Array, b: Array, start: Single, order: CubeOrder = "k16") -> Single:
    """*start* plus the product `(..., m, n)` of *a* `(..., m, k)` and *b* `(..., k, n)` in fp32.

    Operands are float16, bfloat16 or float32; *start* is float32 and broadcasts to the result.
    Raises TypeError or ValueError on other operands.
    """
    who = "product.float_product"
    if order not in WIDTHS:
        known = ", ".join(WIDTHS)
        raise ValueError(f"{who}: order must be one of {known}, not {order!r}; use one of these")
    shape = product_shape(who, a, b, (FLOAT16, BFLOAT16, FLOAT32))
    if start.dtype != np.float32:
        raise TypeError(f"{who}: start must be float32, not {start.dtype}; convert it first")
    out = np.empty(shape, np.float32)
    try:
        out[...] = start
    except ValueError:
        raise ValueError(
            f"{who}: start must broadcast to {shape}, not {start.shape}; give it that shape"
        ) from None
    if b.ndim == 2:
        left = LeftFactor.of(a.reshape(math.prod(shape[:-1]), a.shape[-1]), order)
        whole = out.reshape(left.values.shape[0], shape[-1])
        add_float_product(left, RightFactor.of(b, order), whole, order)
        return out
    a = np.broadcast_to(a, (*shape[:-1], a.shape[-1]))
    b = np.broadcast_to(b, (*shape[:-2], *b.shape[-2:]))
    for index in np.ndindex(shape[:-2]):
        left, right = LeftFactor.of(a[index], order), RightFactor.of(b[index], order)
        add_float_product(left, right, out[index], order)
    return out


def add_float_product(left: LeftFactor, right: RightFactor, out: Single, order: CubeOrder) -> None:
    """Add the product of *left* `(m, k)` and *right* `(k, n)` to *out* `(m, n)`.

    Both must have been made for *order*.
    """
    with np.errstate(all="ignore"), one_thread():
        _accumulate(left, right, out, WIDTHS[order])
        out += np.float32(0)
        out[np.isnan(out)] = np.nan


@dataclass(frozen=True, slots=True)
class LeftFactor:
    """A left factor `(m, k)` in float64, padded with zeros to whole blocks of k."""

    values: Double
    quanta: Double
    """`(k, m)`: at most a power of two that divides the element; inf for zero."""
    finite: bool

    @classmethod
    def of(cls, values: Array, order: CubeOrder) -> LeftFactor:
        """From floats `(m, k)`."""
        filled, sizes, finite = _filled(values, 1, WIDTHS[order])
        return cls(filled, np.ascontiguousarray(_quanta(sizes).T), finite)

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return self.values.nbytes + self.quanta.nbytes

    def sizes(self, rows: slice) -> Double:
        """Magnitudes in *rows*, with 0 for inf and NaN."""
        sizes = np.abs(self.values[rows])
        if not self.finite:
            np.copyto(sizes, 0, where=~np.isfinite(sizes))
        return sizes


@dataclass(frozen=True, slots=True)
class RightFactor:
    """A right factor `(k, n)` in float64, padded with zeros to whole blocks of k."""

    values: Double
    peaks: Double
    """`(tiles, k)`: the largest magnitude in the columns of each tile, without inf and NaN."""
    quanta: Double
    """`(tiles, k)`: at most a power of two that divides all of these columns."""
    finite: bool

    @classmethod
    def of(cls, values: Array, order: CubeOrder) -> RightFactor:
        """From floats `(k, n)`."""
        filled, sizes, finite = _filled(values, 0, WIDTHS[order])
        starts = range(0, values.shape[1], _TILE_COLUMNS)
        tiles = [slice(start, start + _TILE_COLUMNS) for start in starts]
        quanta = _quanta(sizes)
        peaks = np.array([sizes[:, tile].max(axis=1) for tile in tiles])
        return cls(filled, peaks, np.array([quanta[:, tile].min(axis=1) for tile in tiles]), finite)

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return self.values.nbytes + self.peaks.nbytes + self.quanta.nbytes


def _filled(values: Array, k_axis: int, width: int) -> tuple[Double, Double, bool]:
    """*values* in whole blocks, magnitudes without inf and NaN, and whether all are finite."""
    shape = list(values.shape)
    shape[k_axis] = ceil_div(shape[k_axis], width) * width
    filled = np.zeros(shape)
    with np.errstate(all="ignore"):
        filled[: values.shape[0], : values.shape[1]] = values
        sizes = np.abs(filled)
        finite = math.isfinite(sizes.sum())
    if not finite:
        np.copyto(sizes, 0, where=~np.isfinite(sizes))
    return filled, sizes, finite


def _quanta(sizes: Double) -> Double:
    """At most the lowest set bit of each element; inf for zero."""
    bits = sizes.view(np.int64)
    # Subtracting one from the pattern clears the lowest set bit: the difference is that bit. A
    # power of two has no bit set in its significand and loses one of its exponent: the difference
    # is then at least half of it.
    rest = bits - 1
    rest &= bits
    gaps = np.subtract(sizes, rest.view(np.float64), out=rest.view(np.float64))
    gaps *= 0.5
    np.copyto(gaps, math.inf, where=gaps == 0)
    return gaps


def _accumulate(left: LeftFactor, right: RightFactor, out: Single, width: int) -> None:
    """Add the product of *left* `(m, k)` and *right* `(k, n)` to *out*, tile by tile."""
    if not left.values.size or not right.values.size:
        return
    starts = np.abs(out).astype(np.float64)
    np.copyto(starts, 0, where=~np.isfinite(starts))
    finest = float(_quanta(starts).min()) if starts.any() else math.inf
    finite = left.finite and right.finite
    height = _TILE_SUMS // min(out.shape[1], _TILE_COLUMNS)
    for number, column in enumerate(range(0, out.shape[1], _TILE_COLUMNS)):
        columns = slice(column, column + _TILE_COLUMNS)
        peaks = right.peaks[number].reshape(-1, width)
        for row in range(0, out.shape[0], height):
            rows = slice(row, row + height)
            sizes = left.sizes(rows).reshape(-1, *peaks.shape)
            bounds = np.einsum("ibw,bw->bi", sizes, peaks)
            products = left.quanta[:, rows] * right.quanta[number][:, None]
            quanta = products.reshape(*peaks.shape, -1).min(axis=1)
            largest = starts[rows, columns].max(axis=1)
            tile = _Tile.of(bounds, quanta, largest, finest, width, finite)
            tile.run(left.values[rows], right.values[:, columns], out[rows, columns])


@dataclass(frozen=True, slots=True)
class _Tile:
    """Error bounds for one tile of *rows* x *columns*, known in advance.

    Let u = 2^-53, P the sum of |a b| over a block, q a power of two that divides each a b, and
    T = |start| + 2 x the P of all blocks so far. |accumulator| <= T: rounding to nearest moves an
    fp32 number by no more than twice what is added to it.

    *Exact*: q also divides the accumulator, since rounding only clears low bits. While T <= 2^53 q
    for the least q so far of a row, float64 holds every partial sum of that row; only the one
    rounding to fp32 remains. T and q may start at any block, with the accumulator at that point.

    *Ties*: while P <= 2^53 q the block's sum is exact, so only adding the accumulator rounds.
    Double rounding is wrong only if the first rounding produces a tie of the second. (Ties of fp32
    subnormals are elsewhere; but if 2^-149 divides all, no such sum rounds at all.)

    *Doubtful* rows are the rest. The error of BLAS is at most (w - 1) u P (1 + tiny), that of
    adding the accumulator u T, and of adding or subtracting a tolerance e u (T + e). If e >= all
    these, the true sum lies between the two candidates before they are rounded; rounding is
    monotone, so if both give the same fp32 number, it is the right one. 2 u (w P + 2 T) is twice
    what is needed.
    """

    bounds: Double
    """P, `(blocks, rows)`"""
    quanta: Double
    """q, `(blocks, rows)`"""
    finest: Double
    """`(blocks, rows)`: the smallest q so far."""
    doubtful: NDArray[np.bool_]
    """`(blocks, rows)`"""
    is_any_doubtful: bool
    tolerances: Double
    """`(blocks, rows, 1)`"""
    width: int
    finite: bool

    @classmethod
    def of(
        cls,
        bounds: Double,
        quanta: Double,
        starts: Double,
        finest_start: float,
        width: int,
        finite: bool,
    ) -> _Tile:
        """From P and q `(blocks, rows)`, and the largest |start| of each row."""
        # (blocks, rows): a bound of every partial sum up to the end of each block
        largest = starts + 2 * np.cumsum(bounds, axis=0)
        finest = np.minimum(np.minimum.accumulate(quanta, axis=0), finest_start)
        doubtful = (bounds > 2.0**52 * quanta) | (finest < 2.0**-149)
        tolerances = 2.0**-52 * (width * bounds + 2 * largest)
        is_any = bool(doubtful.any())
        return cls(bounds, quanta, finest, doubtful, is_any, tolerances[:, :, None], width, finite)

    def run(self, a: Double, b: Double, out: Single) -> None:
        """Add the product to *out*, which is a window of the result."""
        total = out.copy()
        sums, wide = np.empty((2, *out.shape))
        inexact: list[NDArray[np.intp]] = []
        for block in range(len(self.bounds)):
            ks = slice(block * self.width, (block + 1) * self.width)
            np.matmul(a[:, ks], b[ks], out=sums)
            if not self.finite:
                _restore_nonfinite(a[:, ks], b[ks], sums)
            np.add(sums, total, out=wide)
            if not inexact:
                inexact = self._inexact(block, total)
            rows = inexact.pop()
            doubtful = rows[self.doubtful[block, rows]] if self.is_any_doubtful else _NO_ROWS
            if 2 * doubtful.size > len(total):
                # Bounds hold for all rows, and without a selection nothing is copied.
                total = _settled(a[:, ks], b[ks], total, wide, self.tolerances[block])
                continue
            fixed = _ties(rows, total, sums, wide) if rows.size else None
            if doubtful.size:
                tolerances = self.tolerances[block, doubtful]
                given = a[doubtful, ks], b[ks], total[doubtful], wide[doubtful]
                settled = _settled(*given, tolerances)
            np.copyto(total, wide, casting="same_kind")
            if fixed is not None:
                row, column, values = fixed
                total[row, column] = values
            if doubtful.size:
                total[doubtful] = settled
        out[...] = total

    def _inexact(self, block: int, total: Single) -> list[NDArray[np.intp]]:
        """The rows, per block, of which float64 may not hold a partial sum; the last block first.

        *total* is the accumulator before *block*, the first of these blocks.
        """
        blocks = slice(block, block + _BLOCKS_AHEAD)
        # Without sign, the bits of floats are in the order of their values, with NaN above inf.
        sizes = (total.view(np.int32) & _MAGNITUDE).max(axis=1).view(np.float32)
        largest = sizes + 2 * np.cumsum(self.bounds[blocks], axis=0)
        # A NaN exceeds any bound.
        beyond = ~(largest <= REACH * self.finest[blocks])
        rows = np.flatnonzero(beyond.any(axis=0))
        if rows.size:
            # Rounding has cleared low bits, so the accumulator may now be a multiple of a larger
            # power.
            now = _quanta(np.abs(total[rows]).astype(np.float64)).min(axis=1)
            finest = np.minimum(np.minimum.accumulate(self.quanta[blocks, rows], axis=0), now)
            beyond[:, rows] = ~(largest[:, rows] <= REACH * finest)
        is_any = beyond.any(axis=1)
        return [
            np.flatnonzero(of_block) if is_there else _NO_ROWS
            for of_block, is_there in zip(beyond[::-1], is_any[::-1], strict=True)
        ]


def _ties(
    rows: NDArray[np.intp], start: Single, sums: Double, wide: Double
) -> tuple[NDArray[np.intp], NDArray[np.intp], Single] | None:
    """Row, column and right value where float64 lost part of a tie in *rows*; None if nowhere.

    *sums* is one block's product by BLAS, *wide* its sum with *start* in float64.
    """
    ties = np.flatnonzero(wide[rows].view(np.int64) << _ABOVE_TIE == _TIE)
    if not ties.size:
        return None
    row, column = np.divmod(ties, wide.shape[1])
    row = rows[row]
    near, rest = _two_sum(start[row, column].astype(np.float64), sums[row, column])
    return (row, column, _to_single(near, rest)) if rest.any() else None


def _settled(a: Double, b: Double, start: Single, wide: Double, tolerances: Double) -> Single:
    """*start* plus one block's product; *wide* is within *tolerances* of it in each row."""
    low, high = (wide - tolerances).astype(np.float32), (wide + tolerances).astype(np.float32)
    uncertain = np.flatnonzero(low.view(np.int32) != high.view(np.int32))
    if uncertain.size:
        i, j = np.divmod(uncertain, wide.shape[1])
        high[i, j] = _rounded_sums(np.column_stack([start[i, j], a[i] * b[:, j].T]))
    return high


def _restore_nonfinite(a: Double, b: Double, sums: Double) -> None:
    """Compute rows and columns with inf or NaN by plain sums, as some BLAS skip products with zero.

    Each of these sums is inf or NaN, in any order.
    """
    rows, columns = ~np.isfinite(a).all(axis=1), ~np.isfinite(b).all(axis=0)
    sums[rows] = np.einsum("ik,kj->ij", a[rows], b)
    sums[:, columns] = np.einsum("ik,kj->ij", a, b[:, columns])


def _two_sum(x: Double, y: Double) -> tuple[Double, Double]:
    """The rounded sum and its error: together they are ``x + y`` (Knuth)."""
    total = x + y
    back = total - x
    return total, (x - (total - back)) + (y - back)


def _to_single(total: Double, rest: Double) -> Single:
    """``total + rest`` with one rounding, if *total* is the nearest float64."""
    # Rounded to odd, 53 bits are enough to tell on which side of any fp32 tie the sum lies.
    even = (total.view(np.int64) & 1) == 0
    neighbour = np.nextafter(total, np.copysign(np.inf, rest))
    return cast(Single, np.where(even & (rest != 0), neighbour, total).astype(np.float32))


def _extracted(terms: Double, sigma: Double) -> tuple[Double, Double]:
    """The bits of *terms* above 2^-53 *sigma*, as their sum, and the remainders.

    *sigma* is a power of two, at least 32 times each of up to 30 terms: no addition here rounds
    (Rump, Ogita, Oishi, "Accurate floating-point summation part I").
    """
    high = (terms + sigma) - sigma
    return high.sum(axis=1), terms - high


def _rounded_sums(terms: Double) -> Single:
    """The sum of each row of *terms*, all finite, with a single rounding to fp32."""
    _, exponents = np.frexp(np.abs(terms).max(axis=1, keepdims=True))
    sigma = np.ldexp(1.0, exponents + 5)
    upper, below = _extracted(terms, sigma)
    lower, below = _extracted(below, sigma * 2.0**-48)
    total, rest = _two_sum(upper, lower)
    for row in np.flatnonzero(below.any(axis=1)):
        numbers = terms[row].tolist()
        total[row] = math.fsum(numbers)
        rest[row] = math.fsum([*numbers, -total[row]])
    return _to_single(total, rest)
