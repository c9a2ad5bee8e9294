"""What a refusal advises is done, to the letter, and the call is accepted then.

Each constraint has its own row in the operators' contract tables; here stand the refusals whose
remedy is more than "give another value": what the message says is done to the very call that it
refused.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from npusim import DocumentWarning, OpError, Tensor, TensorSpec, run

BF16, HALF, FULL = ml_dtypes.bfloat16, np.float16, np.float32
A2, OLD = "ascend910b2", "ascend310p3"
Call = dict[str, Any]


def ones(*shape: int, dtype: Any = HALF) -> Any:
    return np.ones(shape, dtype)


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
    """A refused call, the whole message, and the changes that the message advises."""

    op: str
    wrong: Call
    message: str
    changes: tuple[Call, ...]
    device: str = A2
    code: int = 161002


# ---- npu_weight_quant_batchmatmul ----

WEIGHT_QUANT = {"x": ones(4, 64), "weight": int8(64, 128), "antiquant_scale": ones(128)}
WORDS = {"weight": int8(128, 64).T, "antiquant_scale": words(ones(128, dtype=FULL))}
QUANT = {"quant_scale": ones(128, dtype=FULL)}
OFFSET = {"quant_offset": ones(128, dtype=FULL)}
NZ8 = {"weight": cast(int8(64, 128), 29)}
NZ4 = {"weight": cast(int32(128, 8), 29).T}
NZ4_BACK = {"weight": cast(NZ4["weight"], 2)}
GROUPS = {"antiquant_scale": ones(2, 128), "antiquant_group_size": 32}
GROUPED_NZ = {
    "x": ones(128, 4).T,
    "weight": cast(int32(128, 16), 29),
    "antiquant_scale": ones(2, 128),
    "antiquant_group_size": 64,
}
FLOAT_SCALE = {"antiquant_scale": ones(128)}
OR_FLOAT = "change that, or pass a float16 antiquant_scale"
OR_ND = "change that, or pass weight through npu_format_cast(..., 2)"


def weight_quant(wrong: Call, message: str, *changes: Call, **rest: Any) -> Remedy:
    op = "npu_weight_quant_batchmatmul"
    return Remedy(op, WEIGHT_QUANT | wrong, message, changes, **rest)


WEIGHT_QUANT_ROWS = [
    weight_quant(
        {"weight": ones(64, 128, dtype=ml_dtypes.int4)},
        "weight must be int8 or int32 on Atlas A2, not int4; pass them packed, eight to an int32, "
        "as (64, 16): see npu_convert_weight_to_int4pack",
        {"weight": packed(ones(64, 128, dtype=ml_dtypes.int4).astype(np.int32))},
        {"weight": TensorSpec((64, 16), "int32")},
    ),
    weight_quant(
        {"weight": TensorSpec((128, 64), "int4").T},
        "weight must be int8 or int32 on Atlas A2, not int4; pass them packed, eight to an int32, "
        "as (8, 128): see npu_convert_weight_to_int4pack",
        {"weight": TensorSpec((128, 8), "int32").T},
    ),
    weight_quant(
        {"weight": int32(64, 16)},
        "weight must be int8 on Atlas inference, not int32; pass its elements, which int32 holds "
        "packed, as int8",
        {"weight": int8(64, 128)},
        device=OLD,
    ),
    weight_quant(
        {"x": ones(4, 200), "weight": int8(200, 128), "antiquant_scale": ones(3, 128)},
        "antiquant_scale must have shape (1,), (1, 1), (128,) or (1, 128), not (3, 128); "
        "pass antiquant_group_size=96 if these are scales of groups",
        {"antiquant_group_size": 96},
    ),
    weight_quant(
        GROUPS | {"antiquant_group_size": 48},
        "antiquant_group_size must be 0, or a multiple of 32 in [32, k - 1 = 63], not 48; "
        "pass 32 with scales (2, n), or 0 with one for each column",
        {"antiquant_group_size": 32, "antiquant_scale": ones(2, 128)},
        {"antiquant_group_size": 0, "antiquant_scale": ones(128)},
    ),
    weight_quant(
        {"x": ones(4, 32), "weight": int8(32, 128), "antiquant_group_size": 32},
        "antiquant_group_size must be 0 for k = 32, not 32; pass 0, with one scale for each column",
        {"antiquant_group_size": 0, "antiquant_scale": ones(128)},
    ),
    weight_quant(
        OFFSET,
        "quant_offset must be None without quant_scale; pass both, or neither",
        QUANT,
        {"quant_offset": None},
    ),
    weight_quant(
        {"x": ones(4, 64, dtype=BF16), "antiquant_scale": WORDS["antiquant_scale"]},
        "antiquant_scale must be bfloat16 with x of bfloat16 on Atlas A2, not int64; "
        "pass the words that npu_trans_quant_param packed",
        {"antiquant_scale": ones(128, dtype=BF16)},
    ),
    weight_quant(
        {"quant_scale": np.full(128, 5, np.int64)},
        "quant_scale must come from npu_trans_quant_param if it is int64, not be 5; pack it",
        {"quant_scale": words(np.full(128, 5, FULL))},
    ),
    weight_quant(
        {"quant_scale": Tensor.of(WORDS["antiquant_scale"].reshape(1, -1), "FRACTAL_NZ")},
        "quant_scale must have layout ND, not FRACTAL_NZ; make it in ND",
        {"quant_scale": WORDS["antiquant_scale"].reshape(1, -1)},
    ),
    # combinations: the facts that are wrong and no others, and either way out
    weight_quant(
        WORDS | {"x": ones(64, 97).T},
        "with an int64 antiquant_scale, x must not be transposed and m must be at most 96, not "
        f"97; {OR_FLOAT}",
        {"x": ones(96, 64)},
        FLOAT_SCALE,
    ),
    weight_quant(
        WORDS | NZ4,
        f"with an int64 antiquant_scale, weight must be int8 in ND, not int4 in FRACTAL_NZ; "
        f"{OR_FLOAT}",
        {"weight": int8(128, 64).T},
        FLOAT_SCALE,
    ),
    weight_quant(
        WORDS | {"weight": int8(64, 128)},
        "with an int64 antiquant_scale, weight must be the transposed view of an (n, k) matrix, "
        f"not of (k, n); {OR_FLOAT}",
        {"weight": np.ascontiguousarray(int8(64, 128).T).T},
        FLOAT_SCALE,
    ),
    weight_quant(
        NZ8 | {"x": ones(64, 4).T, "antiquant_scale": ones(1)},
        "with an int8 FRACTAL_NZ weight, antiquant_scale must have a value for each column, not "
        f"one for all and x must not be transposed; {OR_ND}",
        {"x": ones(4, 64), "antiquant_scale": ones(128)},
        {"weight": cast(NZ8["weight"], 2)},
    ),
    weight_quant(
        NZ4 | QUANT,
        f"with an int32 FRACTAL_NZ weight, quant_scale must be None; {OR_ND}",
        {"quant_scale": None},
        NZ4_BACK,
    ),
    weight_quant(
        NZ4 | {"antiquant_scale": ones(1)},
        "with an int32 FRACTAL_NZ weight, antiquant_scale must have a value for each column, not "
        f"one for all; {OR_ND}",
        {"antiquant_scale": ones(128)},
        NZ4_BACK,
    ),
    weight_quant(
        {"weight": cast(int32(64, 16), 29)},
        "with an int32 FRACTAL_NZ weight, weight must be the transposed view of an (n, k) matrix "
        f"for a scale for each column, not a (k, n) matrix; {OR_ND}",
        NZ4,
        {"weight": cast(cast(int32(64, 16), 29), 2)},
    ),
    weight_quant(
        GROUPED_NZ | {"antiquant_group_size": 96},
        f"with an int32 FRACTAL_NZ weight, antiquant_group_size must be 64 or 128, not 96; {OR_ND}",
        {"antiquant_group_size": 64},
        {"weight": cast(GROUPED_NZ["weight"], 2)},
    ),
]

# ---- npu_quant_matmul ----

PRODUCT = {"x1": int8(4, 16), "x2": int8(16, 8), "scale": ones(8, dtype=FULL)}
INT4 = {"x1": int32(4, 2), "x2": int32(16, 1), "output_dtype": "float16"}
TOKENS = {"pertoken_scale": ones(4, dtype=FULL)}


def product(wrong: Call, message: str, *changes: Call, **rest: Any) -> Remedy:
    return Remedy("npu_quant_matmul", PRODUCT | wrong, message, changes, **rest)


PRODUCT_ROWS = [
    product(
        {"x1": int32(4, 2)},
        "x2 must be int32 with x1 of int32 on Atlas A2, not int8; pack its elements, as int32, "
        "with npu_convert_weight_to_int4pack",
        {"x2": packed(int8(16, 8).astype(np.int32)), "output_dtype": "float16"},
    ),
    product(
        INT4 | {"x1": int32(4, 16), "x2": int32(16, 8)},
        "x2 must have as many rows as x1 has columns, 128, not 16; an int32 of x1 holds eight "
        "int4: pack those that hold one with npu_convert_weight_to_int4pack",
        {"x1": packed(int32(4, 16)), "x2": packed(int32(16, 8))},
    ),
    product(
        INT4 | {"x2": int32(16, 8)},
        "scale must have shape (1,), (64,) for a product of 4 rows and 64 columns, not (8,); "
        "an int32 of x2 holds eight int4: pack those that hold one with "
        "npu_convert_weight_to_int4pack".replace("(1,), (64,)", "(1,) or (64,)"),
        {"x2": packed(int32(16, 8))},
    ),
    product(
        {"scale": words(ones(8, dtype=FULL)), "output_dtype": "bfloat16"},
        "scale must be float32 or bfloat16 with x2 of int8 and output_dtype=bfloat16 on Atlas "
        "A2, not int64; pass the words that npu_trans_quant_param packed",
        {"scale": ones(8, dtype=FULL)},
    ),
    product(
        INT4 | TOKENS | {"scale": ones(1, 8, dtype=FULL)},
        "scale must have one dimension with packed int4 matrices and without group_sizes, not "
        "shape (1, 8); pass one number, or one a column, or group_sizes=[0, 0, 256]",
        {"scale": ones(1, dtype=FULL)},
        {"scale": ones(8, dtype=FULL)},
    ),
]

# ---- the others ----

QUANTIZE = {
    "input": ones(4, 16),
    "scales": ones(16),
    "zero_points": None,
    "dtype": "qint8",
    "axis": -1,
    "div_mode": False,
}
DIVIDE = QUANTIZE | {"scales": ones(16, dtype=FULL), "div_mode": True}
GROUP = {"x": ones(4, 16), "scale": ones(2, 16), "group_index": np.array([2, 4])}
OTHER_ROWS = [
    Remedy(
        "npu_quantize",
        QUANTIZE | {"zero_points": ones(1)},
        "zero_points must have the shape of scales, (16,), not (1,); pass as many elements as "
        "scales has",
        ({"zero_points": ones(16)},),
    ),
    Remedy(
        "npu_quantize",
        DIVIDE | {"scales": ones(1, 16, dtype=FULL)},
        "scales must be one-dimensional with div_mode=True, not of shape (1, 16); flatten them",
        ({"scales": ones(1, 16, dtype=FULL).reshape(-1)},),
    ),
    Remedy(
        "npu_group_quant",
        GROUP | {"scale": ones(0, 16), "group_index": np.zeros(0, np.int64)},
        "scale must have at least one row, not shape (0, 16); add one, and its end to group_index",
        ({"scale": ones(1, 16), "group_index": np.array([4])},),
    ),
    Remedy(
        "npu_group_quant",
        GROUP | {"group_index": np.array([2, 3])},
        "group_index must end with the number of rows of x, 4, not be [2, 3]; pass the end row of "
        "each group, in order (core 0)",
        ({"group_index": np.array([2, 4])},),
        code=507015,
    ),
    Remedy(
        "npu_trans_quant_param",
        {"scale": ones(1, 4, dtype=FULL), "offset": ones(4, dtype=FULL)},
        "scale and offset must both have shape (1, n) if scale has two dimensions, not (1, 4) and "
        "(4,); flatten both",
        ({"scale": ones(1, 4, dtype=FULL).reshape(-1)},),
    ),
    Remedy(
        "npu_trans_quant_param",
        {"scale": ones(4, dtype=FULL), "offset": ones(3, dtype=FULL)},
        "offset must have shape (1,) or that of scale, (4,), not (3,); pass one number, or one for "
        "each of scale",
        ({"offset": ones(1, dtype=FULL)}, {"offset": ones(4, dtype=FULL)}),
    ),
    Remedy(
        "npu_trans_quant_param",
        {"scale": ones(4, dtype=FULL), "offset": ones(1, 4, dtype=FULL)},
        "offset must have shape (1,) or that of scale, (4,), not (1, 4); reshape it",
        ({"offset": ones(1, 4, dtype=FULL).reshape(4)},),
    ),
    Remedy(
        "npu_anti_quant",
        {"x": int32(4, 2), "scale": ones(1, dtype=FULL)},
        "x must be int8 on Atlas inference, not int32; pass its elements, which int32 holds "
        "packed, as int8",
        ({"x": int8(4, 16)},),
        OLD,
    ),
    Remedy(
        "npu_anti_quant",
        {"x": int8(4, 16), "scale": ones(16, dtype=FULL), "offset": ones(1, dtype=FULL)},
        "offset must have the shape of scale, (16,), not (1,); pass as many elements as scale has",
        ({"offset": ones(16, dtype=FULL)},),
    ),
    Remedy(
        "npu_format_cast",
        {"x": TensorSpec((4, 16), "int4"), "acl_format": 29},
        "x must be float16, bfloat16, float32, int8 or int32 on Atlas A2, not int4; pass them "
        "packed, eight to an int32, as (4, 2): see npu_convert_weight_to_int4pack",
        ({"x": TensorSpec((4, 2), "int32")},),
    ),
    Remedy(
        "npu_dynamic_quant",
        {"x": ones(4, 0)},
        "the last dimension of x must not be empty where x has rows, not shape (4, 0); drop the "
        "rows",
        ({"x": ones(0, 0)},),
    ),
    Remedy(
        "matmul",
        {"x1": ones(2, 4, 16), "x2": ones(3, 16, 8)},
        "the batch dimensions of x1 and x2 must broadcast, not (2,) and (3,); make them equal, or "
        "1",
        ({"x2": ones(2, 16, 8)}, {"x1": ones(1, 4, 16)}),
    ),
]


@pytest.mark.parametrize(
    "row",
    WEIGHT_QUANT_ROWS + PRODUCT_ROWS + OTHER_ROWS,
    ids=lambda row: f"{row.op}: {row.message.partition(';')[0]}",
)
def test_what_is_advised_is_accepted(row: Remedy) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DocumentWarning)
        with pytest.raises(OpError) as caught:
            run(row.op, device=row.device, timing=False, **row.wrong)
        assert str(caught.value) == f"{row.op}: {row.message} [{row.code}]"
        for change in row.changes:
            run(row.op, device=row.device, timing=False, **row.wrong | change)


def test_another_operator_that_is_advised_takes_the_tensors() -> None:
    """On Atlas inference: rows of one group, and the output of a product."""
    message = (
        "npu_group_quant: the chip must be of Atlas A2 or Atlas A3, not ascend310p3 of Atlas "
        "inference, which npusim has no kernel for; use npu_quantize with div_mode=False for each "
        "group [361001]"
    )
    with pytest.raises(OpError) as caught:
        run("npu_group_quant", device=OLD, **GROUP)
    assert str(caught.value) == message
    group, rows = GROUP["scale"][0], GROUP["x"][:2]
    run("npu_quantize", rows, group, None, "qint8", -1, False, device=OLD, timing=False)
    found = run("npu_weight_quant_batchmatmul", device=OLD, timing=False, **WEIGHT_QUANT).output
    run("npu_quantize", found, QUANT["quant_scale"], None, "qint8", -1, device=OLD, timing=False)
    message = (
        "npu_convert_weight_to_int4pack: the chip must be of Atlas A2 or Atlas A3, not ascend310p3 "
        "of Atlas inference, which npusim has no kernel for; use int8 weights [361001]"
    )
    with pytest.raises(OpError) as caught:
        run("npu_convert_weight_to_int4pack", int32(64, 128), device=OLD)
    assert str(caught.value) == message
    run("npu_weight_quant_batchmatmul", device=OLD, timing=False, **WEIGHT_QUANT)


def test_a_warning_names_the_line_that_called() -> None:
    with pytest.warns(DocumentWarning, match=r"quant_scale with ND weights only") as told:
        run(
            "npu_weight_quant_batchmatmul",
            device=A2,
            timing=False,
            **WEIGHT_QUANT | NZ8 | QUANT,
        )
    assert [warning.filename for warning in told] == [__file__]
