"""Where an operator takes a dtype, any name does: its own, torch's, torch.dtype, numpy's."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from op_calls import assert_all_same
from simulated_card import torch

from npusim import ops, run

A2 = "ascend910b2"
X, ONE = np.linspace(-9, 9, 64, dtype=np.float32).reshape(4, 16), np.full(1, 0.5, np.float32)
HALF, BYTES = X.astype(np.float16), np.arange(-32, 32, dtype=np.int8).reshape(4, 16)
SCALES = np.full((1, 16), 0.5, np.float32)
PACKED = np.arange(8, dtype=np.int32).reshape(4, 2)
SUM = {"x1": HALF, "x2": HALF, "gamma": HALF[0]}
CALLS: dict[tuple[str, str], tuple[dict[str, Any], tuple[tuple[Any, ...], ...]]] = {
    ("npu_quantize", "dtype"): (
        {"input": X, "scales": ONE, "zero_points": None, "div_mode": False, "axis": -1},
        (("qint8", "int8", torch.qint8, torch.int8, np.int8, np.dtype(np.int8)),
         ("quint4x2", torch.quint4x2)),
    ),
    ("npu_group_quant", "dst_dtype"): (
        {"x": X, "scale": SCALES, "group_index": np.array([4])},
        (("int8", "qint8", torch.qint8, torch.int8, np.int8), ("quint4x2", torch.quint4x2)),
    ),
    ("npu_dynamic_quant", "dst_type"): (
        {"x": HALF}, (("int8", "qint8", torch.int8, torch.qint8, np.int8, None),),
    ),
    ("npu_dequant_swiglu_quant", "dst_type"): (
        {"x": HALF, "quant_mode": 1}, (("int8", "qint8", torch.int8, torch.qint8, np.int8, None),),
    ),
    ("npu_swiglu_quant", "dst_type"): (
        {"x": HALF, "smooth_scales": np.ones((1, HALF.shape[-1] // 2), np.float32)}
        | {"quant_mode": 1},
        (("int8", "qint8", torch.int8, torch.qint8, np.int8, None),
         ("quint4x2", torch.quint4x2)),
    ),
    ("npu_add_rms_norm_quant", "dst_type"): (
        SUM | {"scales1": X[-1], "zero_points1": None},
        (("int8", "qint8", torch.int8, torch.qint8, np.int8, None),),
    ),
    ("npu_add_rms_norm_dynamic_quant", "y_dtype"): (
        SUM, (("int8", "qint8", torch.int8, torch.qint8, np.int8, None),
              ("quint4x2", "int4", torch.quint4x2)),
    ),
    ("npu_dynamic_quant_asymmetric", "dst_type"): (
        {"x": HALF}, (("int8", "qint8", torch.int8, torch.qint8, np.int8, None),
                      ("quint4x2", torch.quint4x2)),
    ),
    ("npu_anti_quant", "dst_dtype"): (
        {"x": BYTES, "scale": ONE},
        (("float16", torch.float16, torch.half, np.float16, None),
         ("bfloat16", torch.bfloat16, ml_dtypes.bfloat16)),
    ),
    ("npu_anti_quant", "src_dtype"): (
        {"x": PACKED, "scale": ONE}, (("quint4x2", torch.quint4x2, None),),
    ),
    ("npu_grouped_matmul", "output_dtype"): (
        {"x": BYTES, "weight": BYTES.reshape(1, 16, 4), "scale": np.ones((1, 4), np.float32)}
        | {"group_list": np.array([4]), "group_type": 0, "split_item": 3},
        (("float16", torch.float16, torch.half, np.float16),),
    ),
    ("npu_quant_matmul", "output_dtype"): (
        {"x1": BYTES, "x2": BYTES.T, "scale": ONE},
        (("int8", torch.int8, np.int8, None), ("float16", torch.float16, np.dtype(np.float16)),
         ("bfloat16", torch.bfloat16, ml_dtypes.bfloat16), ("int32", torch.int32)),
    ),
}  # fmt: skip


def test_every_dtype_of_every_operator_is_among_the_calls() -> None:
    taken = {
        (name, function.names.get(parameter, parameter))
        for name in ops.names()
        for function in ops.load(name).torch
        for parameter in function.dtypes
    }
    assert taken == set(CALLS)


@pytest.mark.filterwarnings("ignore:npu_dequant_swiglu_quant:UserWarning")
@pytest.mark.parametrize(("op", "parameter"), CALLS)
def test_all_names_of_a_dtype_give_the_same(op: str, parameter: str) -> None:
    call, alike = CALLS[op, parameter]
    for first, *others in alike:
        runs = [
            run(op, **call, **{parameter: name}, device=A2, timing=False)
            for name in (first, *others)
        ]
        for other in runs[1:]:
            assert_all_same(other.output, runs[0].output)
        # What JSON says is a name, or None.
        assert {type(each.arguments[parameter]) for each in runs} <= {str, type(None)}


@pytest.mark.parametrize(
    ("dtype", "signed"), [("qint8", True), ("int8", True), ("uint8", False), ("quint8", False)]
)
def test_division_takes_plain_integers_as_quantised_ones(dtype: str, signed: bool) -> None:
    output = run("npu_quantize", X, ONE, None, dtype, device=A2, timing=False).output
    wanted = np.clip(np.rint(X / 0.5), *((-128, 127) if signed else (0, 255)))
    np.testing.assert_array_equal(output, wanted)
    assert output.dtype == (np.int8 if signed else np.uint8)


def test_explain_takes_the_same_names() -> None:
    from npusim import devices
    from npusim.explain.operator import explain

    call = {"input": X, "scales": ONE, "zero_points": None, "dtype": "int8"}
    assert explain("npu_quantize", devices.load(A2), call).plan is not None
