"""The numbers of the cube: held against Python's fractions and integers, and against the oracle."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import get_args

import ml_dtypes
import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st

from npusim.data.dtypes import Array
from npusim.data.few_rows import add_few_rows
from npusim.data.int_product import accumulate_int, int_product
from npusim.data.product import CubeOrder, _restore_nonfinite, float_product
from npusim.ops._matmul_oracle import cube_product, exact_int

BF16, FP16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
ORDERS: tuple[CubeOrder, ...] = get_args(CubeOrder)
ZERO = np.zeros((1, 1), np.float32)


# ---- the model, number by number ----


def rounded(exact: Fraction) -> float:
    """*exact* in fp32, ties to even, by integer arithmetic alone."""
    size = abs(exact)
    if not size:
        return 0.0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    quantum = Fraction(2) ** max(exponent - 23, -149)
    steps = round(size / quantum)
    nearest = math.inf if steps * quantum >= 2**128 else float(steps * quantum)
    return math.copysign(nearest, exact) + 0.0


def element(a: list[float], b: list[float], start: float, width: int) -> float:
    total = start
    for first in range(0, len(a), width):
        ks = slice(first, first + width)
        products = [x * y for x, y in zip(a[ks], b[ks], strict=True)]
        plain = sum(products) + total
        if math.isfinite(plain):
            plain = rounded(Fraction(total) + sum(map(Fraction, products)))
        total = plain
    return total


def by_fractions(a: Array, b: Array, start: Array, order: CubeOrder) -> Array:
    rows, columns = a.astype(float).tolist(), b.astype(float).T.tolist()
    starts = np.broadcast_to(start, (len(rows), len(columns))).tolist()
    width = int(order.removeprefix("k"))
    return np.array(
        [
            [element(x, y, s, width) for y, s in zip(columns, line, strict=True)]
            for x, line in zip(rows, starts, strict=True)
        ],
        np.float32,
    )


def assert_same(found: Array, expected: Array) -> None:
    """The same bits; a NaN is just NaN."""
    assert found.dtype == expected.dtype == np.float32
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(
        np.where(nan, np.float32(0), found).view(np.int32),
        np.where(nan, np.float32(0), expected).view(np.int32),
    )


def by_few_rows(a: Array, b: Array, start: Array, order: CubeOrder) -> Array:
    out = np.broadcast_to(start, (len(a), b.shape[1])).copy()
    add_few_rows(a, b, out, order)
    return out


def spread(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[np.generic], bits: int
) -> Array:
    """Numbers of *dtype* with magnitudes from 2^-bits to 2^bits, one in eight of them zero."""
    values = rng.standard_normal(shape) * np.exp2(rng.uniform(-bits, bits, shape))
    values = np.where(rng.random(shape) < 1 / 8, 0.0, values)
    limit = float(ml_dtypes.finfo(dtype).max)
    return np.clip(values, -limit, limit).astype(np.float32).astype(dtype)


@pytest.mark.sample(4)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [FP16, BF16], ids=str)
def test_products_equal_the_fractions(
    dtype: np.dtype[np.generic],
    order: CubeOrder,
    rng: np.random.Generator,
    subtests: pytest.Subtests,
) -> None:
    for bits in [0, 2, 14, 24, 120]:
        with subtests.test(bits=bits):
            a, b = spread(rng, (9, 37), dtype, bits), spread(rng, (37, 11), dtype, bits)
            start = spread(rng, (9, 11), BF16, bits).astype(np.float32)
            expected = by_fractions(a, b, start, order)
            assert_same(float_product(a, b, start, order), expected)
            assert_same(by_few_rows(a, b, start, order), expected)
            assert_same(cube_product(a, b, start, order), expected)


TINY = 2.0**-24
HOSTILE = {
    "the tie goes to the even neighbour": ([1, 1], [1, 1], 2.0**25 + 4),
    "a bit far below the tie breaks it": ([1, TINY], [2, TINY], 2.0**25),
    "a bit far below the tie breaks it downwards": ([1, TINY], [2, -TINY], 2.0**25 + 4),
    "a bit that float64 drops next to the accumulator": ([1, 2.0**-14], [2, 2.0**-14], 2.0**25),
    "one rounding of a block, not two": ([1, 1, 1], [1, 1, 1], 2.0**25),
    "everything cancels but the smallest": ([65504, 65504, TINY], [65504, -65504, TINY], 0.0),
    "subnormals of fp16": ([TINY, 3 * TINY], [TINY, -5 * TINY], 0.0),
    "a zero is positive": ([-0.0, 1, -1], [1, 1, 1], -0.0),
    "a zero alone is positive": ([-0.0], [1], -0.0),
    "inf times zero": ([math.inf, 1], [0, 1], 0.0),
    "inf less inf": ([math.inf, math.inf], [1, -1], 0.0),
    "inf stays": ([math.inf, -65504], [1, 65504], 3.0),
    "inf meets the accumulator's inf": ([-math.inf], [1], math.inf),
    "NaN stays": ([math.nan, 1], [0, 1], 0.0),
    "the largest number": ([1], [1], float(np.finfo(np.float32).max)),
}


@pytest.mark.parametrize("order", ORDERS)
def test_hostile_numbers(order: CubeOrder, subtests: pytest.Subtests) -> None:
    for case in HOSTILE:
        with subtests.test(case):
            row, column, first = HOSTILE[case]
            # Among ordinary numbers, so that nothing is known of the tile as a whole.
            a = np.full((3, len(row)), 0.7).astype(np.float16)
            b = np.full((len(row), 4), TINY).astype(np.float16)
            start = np.full((3, 4), 0.3, np.float32)
            a[1], b[:, 2], start[1, 2] = row, column, first
            expected = by_fractions(a, b, start, order)
            assert_same(float_product(a, b, start, order), expected)
            assert_same(by_few_rows(a, b, start, order), expected)
            assert_same(cube_product(a, b, start, order), expected)


@pytest.mark.parametrize(
    ("row", "column", "first", "expected"),
    [
        ([2.0**64, 1], [2.0**64, 1], 0.0, math.inf),
        ([2.0**64, 2.0**64], [2.0**64, -(2.0**64)], 1.0, 1.0),
        ([2.0**-75], [2.0**-75], 0.0, 0.0),
        ([2.0**-75, 2.0**-133], [2.0**-75, 2.0**-133], 0.0, 2.0**-149),
        ([2.0**-75], [2.0**-75], 3 * 2.0**-149, 4 * 2.0**-149),
        ([2.0**-100], [-(2.0**-100)], 0.0, 0.0),
        # The tie is one of fp32's subnormals, and float64 drops the bit that breaks it.
        ([2.0**-75, 2.0**-95], [2.0**-75, 2.0**-95], 2.0**-127, 2.0**-127 + 2.0**-149),
        ([2.0**100, 2.0**-133], [2.0**27, 2.0**-133], -(2.0**127), 2.0**-266),
    ],
)
def test_bfloat16_reaches_both_ends_of_fp32(
    row: list[float], column: list[float], first: float, expected: float
) -> None:
    a, b = np.array([row]).astype(BF16), np.array([column]).astype(BF16).T
    start = np.array([[first]], np.float32)
    found = np.array([[expected]]).astype(np.float32)
    assert_same(float_product(a, b, start), found)
    assert_same(by_few_rows(a, b, start, "k16"), found)
    assert_same(cube_product(a, b, start), found)


@draws(60)
@given(
    m=st.integers(1, 20),
    k=st.integers(0, 70),
    n=st.integers(1, 20),
    bits=st.integers(0, 40),
    dtype=st.sampled_from([FP16, BF16]),
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 2**32 - 1),
    bad=st.booleans(),
)
def test_both_products_are_one(
    m: int,
    k: int,
    n: int,
    bits: int,
    dtype: np.dtype[np.generic],
    order: CubeOrder,
    seed: int,
    bad: bool,
) -> None:
    rng = np.random.default_rng(seed)
    a, b = spread(rng, (m, k), dtype, bits), spread(rng, (k, n), dtype, bits)
    if bad and k:
        a[rng.integers(m), rng.integers(k)] = rng.choice([math.inf, -math.inf, math.nan])
        b[rng.integers(k), rng.integers(n)] = rng.choice([math.inf, -math.inf, math.nan])
    start = rng.standard_normal((m, n)).astype(np.float32)
    expected = cube_product(a, b, start, order)
    assert_same(float_product(a, b, start, order), expected)
    assert_same(by_few_rows(a, b, start, order), expected)


def test_ordinary_numbers_over_many_tiles_equal_the_oracle(rng: np.random.Generator) -> None:
    a = rng.standard_normal((150, 600)).astype(np.float16)
    b = rng.standard_normal((600, 90)).astype(np.float16)
    assert_same(float_product(a, b, ZERO), cube_product(a, b))


def test_a_blas_that_skips_zeros_is_put_right() -> None:
    a = np.array([[math.inf, 1.0], [1.0, 2.0]])
    b = np.array([[0.0, 1.0, math.nan], [1.0, 1.0, 0.0]])
    sums = np.array([[1.0, math.inf, 0.0], [2.0, 3.0, 0.0]])
    _restore_nonfinite(a, b, sums)
    nan = math.nan
    np.testing.assert_array_equal(sums, [[nan, math.inf, nan], [2.0, 3.0, nan]])


# ---- nothing depends on where the numbers lie ----


@pytest.mark.parametrize("dtype", [FP16, BF16], ids=str)
def test_bits_depend_on_no_layout(dtype: np.dtype[np.generic], rng: np.random.Generator) -> None:
    a, b = spread(rng, (140, 64), dtype, 6), spread(rng, (64, 1100), dtype, 6)
    whole = float_product(a, b, ZERO)
    assert_same(float_product(np.asfortranarray(a), np.asfortranarray(b), ZERO), whole)
    strided = np.zeros((280, 128), dtype)[::2, ::2]
    strided[...] = a
    assert_same(float_product(strided, b, ZERO), whole)
    assert_same(float_product(a.astype(np.float32), b.astype(np.float32), ZERO), whole)
    assert_same(float_product(a[7:8], b[:, 5:6], ZERO), whole[7:8, 5:6])
    assert_same(float_product(a[::-1], b, ZERO), whole[::-1])
    assert_same(float_product(a, b[:, ::-1], ZERO), whole[:, ::-1])
    halves = float_product(a[:, 32:], b[32:], float_product(a[:, :32], b[:32], ZERO))
    assert_same(halves, whole)


def test_batches_are_products_side_by_side(rng: np.random.Generator) -> None:
    a, b = spread(rng, (2, 3, 5, 20), FP16, 3), spread(rng, (3, 20, 6), FP16, 3)
    start = rng.standard_normal(6).astype(np.float32)
    found = float_product(a, b, start)
    assert found.shape == (2, 3, 5, 6)
    assert_same(found, cube_product(a, b, start))
    for i, j in np.ndindex(2, 3):
        assert_same(found[i, j], float_product(a[i, j], b[j], start))
    assert_same(float_product(a, b[0], start)[1, 2], float_product(a[1, 2], b[0], start))


def test_nothing_to_add_leaves_the_start() -> None:
    start = np.float32([[1, -0.0], [math.nan, -math.inf]])
    found = float_product(np.zeros((2, 0), np.float16), np.zeros((0, 2), np.float16), start)
    assert_same(found, start + np.float32(0))
    assert float_product(np.zeros((0, 3), BF16), np.zeros((3, 2), BF16), ZERO).shape == (0, 2)


# ---- integers ----


@pytest.mark.parametrize("k", [1, 1024, 1025, 65535])
def test_the_largest_integer_products_are_exact(k: int) -> None:
    a, b = np.full((2, k), -128, np.int8), np.full((k, 3), -128, np.int8)
    a[1], b[:, 2] = 127, 127
    found = int_product(a, b)
    assert found.dtype == np.int32
    mixed = -k * 127 * 128
    assert found.tolist() == [[k * 2**14] * 2 + [mixed], [mixed] * 2 + [k * 127**2]]


def test_beyond_int32_the_product_is_int64() -> None:
    lines = [(2**17 - 1, np.int32), (2**17, np.int64)]
    for k, dtype in lines:
        found = int_product(np.full((1, k), -128, np.int8), np.full((k, 1), -128, np.int8))
        assert (found.dtype, found.item()) == (dtype, k * 2**14)


@pytest.mark.parametrize(
    ("left", "right"),
    [((1100, 2100), (2100, 5)), ((2, 3, 7, 1500), (3, 1500, 4)), ((4, 7, 90), (90, 8))],
)
def test_integer_products_equal_the_oracle(
    left: tuple[int, ...], right: tuple[int, ...], rng: np.random.Generator
) -> None:
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in (left, right))
    expected = exact_int(a, b)
    np.testing.assert_array_equal(int_product(a, b), expected)
    np.testing.assert_array_equal(int_product(a, b.astype(np.float32)), expected)
    np.testing.assert_array_equal(int_product(a, np.asfortranarray(b)), expected)


def test_int4_is_multiplied_as_it_is() -> None:
    a = np.array([[-8, 7]]).astype(ml_dtypes.int4)
    assert int_product(a, a.T).tolist() == exact_int(a, a.T).tolist() == [[113]]


def test_accumulating_saturates_at_both_ends() -> None:
    start = np.array([2**31 - 1, 2**31 - 5, -(2**31), -(2**31) + 5, 7], np.int32)
    product = np.array([1, 4, -1, -5, -8], np.int32)
    found = accumulate_int(start, product)
    assert found.dtype == np.int32
    assert found.tolist() == [2**31 - 1, 2**31 - 1, -(2**31), -(2**31), -1]
    assert accumulate_int(start[4:], np.array([2**40])).tolist() == [2**31 - 1]


# ---- refusals ----

HALF = np.zeros((2, 3), np.float16)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: int_product(HALF, HALF.T),
            TypeError,
            "product.int_product: a must be one of int8, int4, float32, not float16; "
            "convert it first",
        ),
        (
            lambda: float_product(HALF, HALF.T.astype(np.int8), ZERO),
            TypeError,
            "product.float_product: b must be one of float16, bfloat16, float32, not int8; "
            "convert it first",
        ),
        (
            lambda: float_product(HALF, HALF, ZERO),
            ValueError,
            "product.float_product: a and b must be (..., m, k) and (..., k, n), not (2, 3) and "
            "(2, 3); transpose or cut one of them",
        ),
        (
            lambda: int_product(np.zeros((2, 1, 3), np.int8), np.zeros((4, 3, 1), np.int8)),
            ValueError,
            "product.int_product: a and b must be (..., m, k) and (..., k, n), not (2, 1, 3) and "
            "(4, 3, 1); transpose or cut one of them",
        ),
        (
            lambda: float_product(HALF, HALF.T, ZERO, "k2"),  # type: ignore[arg-type]
            ValueError,
            "product.float_product: order must be one of k16, k8, k4, k1, not 'k2'; "
            "use one of these",
        ),
        (
            lambda: float_product(HALF, HALF.T, ZERO.astype(np.float64)),  # type: ignore[arg-type]
            TypeError,
            "product.float_product: start must be float32, not float64; convert it first",
        ),
        (
            lambda: float_product(HALF, HALF.T, np.zeros(3, np.float32)),
            ValueError,
            "product.float_product: start must broadcast to (2, 2), not (3,); give it that shape",
        ),
    ],
)
def test_bad_operands_are_refused(call, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()
