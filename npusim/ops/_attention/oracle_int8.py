"""The results of the attention kernels with int8 keys and values: see `oracle`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import Array
from npusim.ops._attention.oracle_sums import (
    F32,
    Multiply,
    Single,
    State,
    Tiles,
    away,
    row_sums,
    softmax,
)
from npusim.ops._attention.problem import Attention, Scales
from npusim.ops._matmul_oracle import exact_int

LOWEST_OF_DIGITS = F32(-2e38)
"""Initial value of row maxima in IFA."""
LOWEST_HALF = -65504
"""Replaces a hidden fp16 score in IFA-ATB."""
FIRST, NEXT = F32(127), F32(254)
"""Factors before the first digit, and of the remainder before the next one."""


def half_piece(
    a: Attention,
    arrays: Mapping[str, Array],
    place: tuple[int, int],
    q: Array,
    kv: tuple[Array, Array],
    hidden: NDArray[np.bool_],
    multiply: Multiply,
) -> Callable[[Tiles], State]:
    """IFA-ATB: int8 keys and values are dequantised; scores are fp16.

    *place* is the request and the head of keys.
    """
    assert a.antiquant is not None
    assert a.antiquant.offsets is not None

    def columns(each: Scales) -> Single:
        first = each.place(*place, 0, a.head_size)
        return np.asarray(arrays[each.name], F32).reshape(-1)[first : first + a.head_size]

    sides = zip(kv, a.antiquant.offsets, (a.antiquant.key, a.antiquant.value), strict=True)
    k, v = (
        ((x.astype(F32) + columns(offset)) * columns(scale)).astype(a.element.numpy)
        for x, offset, scale in sides
    )

    def scores(here: slice) -> Single:
        half = multiply(q, k[here].T).astype(np.float16) * np.float16(a.scale)
        return np.where(hidden[:, here], np.float16(LOWEST_HALF), half).astype(F32)

    def product(here: slice, p: Single) -> Single:
        return multiply(away(p, a.element), v[here])

    return softmax(len(q), scores, product, row_sums, F32(-np.inf), np.float16)


def digit_piece(
    a: Attention, arrays: Mapping[str, Array], place: tuple[int, int], q: Array, k: Array, v: Array
) -> Callable[[Tiles], State]:
    """IFA: products of digits; nothing is hidden."""
    assert a.antiquant is not None
    key, value = a.antiquant.key, a.antiquant.value

    def scale_of(each: Scales, keys: slice) -> Single:
        """One scale, those of columns `(width,)`, or those of *keys* `(keys, 1)`, in fp32."""
        scales = np.asarray(arrays[each.name]).reshape(-1).astype(F32)
        first = each.place(*place, 0, a.head_size)
        count = {"tensor": 1, "channel": a.head_size, "token": each.tokens}[each.per]
        own = scales[first : first + count]
        return own[keys, None] if each.per == "token" else own

    wide = q.astype(F32)
    if key.per != "token":
        wide = wide * scale_of(key, slice(0))
    digits, of_query = _stretched(wide)

    def scores(here: slice) -> Single:
        found = _joined([exact_int(digit, k[here].T) for digit in digits]) * of_query
        if key.per == "token":
            found = found * scale_of(key, here).T
        return np.asarray(found * F32(a.scale))

    def product(here: slice, p: Single) -> Single:
        scales = scale_of(value, here)
        if value.per == "token":
            of_weights, factor = _stretched(p * scales.T)
        else:
            of_weights, factor = _digits(p * FIRST), scales
        return _joined([exact_int(digit, v[here]) for digit in of_weights]) * factor

    return softmax(len(q), scores, product, row_sums, LOWEST_OF_DIGITS)


def _stretched(x: Single) -> tuple[list[Array], Single]:
    """The digits of rows of *x*, and their largest magnitudes `(rows, 1)`."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    return _digits(x * (FIRST / largest)), largest


def _digits(x: Single) -> list[Array]:
    """Both digits of *x*, in [-127, 127]; NaN gives 0."""
    first = _away_to_integers(x)
    second = _away_to_integers((x - first) * NEXT)
    return [np.clip(np.nan_to_num(each, nan=0.0), -128, 127) for each in (first, second)]


def _joined(products: list[Any]) -> Single:
    """The product of a number from the products of both digits."""
    first, second = (each.astype(F32) for each in products)
    return np.asarray((first + second * (F32(1) / NEXT)) * (F32(1) / FIRST))


def _away_to_integers(x: Single) -> Single:
    """Round to integers, ties away from zero."""
    exact = x.astype(np.float64)
    return np.asarray(np.trunc(exact + np.copysign(0.5, exact)), F32)
