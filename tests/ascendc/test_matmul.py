"""Large products by Matmul against numpy: the kernel is that of kernels/matmul.cpp."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from sources import kernels

DRAWS = np.random.default_rng(5)


@pytest.mark.parametrize(
    ("dtype", "name", "a_turned", "b_turned", "has_bias"),
    [
        (np.float16, "half, float", False, False, True),
        (np.float16, "half, float", True, True, False),
        (ml_dtypes.bfloat16, "bfloat16_t, float", False, True, True),
        (np.int8, "int8_t, int32_t", True, False, False),
        (np.float32, "float, float", False, False, True),
    ],
)
def test_each_core_multiplies_some_rows(
    dtype: type, name: str, a_turned: bool, b_turned: bool, has_bias: bool
) -> None:
    m, n, k = 88, 144, 208
    sums = np.int32 if dtype is np.int8 else np.float32
    a, b = (DRAWS.integers(-4, 5, shape).astype(dtype) for shape in ((m, k), (k, n)))
    bias = DRAWS.integers(-4, 5, n).astype(np.float32)
    c = np.zeros((m, n), sums)
    kernel = kernels("matmul.cpp")[
        f"rows_each<{name}, {str(a_turned).lower()}, {str(b_turned).lower()}>"
    ]
    given = [np.ascontiguousarray(x.T) if t else x for x, t in ((a, a_turned), (b, b_turned))]
    kernel[2](*given, bias, c, m, n, k, int(has_bias), device="Atlas A2")
    want = a.astype(sums) @ b.astype(sums) + (bias.astype(sums) if has_bias else 0)
    np.testing.assert_array_equal(c, want)
