"""Numbers that the vendor printed, or that follow from its examples, on every chip that has them.

tests/printed.py holds what documents print.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chips import every
from op_calls import A2, A3, BF16, INFERENCE, Array
from printed import (
    BFLOAT16_X,
    FLOAT16_OUTPUT,
    FLOAT16_X,
    FLOAT32_OUTPUT,
    FLOAT32_X,
    GROUP_ENDS,
    GROUP_OFFSET,
    GROUP_OUTPUT,
    GROUP_SCALE,
    GROUP_X,
    WORDS,
)

from npusim import devices, run

ALL = devices.names()


def output(op: str, device: str, *args: Any, **kwargs: Any) -> Array:
    values = run(op, *args, device=device, timing=False, **kwargs).output
    assert isinstance(values, np.ndarray)
    return values


# ---- printed outputs of npu_quantize (torch_npu-npu_quantize.md) ----


@pytest.mark.parametrize("device", every(A2 + A3))
def test_npu_quantize_bfloat16_example(device: str) -> None:
    x = np.array(BFLOAT16_X).astype(BF16)
    scale = np.full(12, 0.1).astype(BF16)
    result = output("npu_quantize", device, x, scale, None, "qint8", -1, False)
    assert result.tolist() == [[[0] * 12]]


@pytest.mark.parametrize("device", every(ALL))
def test_npu_quantize_float32_example(device: str) -> None:
    x = np.float32(FLOAT32_X).reshape(2, 3, 12)
    scale = np.full(12, 3, np.float32)
    result = output("npu_quantize", device, x, scale, None, "qint8", -1, False)
    assert result.tolist() == FLOAT32_OUTPUT


@pytest.mark.parametrize("device", every(ALL))
def test_npu_quantize_float16_graph_example_with_the_default_axis(device: str) -> None:
    """The scales have as many elements as the last dimension; axis=1 means it all the same."""
    x = np.float16(FLOAT16_X).reshape(2, 3, 12)
    scale = np.full(12, 3, np.float16)
    result = output("npu_quantize", device, x, scale, zero_points=None, dtype="qint8",
                    div_mode=False)  # fmt: skip
    assert result.tolist() == FLOAT16_OUTPUT


# ---- printed outputs of the others ----


@pytest.mark.parametrize("device", every(A2 + A3))
def test_npu_group_quant_example(device: str) -> None:
    """torch_npu-npu_group_quant.md."""
    x, scale = np.float16(GROUP_X), np.float32(GROUP_SCALE)
    ends, offset = np.array(GROUP_ENDS, np.int32), np.float32(GROUP_OFFSET)
    results = {
        dst_dtype: output(
            "npu_group_quant", device, x, scale, ends, offset=offset, dst_dtype=dst_dtype
        ).tolist()
        for dst_dtype in ("qint8", "int8", None)
    }
    assert results == dict.fromkeys(results, GROUP_OUTPUT)


@pytest.mark.parametrize("device", every(ALL))
def test_npu_trans_quant_param_example(device: str) -> None:
    """torch_npu-npu_trans_quant_param.md prints no inputs: what its words hold packs to them."""
    scale, offset = np.array(list(WORDS.values()), np.float32).T
    results = [output("npu_trans_quant_param", device, scale, offset, mode) for mode in (0, 1)]
    assert [result.tolist() for result in results] == [list(WORDS)] * 2


# ---- examples whose output follows from the formula ----


@pytest.mark.parametrize("device", every(ALL))
def test_aclnn_ascend_quant_v3_example(device: str) -> None:
    """ops-nn, quant/ascend_quant_v2/examples."""
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    scale, offset = np.float32([1, 2]), np.float32([1, 2])
    result = output("npu_quantize", device, x, scale, offset, "qint8", -1, False)
    assert result.tolist() == [[1, 4], [3, 8], [5, 12], [7, 16]]


@pytest.mark.parametrize("device", every(A2 + A3))
def test_aclnn_group_quant_example(device: str) -> None:
    """ops-nn, quant/group_quant/examples."""
    x, scale = np.arange(8, dtype=np.float32).reshape(4, 2), np.float32([[1, 2]] * 3)
    result = output(
        "npu_group_quant", device, x, scale, np.array([1, 2, 4]), offset=np.float32([2])
    )
    assert result.tolist() == [[2, 4], [4, 8], [6, 12], [8, 16]]


@pytest.mark.parametrize("device", every(ALL))
def test_aclnn_quantize_example(device: str) -> None:
    """ops-nn, quant/quantize/examples; 1.0761 / -3 + 10 is 9.64, so the last column is all tens."""
    x = np.float32([[0.3382, -0.0919], [0.7564, 0.0234], [3.1024, 1.0761], [0.4228, 1.4621]])
    scales, points = np.float32([2, -3]), np.array([2, 10], np.int32)
    result = output("npu_quantize", device, x, scales, points, "int32", 1, True)
    assert result.tolist() == [[2, 10], [2, 10], [4, 10], [2, 10]]


@pytest.mark.parametrize("device", every(ALL))
def test_aclnn_trans_quant_param_v2_example(device: str) -> None:
    """ops-nn, quant/trans_quant_param_v2/examples."""
    one = np.ones(1, np.float32)
    assert output("npu_trans_quant_param", device, one, one).tolist() == [70507248484352]


def test_these_are_all_chips() -> None:
    assert sorted(A2 + A3 + INFERENCE) == list(ALL)
