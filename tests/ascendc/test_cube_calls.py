"""Products on the cube against numpy: the kernels are those of kernels/cube.cpp."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from sources import kernels

from npusim.data.dtypes import Array

CHIPS = ("Atlas A2", "Atlas A3")
DRAWS = np.random.default_rng(11)
CAST, TO_BFLOAT16, NONE = 1, 2, 0


def small(*shape: int, dtype: type) -> Array:
    """Small whole numbers, of which sums are exact."""
    return DRAWS.integers(-4, 5, shape).astype(dtype)


@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize(
    ("dtype", "sum_dtype", "out", "kernel", "mode"),
    [
        (np.float16, np.float32, np.float32, "product<half, float, float>", NONE),
        (np.float16, np.float32, np.float16, "product<half, float, half>", CAST),
        (
            *(ml_dtypes.bfloat16, np.float32, ml_dtypes.bfloat16),
            *("product<bfloat16_t, float, bfloat16_t>", TO_BFLOAT16),
        ),
        (np.int8, np.int32, np.int32, "product<int8_t, int32_t, int32_t>", NONE),
        (np.float32, np.float32, np.float32, "product<float, float, float>", NONE),
    ],
)
def test_products(
    device: str, dtype: type, sum_dtype: type, out: type, kernel: str, mode: int
) -> None:
    m, n, k = 40, 48, 70
    a, b = small(m, k, dtype=dtype), small(n, k, dtype=dtype)
    c = np.zeros((m, n), out)
    kernels("cube.cpp")[kernel][1](a, b, c, m, n, k, mode, device=device)
    np.testing.assert_array_equal(c, (a.astype(sum_dtype) @ b.astype(sum_dtype).T).astype(out))


def test_a_bias_and_a_sum_that_goes_on() -> None:
    m, n, k = 32, 64, 48
    a, b = small(m, k, dtype=np.float16), small(n, k, dtype=np.float16)
    bias = small(n, dtype=np.float32)
    c = np.zeros((m, n), np.float32)
    kernels("cube.cpp").biased[1](a, b, bias, c, m, n, k, device="Atlas A2")
    product = a.astype(np.float32) @ b.astype(np.float32).T
    np.testing.assert_array_equal(c, np.maximum(2 * product + bias, 0))


def test_a_scale_for_each_column() -> None:
    m, n, k = 32, 64, 64
    a, b = small(m, k, dtype=np.int8), small(n, k, dtype=np.int8)
    scales = (2.0 ** DRAWS.integers(-3, 3, n)).astype(np.float32)
    c, d = np.zeros((2, m, n), np.float16)
    bits = scales.view(np.uint32).astype(np.uint64)
    kernels("cube.cpp").quantised[1](a, b, bits, c, d, m, n, k, device="Atlas A2")
    want = ((a.astype(np.int32) @ b.astype(np.int32).T) * scales).astype(np.float16)
    np.testing.assert_array_equal(c, want)
    np.testing.assert_array_equal(d, want)


def test_turned_operands_and_a_result_as_nz() -> None:
    m, n, k = 32, 64, 48
    a, b = small(k, m, dtype=np.float16), small(k, n, dtype=np.float16)
    c = np.zeros((n // 16, m, 16), np.float32)
    kernels("cube.cpp").turned[1](a, b, c, m, n, k, device="Atlas A2")
    product = a.astype(np.float32).T @ b.astype(np.float32)
    np.testing.assert_array_equal(c.swapaxes(0, 1).reshape(m, n), product)


def test_one_row() -> None:
    n, k = 64, 80
    a, b = small(1, k, dtype=np.float16), small(n, k, dtype=np.float16)
    c = np.zeros((1, n), np.float32)
    kernels("cube.cpp").row[1](a, b, c, n, k, device="Atlas A2")
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


def test_vector_cores_take_over_from_the_cube() -> None:
    m, n, k = 32, 64, 48
    a, b = small(m, k, dtype=np.float16), small(n, k, dtype=np.float16)
    c = np.zeros((m, n), np.float32)
    kernels("cube.cpp").doubled[1](a, b, c, m, n, k, device="Atlas A3")
    np.testing.assert_array_equal(c, 2 * (a.astype(np.float32) @ b.astype(np.float32).T))
