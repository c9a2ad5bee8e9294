"""The RMS norms: what they refuse, with the nearest call that they take.

Sources: the documents of torch_npu for each operator; for what tilings refuse, ops-nn@e5c3fa9
norm/*/op_host.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import half_ones as ones
from op_calls import BF16, NEW, OLD, Row, constraints

from npusim import Code, TensorSpec, run

F16, F32 = np.float16, np.float32


TILING = Code.TILING_ERROR
EPSILON = "pass one such as 1e-6"
UNFIT = (
    "template must name a kernel that can take the call, not {!r} ({}); leave it out to get the "
    "vendor's choice"
)
TEMPLATE_310P = Row(
    {"template": "normal"},
    "template must be None on Atlas inference, where rows and types decide, not 'normal'; leave it "
    "out",
    lines=OLD,
)

NORM_BASE = {"x": ones(3, 2, 64), "gamma": ones(64)}
NORM_ROWS = [
    Row({"gamma": ones(1, 3, 2, 64)},
        "gamma must have 1 to 3 dimensions like x, not shape (1, 3, 2, 64); reshape it",
        {"gamma": ones(3, 2, 64)}),
    Row({"gamma": ones(3, 64)},
        "gamma must have the shape of the last dimensions of x, (2, 64), not (3, 64); pass a "
        "number for each of their elements", {"gamma": ones(2, 64)}, code=TILING),
    Row({"x": ones(0, 2, 64)},
        "x must have elements, not shape (0, 2, 64); leave the call out", code=TILING),
    Row({"x": ones(2, 15), "gamma": ones(15)},
        "the last dimension of x and gamma must have at least 16 elements of float16 on {series}, "
        "not 15; pad it", {"x": ones(2, 16), "gamma": ones(16)}, OLD, code=TILING),
    Row({"epsilon": -1e-9}, f"epsilon must be >= 0, not -1e-09; {EPSILON}", {"epsilon": 0.0},
        code=TILING),
    Row({"epsilon": "1"}, "epsilon must be a number, not '1'; pass one without quotes",
        {"epsilon": 1}),
    Row({"template": "large"},
        "template must be merge_n, normal, single_row or split_d on Atlas A2 and Atlas A3, not "
        "'large'; leave it out to get the vendor's choice", {"template": "normal"}, NEW),
    Row({"template": "single_row"},
        UNFIT.format("single_row", "gamma in float32, x of 16 bits"),
        {"gamma": ones(64, dtype=F32), "template": "single_row"}, NEW),
    Row({"x": ones(2, 2001), "gamma": ones(2001), "template": "merge_n"},
        UNFIT.format("merge_n", "rows of at most 2000 elements"),
        {"x": ones(2, 2000), "gamma": ones(2000), "template": "merge_n"}, NEW),
    TEMPLATE_310P,
]  # fmt: skip
test_npu_rms_norm = constraints("npu_rms_norm", NORM_BASE, NORM_ROWS)

ADD_BASE = {"x1": ones(3, 64), "x2": ones(3, 64), "gamma": ones(64)}
ADD_ROWS = [
    Row({"x2": ones(1, 64)},
        "x2 must have shape (3, 64) like x1, not (1, 64); pass one of that shape"),
    Row({"gamma": ones(32)},
        "gamma must have the shape of the last dimensions of x1, (64,), not (32,); pass a number "
        "for each of their elements", code=TILING),
    Row({"template": "multi_n", "x1": ones(3, 65), "x2": ones(3, 65), "gamma": ones(65)},
        UNFIT.format("multi_n", "rows of fp16, a multiple of 16 elements"), {"template": "multi_n"},
        NEW),
    Row({"template": "single_n", "x1": ones(49, 64), "x2": ones(49, 64)},
        UNFIT.format("single_n", "no more rows than the 48 cores"), {"template": "merge_n"}, NEW),
]  # fmt: skip
test_npu_add_rms_norm = constraints("npu_add_rms_norm", ADD_BASE, ADD_ROWS)

QUANT_BASE = ADD_BASE | {
    "scales1": ones(64, dtype=F32),
    "zero_points1": ones(64, dtype=np.int32),
}
VECTOR = "must have the shape of gamma, (64,), not (1,); pass a number for each of its elements"


def _quantised_rows(columns: int) -> dict[str, Any]:
    """Rows of *columns* with all that makes their pieces narrow."""
    names = {"scales1": F32, "scales2": F32, "zero_points1": np.int32, "zero_points2": np.int32}
    vectors = {"gamma": F16, "beta": F16} | names
    rows = {name: ones(3, columns, dtype=F16) for name in ("x1", "x2")}
    return rows | {name: ones(columns, dtype=kind) for name, kind in vectors.items()}


QUANT_ROWS = [
    Row({"scales1": ones(1, dtype=F32), "zero_points1": None}, f"scales1 {VECTOR}",
        {"scales1": ones(1, dtype=F32), "zero_points1": ones(1, dtype=np.int32),
        "beta": ones(64)}),
    Row({"beta": ones(1)}, f"beta {VECTOR}", {"beta": ones(64)}),
    Row({"zero_points2": ones(1, dtype=np.int32)}, f"zero_points2 {VECTOR}",
        {"zero_points2": ones(64, dtype=np.int32)}),
    Row({"gamma": ones(32)},
        "gamma must have the shape of the last dimensions of x1, (64,), not (32,); pass a number "
        "for each of their elements"),
    Row({"axis": 0}, "axis must be -1, not 0; leave it out", {"axis": -1}),
    Row({"dst_type": "quint4x2"}, "dst_type must be int8, not 'quint4x2'; pass 'int8'",
        {"dst_type": "int8"}),
    Row({name: ones(*shape, 16, dtype=kind) for name, shape, kind in (
            ("x1", (3,), F16), ("x2", (3,), F16), ("gamma", (), F16), ("scales1", (), F32),
            ("zero_points1", (), np.int32))},
        "gamma must have at least 32 elements on {series}, not 16; pad it", lines=OLD),
    Row(_quantised_rows(12289),
        "gamma must leave at least 32 elements to the last piece of a row on {series}, where "
        "pieces have 6144, not 1: storing fewer would overwrite the next row, which is not "
        "simulated; pad it", _quantised_rows(12320), OLD),
]  # fmt: skip
test_npu_add_rms_norm_quant = constraints("npu_add_rms_norm_quant", QUANT_BASE, QUANT_ROWS)


def test_scales_in_float32_with_bfloat16_are_warned_of() -> None:
    call = {name: value.astype(BF16) for name, value in ADD_BASE.items()}
    message = (
        "^npu_add_rms_norm_quant: scales1 should be bfloat16 like x1, not float32, which the "
        "kernel takes and the document does not name; convert it$"
    )
    with pytest.warns(UserWarning, match=message):
        run("npu_add_rms_norm_quant", **(QUANT_BASE | call), device="Atlas A2")


SCALE = {"smooth_scale1": ones(64)}
BOTH = SCALE | {"smooth_scale2": ones(64)}
COLUMN = "must have shape (64,) like x1, not {}; pass one of that shape"
DYNAMIC_ROWS = [
    Row({"gamma": ones(3, 64)},
        "gamma must have shape (64,) like x1, not (3, 64); pass one of that shape",
        code=TILING),
    Row({"smooth_scale1": ones(1)},
        "smooth_scale1 must have shape (64,) like x1, not (1,); pass one of that shape",
        SCALE, code=TILING),
    Row({"epsilon": 0.0}, f"epsilon must be > 0, not 0.0; {EPSILON}",
        {"epsilon": 1e-9}, code=TILING),
    Row({"smooth_scale2": ones(64)},
        "smooth_scale1 must be given with a smooth_scale2 unless an output_mask says which "
        "outputs there are, not None; pass it, or an output_mask", BOTH),
    Row(BOTH | {"output_mask": [True, False]},
        "smooth_scale2 must be None where output_mask leaves y2 out, not a tensor; leave it out",
        SCALE | {"output_mask": [True, False]}),
    Row({"output_mask": [False, False]},
        "output_mask must ask for an output at least, not [False, False]; set one to True",
        {"output_mask": [False, True]}),
    Row({"output_mask": [True]},
        "output_mask must be a list of 2 booleans, not [True]; pass for example [True, "
        "False]"),
    Row({"y_dtype": "int16"}, "y_dtype must be int8, int4 or quint4x2, not 'int16'; choose one of "
        "these", {"y_dtype": "int4"}),
    Row({"x1": ones(3, 60), "x2": ones(3, 60), "gamma": ones(60), "y_dtype": "int4"},
        "the last dimension of x1 must be a multiple of 8 with y_dtype='int4', not 60; pad it",
        {"y_dtype": "int8"}),
    Row({"template": "single_row", "x1": ones(3, 12200), "x2": ones(3, 12200),
        "gamma": ones(12200)},
        UNFIT.format("single_row", "a row fits, but not with its vectors"),
        {"template": "single_row"}),
]  # fmt: skip
test_npu_add_rms_norm_dynamic_quant = constraints(
    "npu_add_rms_norm_dynamic_quant", ADD_BASE, DYNAMIC_ROWS
)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0)])
def test_no_elements_give_empty_outputs(shape: tuple[int, ...]) -> None:
    x, gamma = TensorSpec(shape, "float16"), TensorSpec(shape[1:], "float16")
    found = run("npu_add_rms_norm", x, x, gamma, device="ascend910b2")
    assert (found.plan, found.time_us) == (None, 0)
    assert found.output == (x, TensorSpec((shape[0], 1), "float32"), x)
    scales = TensorSpec(shape[1:], "float32")
    found = run("npu_add_rms_norm_quant", x, x, gamma, scales, None, device="ascend910b2")
    assert (found.plan, found.time_us) == (None, 0)
