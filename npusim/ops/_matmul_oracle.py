"""Matrix products on whole arrays in plain numpy: the oracle for everything the cube does.

No BLAS is used here, and no error bounds: floats are summed with exact error terms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import Array

__all__ = [
    "IntProduct",
    "cube_product",
    "exact_int",
    "fixpipe_int8",
    "scale_of_words",
    "shifted",
]

Double = NDArray[np.float64]
IntProduct = Callable[[Array, Array], Array]
"""Computes ``a @ b`` of integers exactly."""


def exact_int(a: Array, b: Array) -> NDArray[np.int64]:
    """``a @ b`` of int8 or int4 `(..., m, k)` and `(..., k, n)`, exact."""
    return np.asarray(np.matmul(a.astype(np.int64), b.astype(np.int64)))


def cube_product(
    a: Array,
    b: Array,
    bias: Array | None = None,
    order: Literal["k16", "k8", "k4", "k1"] = "k16",
) -> NDArray[np.float32]:
    """*bias* plus ``a @ b`` in fp32, of fp16 or bf16 `(..., m, k)` and `(..., k, n)`.

    k ascends in blocks of 16 (8, 4, 1); the exact sum of each block is added to the accumulator
    with one rounding to nearest even. Zeros are +0.
    """
    width = int(order[1:])
    left, right = a.astype(np.float64), b.astype(np.float64)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    total = np.zeros((*batch, a.shape[-2], b.shape[-1]), np.float32)
    with np.errstate(all="ignore"):
        if bias is not None:
            total += bias.astype(np.float32)
        for start in range(0, a.shape[-1], width):
            ks = range(start, min(start + width, a.shape[-1]))
            terms = [left[..., :, k, None] * right[..., None, k, :] for k in ks]
            total = _rounded_once([total.astype(np.float64), *terms])
    return total + np.float32(0)


def scale_of_words(words: Array) -> Array:
    """The scale in packed *words*: the upper 19 bits of a float32."""
    return np.asarray((words & 0xFFFF_E000).astype(np.uint32).view(np.float32))


def shifted(sums: Array, words: Array) -> Array:
    """Integer *sums* as int16 after a right shift by 1 to 16, where bit 36 of *words* is set."""
    moved = np.floor_divide(sums, 2 << ((words >> 32) & 0xF))
    return np.where(words >> 36 & 1, np.clip(moved, -(2**15), 2**15 - 1), sums)


def fixpipe_int8(y: Array, words: Array) -> Array:
    """The conversion of the fixpipe: scale, saturate to nine bits, offset, saturate.

    *y* is float32 (QF322B8_PRE) or int32 (REQ8), which *words* may shift before. asc-devkit, the
    page on quantisation on the way out (随路量化.md), and its example scripts.
    """
    if y.dtype.kind == "i":
        y = shifted(y, words).astype(np.float32)
    scaled = y * scale_of_words(words)
    nine = np.rint(np.clip(np.where(np.isnan(scaled), 0, scaled), -256, 255)).astype(np.int64)
    offset = ((words >> 37) & 0x1FF) ^ 0x100
    # Without bit 46 the eight bits are those of uint8.
    is_signed = words >> 46 & 1 == 1
    low, high = np.where(is_signed, -128, 0), np.where(is_signed, 127, 255)
    fitted: Array = np.clip(nine + offset - 0x100, low, high)
    return fitted.astype(np.int16).astype(np.int8)


def _two_sum(x: Double, y: Double) -> tuple[Double, Double]:
    larger = np.abs(x) >= np.abs(y)
    big, small = np.where(larger, x, y), np.where(larger, y, x)
    total = big + small
    return total, small - (total - big)


def _rounded_once(terms: list[Double]) -> NDArray[np.float32]:
    """The sum of *terms* in fp32, computed exactly and rounded once."""
    plain = sum(terms[1:], terms[0])
    finite = np.isfinite(plain)
    # The exact sum is that of the parts: a term is added to the first, its error to the next, and
    # so on with as many parts as necessary.
    parts: list[Double] = []
    for term in terms:
        error = np.where(finite, term, 0.0)
        for place, part in enumerate(parts):
            parts[place], error = _two_sum(part, error)
        if error.any() or not parts:
            parts.append(error)
    # Repeated until nothing changes, each part is the rounding error of the previous ones.
    moving = True
    while moving:
        moving = False
        for place in reversed(range(len(parts) - 1)):
            upper, lower = _two_sum(parts[place], parts[place + 1])
            moving |= bool((upper != parts[place]).any())
            parts[place], parts[place + 1] = upper, lower
    rest = np.zeros_like(parts[0])
    for part in reversed(parts[1:]):
        rest = np.where(part != 0, part, rest)
    odd = np.where(finite, _to_odd(parts[0], rest), plain)
    return odd.astype(np.float32)


def _to_odd(total: Double, rest: Double) -> Double:
    """``total + rest`` in float64, rounded to odd if inexact, so that no later tie is a false one.

    Sylvie Boldo, Guillaume Melquiond, "Emulation of FMA and correctly rounded sums" (2008).
    """
    even = (total.view(np.int64) & 1) == 0
    toward: Any = np.copysign(np.inf, rest)
    return np.asarray(np.where(even & (rest != 0), np.nextafter(total, toward), total))
