"""The fixpipe template of npu_weight_quant_batchmatmul: special numbers, and how it is split."""

from __future__ import annotations

from typing import Any

import numpy as np
from op_calls import assert_as_reference
from weight_calls import OP, Kind, weight_call, weight_specs

from npusim import Run, TensorSpec, run
from npusim.ops import npu_trans_quant_param
from npusim.ops.npu_weight_quant_batchmatmul.templates.fixpipe import FixpipePlan

WORDS = Kind(layout="NDT", packed=True, offset=True, bias=True)


def fixpipe(call: dict[str, Any]) -> Run:
    result = run(OP, device="ascend910b2", timing=False, **call)
    assert isinstance(result.plan, FixpipePlan)
    return result


def test_the_largest_shapes_build() -> None:
    most = 65472
    for m, k, n in ((96, most, 64), (96, 64, most), (1, most, 64)):
        assert fixpipe(weight_specs(m, k, n, WORDS)).output == TensorSpec((m, n), "float16")


def test_special_values_pass() -> None:
    call = weight_call(np.random.default_rng(0), 4, 128, 64, WORDS)
    call["x"][0, 3], call["x"][1, 5], call["x"][2] = np.inf, np.nan, 0
    call["bias"][7] = -np.inf
    # (127 + 127) x 300 lies beyond fp16: an infinite weight, and nan where x is zero.
    scale = np.full(64, 0.01, np.float32)
    scale[9], scale[10] = 300.0, 0.0
    call["antiquant_scale"] = npu_trans_quant_param.reference(scale[None])
    call["weight"][0, 9], call["antiquant_offset"][:, 9] = 127, 127
    output = assert_as_reference(OP, device="ascend910b2", **call).output
    assert np.isnan(output[1]).all()
    assert np.isnan(output[2, 9])
    assert output[2, 7] == -np.inf
    assert output[3, 10] == call["bias"][10]


def plan_of(m: int, k: int, n: int) -> FixpipePlan:
    plan = fixpipe(weight_specs(m, k, n, Kind(layout="NDT", packed=True))).plan
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
