"""int8 times int4 on whole arrays in plain numpy, as the kernels round it."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._products import exact_int, scale_of_words

__all__ = ["digit_sums", "scaled_groups", "unpacked"]

F32 = np.float32


def unpacked(words: Array, turned: bool = False) -> Array:
    """int4 in int8, of int32 that hold eight each, the lowest bits first, along the last axis.

    *turned*: along the one before it.
    """
    gm_matrix = words.swapaxes(-1, -2) if turned else words
    nibbles = (gm_matrix[..., None] >> np.arange(0, 32, 4, dtype=np.int32)) & 0xF
    whole = ((nibbles ^ 8) - 8).astype(np.int8)
    whole = whole.reshape(*gm_matrix.shape[:-1], 8 * gm_matrix.shape[-1])
    return whole.swapaxes(-1, -2) if turned else whole


def scaled_groups(a: Array, b: Array, words: Array) -> Array:
    """float16 sums of `(m, k) @ (k, n)` int4: groups of k scaled by *words* `(groups, n)`.

    Each group is rounded to float16, and so is every sum of groups, ascending.
    """
    groups = len(words)
    size = a.shape[-1] // groups
    factors = scale_of_words(words.astype(np.int64))
    total = np.zeros((a.shape[0], b.shape[1]), np.float16)
    with np.errstate(all="ignore"):
        for group in range(groups):
            ks = slice(group * size, (group + 1) * size)
            sums = exact_int(a[:, ks], b[ks]).astype(F32)
            half = (sums * factors[group]).astype(np.float16)
            total = half if group == 0 else total + half
    return total


def digit_sums(x: Array, weight: Array, words: Array) -> Array:
    """`f32(lo) + f32(hi) * 16` of int8 *x* `(m, k)` times int4 *weight* `(k, n)`, both in int8."""
    high, low = np.floor_divide(x, 16), (x & 15) - 8
    hi, lo = (scaled_groups(digit.astype(np.int8), weight, words).astype(F32)
              for digit in (high, low))  # fmt: skip
    with np.errstate(all="ignore"):
        return np.asarray(lo + hi * F32(16))
