"""Products on the cube against numpy: the kernels are those of kernels/cube.cpp."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from sources import kernels

import npusim
from npusim.ascendc import AscendCError
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
    c: Array = np.zeros((m, n), out)
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


CALLS_OF_OPTIONS = """#include "kernel_operator.h"
using namespace AscendC;
extern "C" __global__ __cube__ void probe(GM_ADDR z)
{
    GlobalTensor<float> zGm;
    zGm.SetGlobalBuffer((__gm__ float*)z);
    LocalTensor<float> l1(TPosition::A1, 0, 4096), a(TPosition::A2, 0, 4096);
    LocalTensor<float> b(TPosition::B2, 0, 4096), c(TPosition::CO1, 0, 4096);
    %s
}
"""


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "MmadParams by(32, 32, 40); by.kDirectionAlign = true; Mmad(c, a, b, by);",
            "Mmad: kDirectionAlign must be false where k of float, 40, rounds up to one multiple "
            "of 8 and another of 16, since npusim reads L0 in eights of k; fill L0 with zeros and "
            "pass a k of 48",
        ),
        (
            "LoadData3DParamsV2<float> by; by.fMatrixCtrl = true; LoadData(a, l1, by);",
            "LoadData: fMatrixCtrl must be 0, the only value that npusim simulates; set that",
        ),
        (
            "LoadData3DParamsV2<float> by; by.enSmallK = true; LoadData(a, l1, by);",
            "LoadData: enSmallK must be 0, the only value that npusim simulates; set that",
        ),
        (
            "LoadData(a, l1, LoadData2DParams(0, 1, 1, 0, 0, false, 1));",
            "LoadData: addrMode must be 0, the only value that npusim simulates; set that",
        ),
        (
            "LoadDataWithTranspose(b, l1, LoadData2dTransposeParams(0, 1, 1, 0, 0, 1));",
            "LoadDataWithTranspose: addrMode must be 0, the only value that npusim simulates; set "
            "that",
        ),
        (
            "DataCopyCO12DstParams by; by.clipReluPre = 1; DataCopy(zGm, c, by);",
            "DataCopy: clipReluPre must be 0, the only value that npusim simulates; set that",
        ),
        (
            "DataCopyCO12DstParams by; by.eltWiseOp = 1; DataCopy(zGm, c, by);",
            "DataCopy: eltWiseOp must be 0, the only value that npusim simulates; set that",
        ),
    ],
)
def test_options_without_a_model(tmp_path: Path, lines: str, message: str) -> None:
    file = tmp_path / "probe.cpp"
    file.write_text(CALLS_OF_OPTIONS % lines)
    with pytest.raises(AscendCError) as caught:
        npusim.ascendc.load(file).probe[1](np.zeros(64, np.float32), device="Atlas A2")
    assert str(caught.value) == f"probe: {message} (line 9 of probe.cpp)"
