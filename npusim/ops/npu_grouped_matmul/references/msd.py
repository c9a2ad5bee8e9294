"""Float rows by int8, as two digits of int8."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.tensor import is_transposed
from npusim.ops._products import exact_int
from npusim.ops.npu_grouped_matmul.msd import blocks_of, splits
from npusim.ops.npu_grouped_matmul.references.numbers import Call, Numbers

__all__ = ["rows"]

F32 = np.float32
CORES = 24
"""Cube cores of an Atlas A2, where nobody says otherwise."""


def rows(x: Array, numbers: Numbers, call: Call) -> Array:
    """*x* `(rows, k)` times the weight `(k, n)`, in the type of x."""
    k, n = numbers.weight.shape
    if not len(x):
        return np.zeros((0, n), x.dtype)
    cores = CORES if call.spec is None else call.spec.cores["aic"].count
    blocks = blocks_of(len(call.xs[0]), k, n, turned=is_transposed(call.weights[0]))
    assert call.counts is not None
    counts = tuple(count for _, count in call.counts)
    piece_k = splits(counts, k, n, blocks, cores)[numbers.place].piece_k
    assert numbers.antiquant_scale is not None
    assert numbers.antiquant_offset is not None
    wide = x.astype(F32)
    with np.errstate(all="ignore"):
        most = np.abs(wide).max(axis=1, keepdims=True)
        p = wide * (F32(127) / most)
        first = _away(p)
        second = _away((p - first) * F32(254))
        c1, c2 = (exact_int(_int8(d), numbers.weight).astype(F32) for d in (first, second))
        c = (c1 + c2 * F32(1 / 254)) * (most / F32(127))
        c = c + numbers.antiquant_offset.astype(F32) * _sums(wide, piece_k)[:, None]
        c = c * numbers.antiquant_scale.astype(F32)
        if numbers.bias is not None:
            c = c + numbers.bias.astype(F32)
        return np.asarray(c.astype(x.dtype))


def _away(values: Array) -> Array:
    """Whole numbers, ties away from zero."""
    whole = np.trunc(values)
    up = np.abs(values - whole) >= F32(0.5)
    return np.asarray(whole + np.where(up, np.copysign(F32(1), values), F32(0)))


def _int8(values: Array) -> Array:
    return np.clip(np.where(np.isnan(values), 0, values), -128, 127).astype(np.int8)


def _sums(values: Array, piece_k: int) -> Array:
    """The sum of each row: of parts, then of these."""
    parts = [_tree(values[:, k : k + piece_k]) for k in range(0, values.shape[1], piece_k)]
    return _tree(np.stack(parts, axis=1))


def _tree(values: Array) -> Array:
    """The sum of each row, 64 numbers as a tree of neighbours, and what comes of them again."""
    while True:
        more = -values.shape[1] % 64
        lanes = np.pad(values, ((0, 0), (0, more))).reshape(len(values), -1, 64)
        while lanes.shape[2] > 1:
            lanes = lanes[:, :, 0::2] + lanes[:, :, 1::2]
        values = lanes[:, :, 0]
        if values.shape[1] == 1:
            return np.asarray(values[:, 0])
