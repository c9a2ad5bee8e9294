"""Measures between arrays: by hand, at the corners, and bit by bit."""

from __future__ import annotations

import math
import re

import ml_dtypes
import numpy as np
import pytest

from npusim.explain.comparison import Mismatch, compare

INF, NAN = math.inf, math.nan


def test_measures_by_hand() -> None:
    found = compare(np.float32([[3, 0], [4, 1]]), np.float32([[3, 0], [3, 2]]))
    assert (found.count, found.mismatches, found.not_finite) == (4, 2, 0)
    assert found.cosine == pytest.approx((9 + 12 + 2) / (math.sqrt(26) * math.sqrt(22)), rel=1e-15)
    assert (found.max_abs, found.mean_abs) == (1.0, 0.5)
    assert found.max_relative == 0.5
    assert found.root_mean_square == math.sqrt(0.5)
    assert found.relative_euclidean == pytest.approx(math.sqrt(2 / 22), rel=1e-15)
    # From 1 to 2 there are 2^23 steps of fp32, from 3 to 4 half as many.
    assert found.max_ulps == 2**23
    assert found.worst == (Mismatch((1, 0), 4.0, 3.0, 2**22), Mismatch((1, 1), 1.0, 2.0, 2**23))


def test_equal_arrays_have_nothing_to_tell() -> None:
    values = np.float16([1, -0.0, INF, NAN])
    found = compare(values, np.float16([1, 0.0, INF, NAN]))
    assert (found.mismatches, found.not_finite, found.cosine, found.max_abs) == (0, 0, 1.0, 0.0)
    assert (found.max_ulps, found.worst, found.is_reached) == (0, (), True)


@pytest.mark.parametrize(("a", "b"), [(NAN, 1), (1, NAN), (INF, -INF), (INF, 1)])
def test_what_is_not_finite_on_one_side_comes_first_and_is_a_no(a: float, b: float) -> None:
    found = compare(np.float32([1, a, 2]), np.float32([1, b, 2.0001]))
    assert (found.mismatches, found.not_finite) == (2, 1)
    assert found.worst[0].index == (1,)
    assert found.worst[0].ulps is None
    assert found.max_abs == pytest.approx(1e-4, rel=1e-2)
    assert not found.is_reached


@pytest.mark.parametrize(
    ("a", "b", "reached"),
    [
        ([1.0, 0.0], [1.0, 0.14], True),  # cosine 0.990
        ([1.0, 0.0], [1.0, 0.15], False),  # cosine 0.989, and more than 0.001 apart
        ([1e-3, 0.0], [1e-3, 2e-4], True),  # cosine 0.98, but less than 0.001 apart
        ([1e-5, 0.0], [1e-5, 1e-5], False),  # cosine 0.71
        ([100.0, 0.0], [101.0, 0.0], True),
        ([100.0, 0.0], [101.5, 0.0], False),  # more than 1 apart
    ],
)
def test_the_verdict_has_three_limits(a: list[float], b: list[float], reached: bool) -> None:
    assert compare(np.array(a), np.array(b)).is_reached is reached


@pytest.mark.parametrize(("a", "b", "cosine"), [(0, 0, 1.0), (0, 1, 0.0), (1, 0, 0.0), (2, -2, -1)])
def test_the_cosine_of_zeros(a: float, b: float, cosine: float) -> None:
    found = compare(np.full(3, a, np.float32), np.full(3, b, np.float32))
    assert found.cosine == pytest.approx(cosine, abs=1e-15)
    assert (found.relative_euclidean is None) == (b == 0)


def test_large_numbers_do_not_overflow() -> None:
    assert compare(np.full(4, 1e300), np.full(4, 1e300)).cosine == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_ulps_are_steps_of_the_type(dtype: type) -> None:
    one, zero = np.ones(1, dtype), np.zeros(1, dtype)
    signed = f"i{one.itemsize}"
    near = (one.view(signed) + 3).view(dtype)
    assert compare(one, near).max_ulps == 3
    tiny = (zero.view(signed) + 1).view(dtype)
    assert compare(-tiny, tiny).max_ulps == 2
    assert compare(-zero, zero).mismatches == 0


@pytest.mark.parametrize(
    ("dtype", "a", "b", "ulps"),
    [
        (np.int8, -128, 127, 255),
        (ml_dtypes.int4, -8, 7, 15),
        (np.int64, -(2**63), 2**63 - 1, 2**64 - 1),
        (np.int64, 2**53, 2**53 + 1, 1),
        (np.uint64, 0, 2**64 - 1, 2**64 - 1),
    ],
)
def test_integers_lose_nothing(dtype: type, a: int, b: int, ulps: int) -> None:
    found = compare(np.array([a], dtype), np.array([b], dtype))
    assert (found.max_ulps, found.mismatches) == (ulps, 1)
    assert (found.worst[0].a, found.worst[0].b) == (a, b)


def test_two_types_have_no_ulps() -> None:
    found = compare(np.float16([1, 2]), np.float32([1, 2.5]))
    assert (found.max_ulps, found.dtypes) == (None, ("float16", "float32"))
    assert found.worst == (Mismatch((1,), 2.0, 2.5, None),)


def test_the_ten_worst_are_listed_in_order() -> None:
    b = np.zeros(30)
    a = np.arange(30.0)
    assert [one.index[0] for one in compare(a, b).worst] == list(range(29, 19, -1))


def test_a_single_number_can_be_compared() -> None:
    assert compare(np.float32(1), np.float32(2)).worst[0].index == ()


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((2, 3), (3, 2), "compare: arrays must have the same shape, not (2, 3) and (3, 2); "
                         "reshape one"),
        ((0, 3), (0, 3), "compare: arrays must have elements, not shape (0, 3); compare others"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared(a: tuple[int, ...], b: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        compare(np.zeros(a), np.zeros(b))
