"""Sums and roundings of the family on whole arrays, in plain numpy.

Rows lie along the last axis. A sum is fp32 throughout, one rounding an addition, and its order is
the kernel's: a template decides which of the two.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npusim.data.dtypes import Array, DType, dtype_of

__all__ = ["element_of", "halving_sum", "lanes_sum", "scaled_root", "sum_of_parts"]

LANES = 64


def lanes_sum(values: Array) -> Array:
    """`(...,)` from `(..., n)`: 64 running sums, then a tree of them."""
    *outer, columns = values.shape
    sums = np.zeros((*outer, LANES), np.float32)
    for start in range(0, columns, LANES):
        part = values[..., start : start + LANES]
        sums[..., : part.shape[-1]] = part + sums[..., : part.shape[-1]]
    return _tree(sums)


def halving_sum(values: Array) -> Array:
    """`(...,)` from `(..., n)`: the upper half onto the lower one until 64 are left, then a tree.

    The first half is the largest power of two in n.
    """
    *outer, columns = values.shape
    if columns <= LANES:
        sums = np.zeros((*outer, LANES), np.float32)
        sums[..., :columns] = values
        return _tree(sums)
    half = 1 << (columns.bit_length() - 1)
    sums = values[..., :half].copy()
    sums[..., : columns - half] += values[..., half:]
    while half > LANES:
        half //= 2
        sums = sums[..., :half] + sums[..., half:]
    return _tree(sums)


def sum_of_parts(add: Callable[[Array], Array], values: Array, part: int) -> Array:
    """`((0 + a) + b) + ...` of what *add* gives for every *part* columns."""
    total = np.zeros(values.shape[:-1], np.float32)
    for start in range(0, values.shape[-1], part):
        total = total + add(values[..., start : start + part])
    return total


def _tree(sums: Array) -> Array:
    """Neighbours added, then neighbours of these, `(...,)` from `(..., 64)`."""
    while sums.shape[-1] > 1:
        sums = sums[..., 0::2] + sums[..., 1::2]
    return np.asarray(sums[..., 0])


def scaled_root(mean_square: Array, epsilon: float) -> Array:
    """`1 / sqrt(mean_square + epsilon)`, three roundings."""
    return np.asarray(np.float32(1) / np.sqrt(mean_square + np.float32(epsilon)))


def element_of(array: Array) -> DType:
    """The type of the elements of *array*."""
    found = dtype_of(array)
    assert found is not None
    return found
