"""Rows that are written are timed as the calls that they were made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npusim.data.tensor import TensorSpec
from npusim.validation import read
from npusim.validation.calls import timed
from npusim.validation.timed import Call
from npusim.validation.written import row_of, to_csv

MEASURED = {"id": "a", "family": "mine", "latency_us": 12.5}


def spec(*shape: int, dtype: str = "float16", layout: str = "ND") -> TensorSpec:
    return TensorSpec(shape, dtype, layout)


def call(op: str, *args: Any, **options: Any) -> Call:
    return Call(op, args, "ascend910b2", "cold", "warm", options)


X, WEIGHT = spec(16, 256, dtype="int8"), spec(256, 128, dtype="int8")
SCALE = spec(128, dtype="float32")
CALLS = {
    "matmul": call("matmul", spec(16, 256), spec(256, 128)),
    "transposed": call("matmul", spec(16, 256), spec(128, 256).T),
    "fractals": call("matmul", spec(16, 256), spec(256, 128, layout="FRACTAL_NZ")),
    "batch": call("matmul", spec(3, 16, 256), spec(3, 256, 128)),
    "int8": call("npu_quant_matmul", X, WEIGHT, SCALE, output_dtype="bfloat16"),
    "weight": call("npu_weight_quant_batchmatmul", spec(16, 256), WEIGHT, spec(128)),
    "offset": call(
        *("npu_weight_quant_batchmatmul", spec(16, 256), WEIGHT, spec(128)),
        antiquant_offset=spec(128),
    ),
    "norm": call("npu_add_rms_norm", spec(16, 256), spec(16, 256), spec(256)),
    "dynamic_quant": call("npu_dynamic_quant", spec(16, 256)),
    "swiglu": call("npu_swiglu", spec(16, 256)),
    "add": call("add", spec(16, 256), spec(16, 256)),
    "transposed input": call("matmul", spec(256, 16).T, spec(256, 128)),
    "axis": call("npu_swiglu", spec(16, 256), dim=0),
    "number": call("mul", spec(16, 256), other=0.5),
    "types": call("add", spec(16, 256, dtype="float32"), spec(16, 256, dtype="bfloat16")),
    "axes": call("permute", spec(16, 8, 256), dims=[1, 0, 2]),
    "several": call("concat", tensors=[spec(16, 256), spec(16, 8)], dim=1),
    "word": call("npu_format_cast", spec(64, 256), acl_format="FRACTAL_NZ"),
    "in fractals": call("npu_format_cast", spec(64, 256, layout="FRACTAL_NZ"), acl_format="ND"),
    "left out": call(
        *("npu_moe_finalize_routing", spec(64, 256)), skip1=None, skip2=None, bias=None,
        scales=spec(16, 4), expanded_src_to_dst_row=spec(64, dtype="int32"),
        export_for_source_row=None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_row_is_timed_as_its_call(name: str, tmp_path: Path) -> None:
    row = row_of(CALLS[name], **MEASURED)
    assert row is not None
    path = tmp_path / "rows.csv"
    path.write_text(to_csv([row]))
    assert read(path) == (row,)
    (found,) = timed(row)
    assert found == CALLS[name]


@pytest.mark.parametrize(
    "left_out",
    [
        call("npu_dynamic_quant", spec(16, 256), smooth_scales=spec(256)),
        call("npu_rms_norm", spec(4, 2, 16, 256), spec(256)),
        call("sigmoid", spec(256, 16).T),
        call("add", spec(16, 256), spec(16, 256, layout="FRACTAL_NZ")),
        call("matmul", spec(16, 256, layout="FRACTAL_NZ"), spec(256, 128)),
    ],
    ids=["scales", "dimensions", "transposed", "second in fractals", "first in fractals"],
)
def test_rows_have_no_room_for_everything(left_out: Call) -> None:
    assert row_of(left_out, **MEASURED) is None
