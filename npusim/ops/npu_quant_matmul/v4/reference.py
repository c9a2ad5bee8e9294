"""int8 times int4, and groups of int4, on whole arrays in plain numpy."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._int4_matmul import digit_sums
from npusim.ops._products import exact_int

__all__ = ["groups_of_int4", "int8_times_int4"]


def int8_times_int4(x1: Array, x2: Array, words: Array, offset: Array, tokens: Array) -> Array:
    """`(m, n)` float32 of *x1* `(m, k)` int8 and *x2* `(k, n)`, int4 in int8.

    *words* are `(n,)` or `(groups, n)`, *offset* `(n,)` and *tokens* `(m, 1)`.
    """
    sums = digit_sums(x1, x2, words.reshape(-1, x2.shape[1]))
    with np.errstate(all="ignore"):
        return np.asarray((sums + offset) * tokens)


def groups_of_int4(x1: Array, x2: Array, scale: Array, offset: Array, tokens: Array) -> Array:
    """`(m, n)` float32 of *x1* `(m, k)` and *x2* `(k, n)`, int4 in int8.

    *scale* and *offset* are `(groups, n)`, *tokens* `(m, 1)`.
    """
    size = x1.shape[1] // len(scale)
    total = np.zeros((x1.shape[0], x2.shape[1]), np.float32)
    with np.errstate(all="ignore"):
        for group, (factors, points) in enumerate(zip(scale, offset, strict=True)):
            ks = slice(group * size, (group + 1) * size)
            rows = x1[:, ks].sum(axis=1, keepdims=True, dtype=np.int64).astype(np.float32)
            sums = exact_int(x1[:, ks], x2[ks]).astype(np.float32)
            total = factors * (sums - points.astype(np.float32) * rows) + total
        return np.asarray(tokens * total)
