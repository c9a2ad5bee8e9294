"""Large products by Matmul against numpy: the kernel is that of kernels/matmul.cpp."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from sources import kernels

import npusim
from npusim.ascendc import AscendCError
from npusim.data.dtypes import Array

DRAWS = np.random.default_rng(5)


def small(*shape: int) -> Array:
    """Small whole numbers, of which sums are exact."""
    return DRAWS.integers(-4, 5, shape).astype(np.float16)


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
    a: Array = DRAWS.integers(-4, 5, (m, k)).astype(dtype)
    b: Array = DRAWS.integers(-4, 5, (k, n)).astype(dtype)
    bias = DRAWS.integers(-4, 5, n).astype(np.float32)
    c = np.zeros((m, n), sums)
    kernel = kernels("matmul.cpp")[
        f"rows_each<{name}, {str(a_turned).lower()}, {str(b_turned).lower()}>"
    ]
    given = [np.ascontiguousarray(x.T) if t else x for x, t in ((a, a_turned), (b, b_turned))]
    kernel[2](*given, bias, c, m, n, k, int(has_bias), device="Atlas A2")
    want = a.astype(sums) @ b.astype(sums) + (bias.astype(sums) if has_bias else 0)
    np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("name", ["halves_each", "halves_shared"])
def test_vector_cores_have_their_cube_core_multiply(name: str) -> None:
    m, n, k = 128, 64, 96
    a, b = small(m, k), small(k, n)
    c = np.zeros((m, n), np.float32)
    blocks = 2 if name == "halves_each" else 1
    kernels("matmul.cpp")[name][blocks](a, b, c, m, n, k, device="Atlas A2")
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


def test_a_tiling_that_is_part_of_the_type() -> None:
    m, n, k = 96, 112, 80
    a, b = small(m, k), small(k, n)
    c = np.zeros((m, n), np.float32)
    kernels("matmul.cpp").tiled_by_type[1](a, b, c, m, n, k, device="Atlas A2")
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


def test_fractals_of_8_columns() -> None:
    m, n, k = 72, 88, 48
    a, b = small(m, k), small(k, n)
    c = np.zeros((n // 8, 80, 8), np.float32)
    kernels("matmul.cpp").split[1](a, b, c, m, n, k, device="Atlas A2")
    product = a.astype(np.float32) @ b.astype(np.float32)
    for block in range(n // 8):
        np.testing.assert_array_equal(c[block, :m], product[:, 8 * block : 8 * block + 8])


OPTIONS = """#include "kernel_operator.h"
#include "lib/matmul_intf.h"
using namespace AscendC;
constexpr MatmulConfig config()
{
    MatmulConfig config = CFG_NORM;
    config.%s;
    return config;
}
constexpr MatmulConfig CONFIG = config();
using A = MatmulType<TPosition::GM, %s>;
using B = MatmulType<TPosition::GM, CubeFormat::ND, half>;
using C = MatmulType<TPosition::GM, CubeFormat::ND, float>;
extern "C" __global__ __cube__ void probe(GM_ADDR a, GM_ADDR b, GM_ADDR c)
{
    GlobalTensor<half> aGm, bGm;
    GlobalTensor<float> cGm;
    aGm.SetGlobalBuffer((__gm__ half*)a);
    bGm.SetGlobalBuffer((__gm__ half*)b);
    cGm.SetGlobalBuffer((__gm__ float*)c);
    TCubeTiling tiling;
    tiling.M = tiling.N = tiling.Ka = tiling.Kb = 32;
    tiling.singleCoreM = tiling.singleCoreN = tiling.singleCoreK = 32;
    tiling.baseM = tiling.baseN = tiling.baseK = 32;
    TPipe pipe;
    Matmul<A, B, C, C, CONFIG> product;
    REGIST_MATMUL_OBJ(&pipe, GetSysWorkSpacePtr(), product, &tiling);
    product.SetTensorA(aGm);
    product.SetTensorB(bGm);
    %s
}
"""


@pytest.mark.parametrize(
    ("option", "a_type", "call", "message", "line"),
    [
        (
            *("isCO1Shared = true", "CubeFormat::ND, half", ""),
            "Matmul: isCO1Shared of MatmulConfig must be false, since npusim does not simulate "
            "it; call GetTensorC after each Iterate",
            27,
        ),
        (
            *("isEnableChannelSplit = true", "CubeFormat::ND, half", ""),
            "Matmul: isEnableChannelSplit of MatmulConfig must be false where C is not float in "
            "NZ; set that, or make it so",
            27,
        ),
        (
            *("doNorm = true", "CubeFormat::ZZ, half", ""),
            "Matmul: A must be of a CubeFormat that npusim simulates there, not of CubeFormat 3; "
            "copy it to ND",
            27,
        ),
        (
            *("enableSetTail = false", "CubeFormat::ND, half", "product.SetTail(16);"),
            "SetTail: enableSetTail of MatmulConfig must allow this call, but takes it away; leave "
            "out one of them",
            30,
        ),
        (
            *("iterateMode = 2", "CubeFormat::ND, half", "product.Iterate();"),
            "Iterate: iterateMode of MatmulConfig must allow this call, but takes it away; leave "
            "out one of them",
            30,
        ),
        (
            "scheduleType = ScheduleType::OUTER_PRODUCT",
            *("CubeFormat::ND, half", "product.Iterate();"),
            "Iterate: scheduleType of MatmulConfig must be INNER_PRODUCT, since npusim knows no "
            "other order of tiles; call IterateAll",
            30,
        ),
        (
            *("doNorm = true", "CubeFormat::ND, half"),
            "product.SetOrgShape(32, 0, 32); product.IterateAll(cGm);",
            "Matmul: M, N, Ka and Kb of the whole matrices must be at least 1, not 32, 0, 32 and "
            "32; call SetOrgShape",
            30,
        ),
    ],
)
def test_options_that_would_change_the_product(
    tmp_path: Path, option: str, a_type: str, call: str, message: str, line: int
) -> None:
    file = tmp_path / "probe.cpp"
    file.write_text(OPTIONS % (option, a_type, call))
    x, c = small(32, 32), np.zeros((32, 32), np.float32)
    with pytest.raises(AscendCError) as caught:
        npusim.ascendc.load(file).probe[1](x, x, c, device="Atlas A2")
    assert str(caught.value) == f"probe: {message} (line {line} of probe.cpp)"


def test_vector_cores_that_share_both_matrices(tmp_path: Path) -> None:
    shared = "CubeFormat::ND, half, false, LayoutMode::NONE, true"
    text = OPTIONS % ("doNorm = true", shared, "product.IterateAll(cGm, 1);")
    text = text.replace("GM, CubeFormat::ND, half>;", f"GM, {shared}>;")
    file = tmp_path / "probe.cpp"
    file.write_text(text.replace("__cube__", "__mix__(1, 2)"))
    x, c = small(32, 32), np.zeros((32, 32), np.float32)
    with pytest.raises(AscendCError) as caught:
        npusim.ascendc.load(file).probe[1](x, x, c, device="Atlas A2")
    assert str(caught.value) == (
        "probe: IterateAll: where both A and B are IBSHARE, vector cores must call IterateAll "
        "without enAtomic, since npusim multiplies for each of them; share one matrix, or none "
        "(line 30 of probe.cpp)"
    )


@pytest.mark.parametrize("waits", ["true", "false"])
@pytest.mark.parametrize("stops", [0, 1])
def test_tiles_for_vector_cores(waits: str, stops: int) -> None:
    """Both vector cores of a group ask for tiles of one cube core, or one has left before."""
    m, n, k = 128, 96, 64
    a, b = small(m, k), small(k, n)
    c = np.zeros((m, n), np.float32)
    workspace = np.zeros(2 * 32 * 32 * 4, np.uint8)
    launch = kernels("matmul.cpp")[f"doubled<{waits}>"][1]
    launch(a, b, c, workspace, m, n, k, stops, device="Atlas A2")
    expected = 2 * (a.astype(np.float32) @ b.astype(np.float32))
    expected[m // 2 :] *= 1 - stops
    np.testing.assert_array_equal(c, expected)


def test_tiles_above_the_diagonal() -> None:
    m, n, k = 96, 96, 32
    a, b = small(m, k), small(k, n)
    c = np.zeros((m, n), np.float32)
    kernels("matmul.cpp").upper[1](a, b, c, m, n, k, device="Atlas A2")
    row, column = np.indices((m, n)) // 32
    expected = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(c, np.where(row <= column, expected, 0))
