"""What kernel IFA computes, on whole arrays in plain numpy: the oracle.

For the steps see :mod:`npusim.ops._attention.ifa.vector`; what is not said there is as in
:mod:`npusim.ops._attention.fia.oracle`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import Array
from npusim.ops._attention.description import Attention, Scales
from npusim.ops._attention.fia import oracle as fia
from npusim.ops._attention.fia.oracle import State, nearest, row_sums
from npusim.ops._attention.fia.schedule import Schedule
from npusim.ops._products import exact_int

__all__ = ["attend"]

Single = NDArray[np.float32]
F32 = np.float32
FIRST, NEXT = F32(127), F32(254)
LOWEST = F32(-2e38)
"""Where maxima begin."""


def attend(
    a: Attention, query: Array, key: Array, value: Array, scales: Mapping[str, Array], cores: int
) -> Array:
    """The output, flat as it lies in memory; *scales* are the tensors of that name."""
    piece = partial(_piece, a, scales)
    return fia.attend(a, query, key, value, None, cores, piece=piece)[0]


def _scale(
    a: Attention, scales: Mapping[str, Array], each: Scales, place: tuple[int, int], keys: slice
) -> Single:
    """One number, those of columns `(width,)`, or those of *keys* `(keys, 1)`, in fp32."""
    numbers = np.asarray(scales[each.name]).reshape(-1)[each.first :].astype(F32)
    request, head = place
    if each.per == "tensor":
        return numbers[:1]
    if each.per == "channel":
        return numbers.reshape(-1)[head * a.head_size :][: a.head_size]
    return numbers[request * each.tokens :][: each.tokens][keys, None]


def _piece(
    a: Attention,
    scales: Mapping[str, Array],
    plan: Schedule,
    place: tuple[int, int],
    q: Array,
    k: Array,
    v: Array,
    _: NDArray[np.bool_],
    span: tuple[int, int],
) -> State:
    """The tiles of keys of *span*, one after the other; nothing is hidden."""
    assert a.antiquant is not None
    rows, size, both = q.shape[0], plan.sizes.keys, a.antiquant
    largest, total = np.full(rows, LOWEST), np.zeros(rows, F32)
    out = np.zeros((rows, a.head_size), F32)
    scale = F32(a.scale)
    with np.errstate(all="ignore"):
        wide = q.astype(F32)
        if both.key.per != "token":
            wide = wide * _scale(a, scales, both.key, place, slice(0))
        digits, of_query = _stretched(wide)
        for tile in range(*span):
            here = slice(tile * size, min((tile + 1) * size, k.shape[0]))
            scores = _combined([exact_int(digit, k[here].T) for digit in digits]) * of_query
            if both.key.per == "token":
                scores = scores * _scale(a, scales, both.key, place, here).T
            scores = scores * scale
            new = np.maximum(largest, scores.max(axis=1))
            faded = nearest(np.exp, largest - new)
            p = nearest(np.exp, scores - new[:, None])
            total = faded * total + row_sums(p)
            largest = new
            scales_of_values = _scale(a, scales, both.value, place, here)
            if both.value.per == "token":
                of_weights, most = _stretched(p * scales_of_values.T)
                product = _combined([exact_int(digit, v[here]) for digit in of_weights]) * most
            else:
                of_weights = _digits(p * FIRST)
                product = _combined([exact_int(digit, v[here]) for digit in of_weights])
                product = product * scales_of_values
            out = product if tile == span[0] else out * faded[:, None] + product
        return State(largest, total, out / total[:, None])


def _stretched(x: Single) -> tuple[list[Array], Single]:
    """The digits of rows of *x*, and their largest magnitudes `(rows, 1)`."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    return _digits(x * (FIRST / largest)), largest


def _digits(x: Single) -> list[Array]:
    """Both digits of *x*, in [-127, 127]; of what is no number 0."""
    first = _away(x)
    second = _away((x - first) * NEXT)
    return [np.clip(np.nan_to_num(each, nan=0.0), -128, 127) for each in (first, second)]


def _combined(products: list[Any]) -> Single:
    """Products of both digits as that of the number."""
    first, second = (each.astype(F32) for each in products)
    return np.asarray((first + second * (F32(1) / NEXT)) * (F32(1) / FIRST))


def _away(x: Single) -> Single:
    """Whole numbers, ties away from zero."""
    exact = x.astype(np.float64)
    return np.asarray(np.trunc(exact + np.copysign(0.5, exact)), F32)
