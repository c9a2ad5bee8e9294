"""Products of few rows, as fast as one pass over the elements of the other factor.

`product` bounds the errors of BLAS for each element, which pays if a factor is used with many
rows. Here one bound for whole columns of the left and rows of the right factor is used: if it shows
that float64 holds every partial sum exactly, the only rounding is that to fp32 after each block.
Otherwise `product` does the work.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from npusim.data.dtypes import FLOAT32, Array, cast
from npusim.data.product import (
    REACH,
    WIDTHS,
    CubeOrder,
    Double,
    LeftFactor,
    RightFactor,
    Single,
    add_float_product,
)

__all__ = ["FEW_ROWS", "add_few_rows", "few_rows_product"]

FEW_ROWS = 16
"""Rows of one fractal. With more, `product` is faster (measured)."""
_MOST = 2**17
"""Elements of the right factor multiplied at once (measured): a mebibyte of float64."""


def add_few_rows(a: Array, b: Array, out: Single, order: CubeOrder) -> None:
    """Add the products of *a* `(..., m, k)` and *b* `(..., k, n)`, floats of up to 32 bits, to
    *out*. Axes in front are the same of all three."""
    width, k = WIDTHS[order], a.shape[-1]
    step = max(1, _MOST // max(1, b.shape[-1] * width)) * width
    for start in range(0, k, step):
        ks = slice(start, min(start + step, k))
        left, right = a[..., ks], b[..., ks, :]
        with np.errstate(all="ignore"):
            if _is_exact(left, right, out):
                _add(_double(left), _double(right), out, width)
                continue
        for index in np.ndindex(out.shape[:-2]):
            factors = LeftFactor.of(left[index], order), RightFactor.of(right[index], order)
            add_float_product(*factors, out[index], order)


def few_rows_product(
    a: Array, b: Array, bias: Array | None = None, order: CubeOrder = "k16"
) -> Single:
    """*bias* plus `a @ b`, of floats `(..., m, k)` and `(..., k, n)`."""
    outer = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if a.shape[:-2] != b.shape[:-2]:
        a, b = (np.broadcast_to(x, (*outer, *x.shape[-2:])) for x in (a, b))
    total = np.zeros((*outer, a.shape[-2], b.shape[-1]), np.float32)
    if bias is not None:
        total += bias.astype(np.float32)
    add_few_rows(a, b, total, order)
    return total


def _double(values: Array) -> Double:
    """Finite *values* as float64, in their memory order."""
    if values.dtype != np.float16:
        return values.astype(np.float64)
    # numpy converts them one by one, cast many at once.
    lies_across = values.strides[-2] < values.strides[-1]
    in_order = values.swapaxes(-1, -2) if lies_across else values
    wide = cast(in_order, FLOAT32).astype(np.float64)
    return wide.swapaxes(-1, -2) if lies_across else wide


def _is_exact(a: Array, b: Array, out: Single) -> bool:
    """Whether float64 certainly holds every partial sum of *out* and the products of `a @ b`.

    Each is a multiple of the smallest power of two that divides products and *out*, and at most
    *out* plus twice the magnitudes of all products, since rounding may move an accumulator that
    far.
    """
    (peaks, quanta), (others, other_quanta) = _span(a, -2), _span(b, -1)
    sizes = peaks * others
    least = np.min(quanta * other_quanta, where=sizes > 0, initial=np.inf)
    reach = 2 * sizes.sum(axis=-1).max(initial=0)
    if out.any():
        (largest,), (finest,) = _span(out.reshape(-1, 1), 0)
        reach, least = reach + largest, min(least, finest)
    # A NaN exceeds any bound.
    return bool(reach <= REACH * least)


def _span(values: Array, axis: int) -> tuple[Double, Double]:
    """The largest magnitudes along *axis*, and powers of two that divide all non-zero elements."""
    form = _Form.of(values.dtype)
    # Without sign, the bits of floats are in the order of their values, with NaN above inf.
    sizes = values.view(form.bits) & form.magnitude
    peaks, smallest = sizes.max(axis=axis), sizes.min(axis=axis)
    if not smallest.all():
        # Zeros come last.
        sizes -= form.one
        smallest = sizes.min(axis=axis) + form.one
    exponents = smallest.view(values.dtype).astype(np.float64).view(np.int64) & _EXPONENT
    quanta = np.maximum(exponents.view(np.float64) * form.last_bit, form.smallest)
    return peaks.view(values.dtype).astype(np.float64), quanta


_EXPONENT = 0x7FF << 52
"""The exponent bits of a float64."""


class _Form(NamedTuple):
    """The bit format of a float type."""

    bits: np.dtype[Any]
    """The integer type with as many bits."""
    magnitude: Any
    """All bits except the sign."""
    one: Any
    last_bit: float
    """The value of the last bit of 1."""
    smallest: float
    """The smallest positive number."""

    @classmethod
    @cache
    def of(cls, dtype: np.dtype[Any]) -> _Form:
        bits = np.dtype(f"u{dtype.itemsize}")
        info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        magnitude = bits.type(np.iinfo(bits).max >> 1)
        return cls(bits, magnitude, bits.type(1), float(info.eps), float(info.smallest_subnormal))


def _add(a: Double, b: Double, out: Single, width: int) -> None:
    """Add the products of *a* and *b* to *out*, rounding after each block of *width*."""
    *outer, m, k = a.shape
    blocks, rest = divmod(k, width)
    whole, n = k - rest, b.shape[-1]
    sums = np.empty((blocks + bool(rest), *outer, m, n))
    left = np.moveaxis(a[..., :whole].reshape(*outer, m, blocks, width), -2, 0)
    right = np.moveaxis(b[..., :whole, :].reshape(*outer, blocks, width, n), -3, 0)
    np.matmul(left, right, out=sums[:blocks])
    if rest:
        np.matmul(a[..., whole:], b[..., whole:, :], out=sums[-1])
    for block in sums:
        block += out
        out[...] = block
    out += np.float32(0)
