"""A tensor that is made by another operator, as a refusal advises, is accepted.

What else refusals advise stands in the tables of constraints, as the nearest call that is accepted.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from calls import ones
from op_calls import LINES, Row, assert_refused

from npusim import DocumentWarning, TensorSpec, run

WEIGHT, PRODUCT = "npu_weight_quant_batchmatmul", "npu_quant_matmul"
HALF = np.float16
A2 = LINES["Atlas A2"]
Call = dict[str, Any]


def int8(*shape: int) -> Any:
    return ones(*shape, dtype=np.int8)


def int32(*shape: int) -> Any:
    return ones(*shape, dtype=np.int32)


def packed(unpacked: Any) -> Any:
    return run("npu_convert_weight_to_int4pack", unpacked, device=A2).output


def words(scale: Any) -> Any:
    return run("npu_trans_quant_param", scale, device=A2).output


def cast(x: Any, acl_format: int) -> Any:
    return run("npu_format_cast", x, acl_format, device=A2).output


class Remedy(NamedTuple):
    """A refused call of an operator, what is said, and changes that the message advises."""

    op: str
    wrong: Call
    message: str
    changes: tuple[Call, ...]


BASE = {
    WEIGHT: {
        "x": ones(4, 64, dtype=HALF),
        "weight": int8(64, 128),
        "antiquant_scale": ones(128, dtype=HALF),
    },
    PRODUCT: {"x1": int8(4, 16), "x2": int8(16, 8), "scale": ones(8)},
    "npu_format_cast": {"acl_format": 29},
}
INT4 = ones(64, 128, dtype=ml_dtypes.int4)
NZ8, NZ4 = cast(int8(64, 128), 29), cast(int32(128, 8), 29).T
OR_ND = "change that, or pass weight through npu_format_cast(..., 2)"
REMEDIES = [
    Remedy(WEIGHT, {"weight": INT4},
           "weight must be int8 or int32 on Atlas A2, not int4; pass them packed, eight to an "
           "int32, as (64, 16): see npu_convert_weight_to_int4pack",
           ({"weight": packed(INT4.astype(np.int32))}, {"weight": TensorSpec((64, 16), "int32")})),
    Remedy(WEIGHT, {"weight": TensorSpec((128, 64), "int4").T},
           "weight must be int8 or int32 on Atlas A2, not int4; pass them packed, eight to an "
           "int32, as (8, 128): see npu_convert_weight_to_int4pack",
           ({"weight": TensorSpec((128, 8), "int32").T},)),
    Remedy(WEIGHT, {"quant_scale": np.full(128, 5, np.int64)},
           "quant_scale must come from npu_trans_quant_param if it is int64, not be 5; pack it",
           ({"quant_scale": words(np.full(128, 5, np.float32))},)),
    Remedy(WEIGHT, {"weight": NZ4, "antiquant_scale": words(ones(128))},
           "with an int64 antiquant_scale, weight must be int8 in ND, not int4 in FRACTAL_NZ; "
           "change that, or pass a float16 antiquant_scale",
           ({"weight": int8(128, 64).T}, {"antiquant_scale": ones(128, dtype=HALF)})),
    Remedy(WEIGHT, {"weight": NZ8, "x": ones(64, 4, dtype=HALF).T,
                    "antiquant_scale": ones(1, dtype=HALF)},
           "with an int8 FRACTAL_NZ weight, antiquant_scale must have a value for each column, not "
           f"one for all and x must not be transposed; {OR_ND}",
           ({"x": ones(4, 64, dtype=HALF), "antiquant_scale": ones(128, dtype=HALF)},
            {"weight": cast(NZ8, 2)})),
    Remedy(WEIGHT, {"weight": NZ4, "quant_scale": ones(128)},
           f"with an int32 FRACTAL_NZ weight, quant_scale must be None; {OR_ND}",
           ({"quant_scale": None}, {"weight": cast(NZ4, 2)})),
    Remedy(PRODUCT, {"x1": int32(4, 2)},
           "x2 must be int32 with x1 of int32 on Atlas A2, not int8; pack its elements, as int32, "
           "with npu_convert_weight_to_int4pack",
           ({"x2": packed(int32(16, 8)), "output_dtype": "float16"},)),
    Remedy(PRODUCT, {"x1": int32(4, 2), "x2": int32(16, 8), "output_dtype": "float16"},
           "scale must have shape (1,) or (64,) for a product of 4 rows and 64 columns, not (8,); "
           "an int32 of x2 holds eight int4: pack those that hold one with "
           "npu_convert_weight_to_int4pack",
           ({"x2": packed(int32(16, 8))},)),
    Remedy("npu_format_cast", {"x": TensorSpec((4, 16), "int4")},
           "x must be float16, bfloat16, float32, int8 or int32 on Atlas A2, not int4; pass them "
           "packed, eight to an int32, as (4, 2): see npu_convert_weight_to_int4pack",
           ({"x": TensorSpec((4, 2), "int32")},)),
]  # fmt: skip


@pytest.mark.parametrize("remedy", REMEDIES, ids=lambda each: each.message.partition(";")[0])
def test_what_is_advised_is_accepted(remedy: Remedy) -> None:
    wrong = BASE[remedy.op] | remedy.wrong
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DocumentWarning)
        assert_refused(remedy.op, wrong, Row({}, remedy.message), "Atlas A2")
        for change in remedy.changes:
            run(remedy.op, device=A2, timing=False, **wrong | change)


def test_a_warning_names_the_line_that_called() -> None:
    call = BASE[WEIGHT] | {"weight": NZ8, "quant_scale": ones(128)}
    with pytest.warns(DocumentWarning, match=r"quant_scale with ND weights only") as told:
        run(WEIGHT, device=A2, timing=False, **call)
    assert [warning.filename for warning in told] == [__file__]
