"""What is said of an operator is what its own code says."""

from __future__ import annotations

import numpy as np
import pytest

from npusim import Tensor, TensorSpec, devices, ops, run
from npusim.explain.operator import ONE_OF_EACH, explain, formula

A2 = devices.load("Atlas A2")


@pytest.mark.parametrize("op", ops.names())
def test_every_operator_has_a_formula_and_loses_no_line_of_its_document(op: str) -> None:
    caption, written, notes = formula(op)
    assert caption
    assert written
    assert notes
    assert not caption.startswith(op)
    document = ops.load(op).document
    told = [line.strip() for part in (caption, written, notes) for line in part.splitlines()]
    own = [line.strip() for line in document.splitlines() if line.strip()]
    own = [line.removeprefix(f"{op}: ") for line in own if line != ".. code-block:: text"]
    assert sorted(line for line in told if line) == sorted(own)


def test_every_series_has_its_chip() -> None:
    assert {devices.load(name).series for name in devices.names()} == set(ONE_OF_EACH)
    for series, name in ONE_OF_EACH.items():
        assert devices.load(name).series == series


def test_types_are_those_that_the_operator_takes() -> None:
    given = {
        "input": TensorSpec((8, 64), "float16"),
        "scales": np.ones(1, np.float32),
        "zero_points": None,
        "dtype": "qint8",
    }
    found = explain("npu_quantize", A2, given)
    assert found.device == "ascend910b2"
    old, a2, a3 = found.lines
    assert [line.refusal for line in found.lines] == [None] * 3
    assert old.dtypes[("input",)] == ("float32", "float16")
    assert a2.dtypes == a3.dtypes
    for line, device in ((old, "Atlas 300I Pro"), (a2, "Atlas A2")):
        for dtype in ("float32", "float16", "bfloat16", "int8"):
            call = {**given, "input": TensorSpec((8, 64), dtype)}
            try:
                run("npu_quantize", **call, device=device, timing=False)
                is_taken = True
            except RuntimeError:
                is_taken = False
            assert (dtype in line.dtypes[("input",)]) is is_taken


def test_tensors_of_one_type_are_also_changed_together() -> None:
    given = {
        "x": TensorSpec((16, 4096), "float16"),
        "weight": TensorSpec((4096, 11008), "int8"),
        "antiquant_scale": TensorSpec((11008,), "float16"),
    }
    found = explain("npu_weight_quant_batchmatmul", A2, given)
    line = found.lines[1]
    assert line.dtypes[("x",)] == ("float16",)
    assert line.dtypes["x", "antiquant_scale"] == ("float16", "bfloat16")
    assert line.layouts["weight"] == ("ND", "FRACTAL_NZ")
    assert "antiquant_scale" not in line.layouts
    ran = run("npu_weight_quant_batchmatmul", **given, device=A2)
    assert (found.template, found.reason) == (ran.template, ran.reason) == (
        "msd", "per-channel int8 with m = 16 <= 64, k and n multiples of 32",
    )  # fmt: skip
    assert found.outputs == ran.outputs
    assert found.plan is not None
    assert found.plan["block_dim"] == ran.plan.block_dim  # type: ignore[union-attr]
    assert not {"template", "reason"} & set(found.plan)


def test_inputs_are_those_of_the_kernel() -> None:
    x, weight = TensorSpec((16, 64), "int8"), Tensor.of(np.zeros((64, 32), np.int8), "FRACTAL_NZ")
    given = {"x1": x, "x2": weight, "scale": TensorSpec((1,), "float32")}
    given |= {"output_dtype": "float16"}  # type: ignore[dict-item]
    found = explain("npu_quant_matmul", A2, given)
    assert found.kernel_inputs["x2"].layout == "FRACTAL_NZ"
    # aclnn packs a float32 scale into 64 bits beforehand.
    assert [spec.dtype for spec in found.kernel_inputs.values()][2:] == ["uint64"]


def test_a_refusal_is_reported_for_each_product_line() -> None:
    given = {"x": TensorSpec((4, 64), "float16"), "dst_type": "quint4x2"}
    found = explain("npu_dynamic_quant", devices.load("Atlas 300I Pro"), given)
    assert (found.outputs, found.plan, found.template) == ({}, None, None)
    refusals = [line.refusal for line in found.lines]
    assert refusals[1:] == [None, None]
    assert str(refusals[0]).startswith("npu_dynamic_quant: ")
    assert found.lines[0].dtypes == {("x",): ()}


def test_no_kernel_runs_on_the_host() -> None:
    given = {"weight": TensorSpec((8, 64), "int32")}
    found = explain("npu_convert_weight_to_int4pack", A2, given)
    assert found.plan is None
    assert found.outputs["output"].shape == (8, 8)


def test_the_chip_asked_for_speaks_for_its_series() -> None:
    given = {"x": TensorSpec((4, 64), "float16")}
    found = explain("npu_dynamic_quant", devices.load("Atlas 800I A2"), given)
    assert [line.device for line in found.lines] == ["ascend310p3", "ascend910b4", "ascend910_9391"]


def test_int4_leads_to_the_form_in_which_it_is_taken() -> None:
    given = {
        "x": TensorSpec((16, 4096), "float16"),
        "weight": TensorSpec((4096, 1024), "int4"),
        "antiquant_scale": TensorSpec((1024,), "float16"),
    }
    found = explain("npu_weight_quant_batchmatmul", A2, given)
    old, line, _ = found.lines
    assert line.refusal == (
        "npu_weight_quant_batchmatmul: weight must be int8 or int32 on Atlas A2, not int4; pass "
        "them packed, eight to an int32, as (4096, 128): see npu_convert_weight_to_int4pack "
        "[161002]"
    )
    assert line.dtypes[("weight",)] == ("int8", "int32 (4096, 128), eight int4 each")
    assert old.dtypes[("weight",)] == ("int8",)
    packed = {**given, "weight": TensorSpec((4096, 128), "int32")}
    taken = explain("npu_weight_quant_batchmatmul", A2, packed)
    assert taken.lines[1].refusal is None
    assert (taken.template, taken.outputs["output"].shape) == ("custom", (16, 1024))
    turned = {**given, "weight": TensorSpec((1024, 4096), "int4").T}
    line = explain("npu_weight_quant_batchmatmul", A2, turned).lines[1]
    assert line.dtypes[("weight",)] == ("int8", "int32 (512, 1024), eight int4 each")
