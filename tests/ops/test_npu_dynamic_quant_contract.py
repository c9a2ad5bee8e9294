"""npu_dynamic_quant: every constraint, with the call that breaks it and the nearest that does not.

Source: torch_npu-npu_dynamic_quant.md; rows without columns and what is not simulated are our own.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from op_calls import (
    BF16,
    INFERENCE,
    NEW,
    Row,
    assert_accepted,
    assert_refused,
    on_each_line,
)

from npusim import Code, OpError, TensorSpec, run

OP = "npu_dynamic_quant"


def ones(*shape: int, dtype: Any = np.float16) -> Any:
    return np.ones(shape, dtype)


BASE = {"x": ones(6, 4)}
NOT_A_TENSOR = "must be a numpy array or a TensorSpec, not"
NOT_GROUPS = (
    "group_index must be None, not given; the kernels with smooth scales for each expert are "
    "not simulated"
)

ROWS = [
    # tensors
    Row({"x": None}, "x must be given, not None; pass a tensor", {}, NEW, Code.NULL_POINTER),
    Row({"x": [[1.0]]}, f"x {NOT_A_TENSOR} list; make it one of them", {}, NEW),
    Row({"x": np.ma.masked_array(ones(6, 4))},
        "x must be an array without a mask, not a MaskedArray; fill it first", {}, NEW),
    Row({"smooth_scales": 1.0}, f"smooth_scales {NOT_A_TENSOR} float; make it one of them",
        {"smooth_scales": None}, NEW),
    # types
    *(
        Row({"x": ones(6, 4).astype(kind)},
            f"x must be float16 or bfloat16 on {{series}}, not {kind}; convert it",
            {"x": ones(6, 4, dtype=BF16)}, NEW)
        for kind in ("float32", "float64", "int8", "object", ">f2")
    ),
    Row({"smooth_scales": ones(4, dtype=np.float32)},
        "smooth_scales must be float16 like x, not float32; convert it",
        {"smooth_scales": ones(4)}, NEW),
    Row({"x": ones(6, 4, dtype=BF16), "smooth_scales": ones(4)},
        "smooth_scales must be bfloat16 like x, not float16; convert it",
        {"x": ones(6, 4, dtype=BF16), "smooth_scales": ones(4, dtype=BF16)}, NEW),
    # shapes
    *(
        Row({"x": ones(*shape)},
            f"x must have at least two dimensions, not shape {shape}; reshape it",
            {"x": ones(1, 4)}, NEW)
        for shape in ((), (4,))
    ),
    Row({"x": ones(*[1] * 9)}, "x must have at most 8 dimensions, not 9; reshape it",
        {"x": ones(*[1] * 8)}, NEW),
    *(
        Row({"x": ones(*shape)},
            f"the last dimension of x must not be empty where x has rows, not shape {shape}; "
            f"drop the rows", {"x": ones(*right)}, NEW)
        for shape, right in (((6, 0), (0, 0)), ((2, 3, 0), (2, 0, 0)))
    ),
    *(
        Row({"smooth_scales": ones(*shape)},
            f"smooth_scales must have shape (4,) like the last dimension of x, not {shape}; "
            f"pass a scale for each column", {"smooth_scales": ones(4)}, NEW)
        for shape in ((), (1,), (3,), (6,), (1, 4), (6, 4))
    ),
    # what is not simulated
    *(
        Row({"group_index": index}, NOT_GROUPS, {"group_index": None}, NEW, Code.UNSUPPORTED)
        for index in (np.array([6], np.int32), TensorSpec((2,), "int32"), [6])
    ),
    Row({"x": ones(6, 8), "dst_type": "quint4x2"},
        "dst_type must be int8, not 'quint4x2'; the kernels that pack int4 are not simulated",
        {"x": ones(6, 8), "dst_type": "int8"}, NEW, Code.UNSUPPORTED),
    # dst_type
    *(
        Row({"dst_type": dtype},
            f"dst_type must be int8 or quint4x2, not {dtype!r}; choose one of these",
            {"dst_type": right}, NEW)
        for dtype, right in (("int4", "int8"), ("qint8", None), (1, "int8"), (np.int8, "int8"))
    ),
]  # fmt: skip


@on_each_line(ROWS)
def test_every_constraint(series: str, rows: list[Row], subtests: pytest.Subtests) -> None:
    for row in rows:
        with subtests.test(row.message):
            assert_refused(OP, BASE | row.wrong, row, series)
            assert_accepted(OP, BASE | row.right, series)


@pytest.mark.parametrize("device", INFERENCE)
def test_a_310p_is_not_offered_it(device: str) -> None:
    message = (
        f"npu_dynamic_quant: the chip must be of Atlas A2 or Atlas A3, not {device} of "
        "Atlas inference, for which torch_npu does not offer it; use npu_quantize with scales of "
        "your own [361001]"
    )
    # Whatever the arguments are.
    for call in (BASE, {"x": None}):
        with pytest.raises(OpError, match="^" + re.escape(message) + "$") as caught:
            run(OP, device=device, **call)
        assert caught.value.code is Code.UNSUPPORTED
