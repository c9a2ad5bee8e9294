"""The fixpipe template of npu_weight_quant_batchmatmul: the kernel against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import Array, assert_same

from npusim import Run, TensorSpec, ops, run
from npusim.ops import npu_trans_quant_param
from npusim.ops.npu_weight_quant_batchmatmul.templates.fixpipe import FixpipePlan

OP = "npu_weight_quant_batchmatmul"
DEVICES = ("ascend910b2", "ascend910b4", "ascend910_9391")
reference = ops.load(OP).reference


def fixpipe(call: dict[str, Any], device: str = "ascend910b2", **how: Any) -> Run:
    result = run(OP, device=device, **({"timing": False} | how), **call)
    assert isinstance(result.plan, FixpipePlan)
    return result


def parts(
    m: int, k: int, n: int, seed: int = 0, *, offset: bool = True, bias: bool = True
) -> dict[str, Any]:
    """Arguments of a call that the template takes."""
    rng = np.random.default_rng(seed)
    scale = (0.02 * rng.random(n)).astype(np.float32)
    call: dict[str, Any] = {
        "x": rng.standard_normal((m, k)).astype(np.float16),
        "weight": rng.integers(-128, 128, (n, k), dtype=np.int8).T,
        "antiquant_scale": npu_trans_quant_param.reference(scale),
    }
    if offset:
        call["antiquant_offset"] = rng.integers(-128, 128, n, dtype=np.int32)
    if bias:
        call["bias"] = rng.standard_normal(n).astype(np.float16)
    return call


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [
        (1, 64, 64),  # strips of 16 columns
        (17, 320, 512),  # a piece of 64 of k after one of 256
        (33, 576, 448),  # a second load of k, and fewer columns in the last core
        (96, 1408, 256),  # x does not stay in L1
        (3, 64, 3264),  # two pieces a core
    ],
)
def test_a_tiled_run_equals_the_reference(m: int, k: int, n: int) -> None:
    for offset, bias in ((True, True), (False, False)):
        call = parts(m, k, n, offset=offset, bias=bias)
        expected = reference(**call)
        for byte_exact in (False, True):
            assert_same(fixpipe(call, byte_exact=byte_exact).output, expected)


@draws(12)
@given(
    m=st.integers(1, 96),
    k=st.integers(1, 12),
    n=st.integers(1, 8),
    seed=st.integers(0, 99),
    offset=st.booleans(),
    bias=st.booleans(),
    device=st.sampled_from(DEVICES),
)
def test_any_legal_shape(
    m: int, k: int, n: int, seed: int, offset: bool, bias: bool, device: str
) -> None:
    call = parts(m, 64 * k, 64 * n, seed, offset=offset, bias=bias)
    assert_same(fixpipe(call, device).output, reference(**call))


def test_the_largest_shapes_build() -> None:
    most = 65472
    for m, k, n in ((96, most, 64), (96, 64, most), (1, most, 64)):
        x, weight = TensorSpec((m, k), "float16"), TensorSpec((n, k), "int8").T
        scale, offset = TensorSpec((1, n), "int64"), TensorSpec((1, n), "int32")
        call = {
            "x": x, "weight": weight, "antiquant_scale": scale, "antiquant_offset": offset,
        }  # fmt: skip
        assert fixpipe(call).output == TensorSpec((m, n), "float16")


def test_special_values_pass() -> None:
    call = parts(4, 128, 64)
    call["x"][0, 3], call["x"][1, 5], call["x"][2] = np.inf, np.nan, 0
    call["bias"][7] = -np.inf
    # (127 + 127) x 300 lies beyond fp16: an infinite weight, and nan where x is zero.
    scale = np.full(64, 0.01, np.float32)
    scale[9], scale[10] = 300.0, 0.0
    call["antiquant_scale"] = npu_trans_quant_param.reference(scale)
    call["weight"][0, 9], call["antiquant_offset"][9] = 127, 127
    output = fixpipe(call).output
    assert_same(output, reference(**call))
    assert isinstance(output, np.ndarray)
    assert np.isnan(output[1]).all()
    assert np.isnan(output[2, 9])
    assert output[2, 7] == -np.inf
    assert output[3, 10] == call["bias"][10]


def test_it_agrees_with_the_vector_kernel_where_the_scale_is_fp16() -> None:
    # Weight plus offset is a whole number that fp16 holds, and so does the fixpipe's scale.
    call = parts(5, 192, 128)
    scale = np.random.default_rng(1).random(128).astype(np.float16)
    call["antiquant_scale"] = npu_trans_quant_param.reference(scale.astype(np.float32))
    floats = call | {
        "antiquant_scale": scale,
        "antiquant_offset": call["antiquant_offset"].astype(np.float16),
    }
    assert_same(fixpipe(call).output, reference(**floats, template="custom"))


def test_one_weight_is_the_product_of_its_own_numbers() -> None:
    # Identity times identity: the output is the dequantised weight, made by hand.
    weight = np.arange(-64, 64, dtype=np.int8).repeat(64).reshape(128, 64)[:64].T
    call: dict[str, Array] = {
        "x": np.eye(64, dtype=np.float16),
        "weight": np.asfortranarray(weight),
        "antiquant_scale": npu_trans_quant_param.reference(np.full(64, 0.375, np.float32)),
        "antiquant_offset": np.arange(64, dtype=np.int32),
    }
    wanted = (weight.astype(np.float32) + np.arange(64)) * 0.375
    assert_same(fixpipe(call).output, wanted.astype(np.float16))


def plan_of(m: int, k: int, n: int) -> FixpipePlan:
    call = {
        "x": TensorSpec((m, k), "float16"),
        "weight": TensorSpec((n, k), "int8").T,
        "antiquant_scale": TensorSpec((n,), "int64"),
    }
    plan = fixpipe(call).plan
    assert isinstance(plan, FixpipePlan)
    return plan


def test_cores_share_columns_first() -> None:
    # 24 cores: 11008 / 24 = 458.67, up to 480; 23 cores, none is left to share rows.
    plan = plan_of(96, 1024, 11008)
    assert (plan.core_m, plan.core_n, plan.base_n, plan.block_dim) == (96, 480, 128, 23)
    assert plan.keeps_x
    # Few columns: 16 a core, and six times the cores to share rows.
    plan = plan_of(96, 4096, 64)
    assert (plan.core_m, plan.core_n, plan.base_n, plan.block_dim) == (16, 16, 16, 24)
    # 96 x 1344 fp16 are 252 KiB, more than the 250 that may stay.
    assert not plan_of(96, 1344, 11008).keeps_x
