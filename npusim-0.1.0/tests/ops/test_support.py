"""Rows of support: what they refuse, in which words, and the table that they make."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npusim import Code, OpError, TensorSpec, devices, ops
from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT8, INT32
from npusim.ops import Contract, Row
from npusim.ops._support import A2_A3, ATLAS_INFERENCE, Operands, alike, required

A2, OLD = devices.load("Atlas A2"), devices.load("ascend310p3")
ROWS = (
    Row(
        on=A2_A3,
        x=Operands((FLOAT16, BFLOAT16), ranks=(2, 3)),
        weight=Operands((INT8,), ("ND", "FRACTAL_NZ")),
        scale=required(FLOAT32),
        mode=(0, 1),
    ),
    Row(on=A2_A3, x=INT8, weight=INT8, bias=INT32, scale=FLOAT32, mode=(0,), template="bytes"),
    Row(on=A2_A3, x=INT8, weight=Operands((INT32,), most=1), bias=FLOAT32, mode=(0,)),
)


def contract(spec: Any = A2, **given: Any) -> Contract:
    missing = {"x": None, "weight": None, "bias": None, "scale": None, "mode": 0}
    return Contract("op", spec, arguments=missing | given, support=ROWS)


def checked(held: Contract) -> Contract:
    held.require_series("use another")
    held.operand("x")
    held.matrices("weight")
    held.optional("scale")
    held.integer("mode")
    held.require_presence(("x", "weight", "bias", "scale"))
    return held


def spec(dtype: str, *shape: int, layout: str = "ND") -> TensorSpec:
    return TensorSpec(shape, dtype, layout)


HALF, BYTES = spec("float16", 4, 64), spec("int8", 4, 64)
WEIGHT, PACKED = spec("int8", 64, 16), spec("int32", 64, 2)
SCALE = spec("float32", 16)


@pytest.mark.parametrize(
    ("given", "message", "code"),
    [
        ({"x": spec("float32", 4, 64)},
        "x must be float16, bfloat16 or int8 on Atlas A2, not float32; convert it", 161002),
        ({"x": HALF, "weight": PACKED},
        "weight must be int8 with x of float16 on Atlas A2, not int32; pass its elements, which "
        "int32 holds packed, as int8", 161002),
        ({"x": spec("float16", 64), "weight": WEIGHT},
        "x must have 2 to 3 dimensions with x of float16 on Atlas A2, not shape (64,); reshape "
        "it", 161002),
        ({"x": BYTES, "weight": spec("int8", 64, 32, layout="FRACTAL_NZ")},
        "weight must have layout ND with x of int8 on Atlas A2, not FRACTAL_NZ; pass it through "
        "npu_format_cast(..., 2)", 161002),
        ({"x": BYTES, "weight": [PACKED] * 2},
        "weight must be one tensor with weight[0] of int32 on Atlas A2, not 2; stack them",
         161002),
        ({"x": HALF, "weight": WEIGHT},
        "scale must be given with x of float16 on Atlas A2, not None; pass a tensor", 161001),
        ({"x": BYTES, "weight": PACKED, "scale": SCALE},
        "scale must be None with weight of int32 on Atlas A2, not given; leave it out", 161002),
        ({"x": BYTES, "weight": WEIGHT, "mode": 1},
        "mode must be 0 with x of int8 on Atlas A2, not 1; pass 0", 161002),
        ({"x": HALF, "weight": WEIGHT, "scale": SCALE, "bias": SCALE},
        "bias must be None with x of float16 on Atlas A2, not given; leave it out", 161002),
    ],
)  # fmt: skip
def test_a_refusal_says_what_narrowed_the_rows(
    given: dict[str, Any], message: str, code: int
) -> None:
    with pytest.raises(OpError, match=f"^{re.escape(f'op: {message} [{code}]')}$") as caught:
        checked(contract(**given))
    assert caught.value.code == code


def test_a_product_line_without_a_row_is_refused() -> None:
    message = (
        "op: the chip must be of Atlas A2 or Atlas A3, not ascend310p3 of Atlas inference, which "
        "has no such kernel; use another [361001]"
    )
    with pytest.raises(OpError, match=f"^{re.escape(message)}$") as caught:
        checked(contract(OLD, x=HALF))
    assert caught.value.code is Code.UNSUPPORTED


def test_the_rows_that_are_left_say_more() -> None:
    held = checked(contract(x=np.ones((4, 64), np.int8), weight=WEIGHT))
    assert [row.template for row in held.rows] == ["bytes"]
    assert held.when("bias") == " with weight of int8 on Atlas A2"


def test_what_a_contract_asks_for_stands_in_the_signature() -> None:
    message = (
        "op: its contract must ask for one of x, weight, bias, scale, mode, not offset; add it to "
        "the signature"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        contract().optional("offset")


def test_rows_of_one_type_each() -> None:
    rows = alike((FLOAT16, FLOAT32), "x", "gamma", on=ATLAS_INFERENCE)
    assert [row.operands("gamma").dtypes for row in rows] == [(FLOAT16,), (FLOAT32,)]
    assert {row.on for row in rows} == {ATLAS_INFERENCE}


SHAPED = Row(
    x=Operands((FLOAT16,), ranks=(2, 8), shape="*rows columns"),
    weight=Operands((FLOAT16,), shape="*rows 1 columns"),
    bias=Operands((FLOAT16,), shape="columns", shape_code=Code.TILING_ERROR),
    scale=Operands((FLOAT16,), shape="columns groups"),
)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((4,),), "x must have at least two dimensions, not shape (4,); reshape it [161002]"),
        (((),), "x must have shape (*rows, columns), not (); {} [161002]"),
        (((2, 3, 4), (2, 3, 2, 4)),
        "weight must have shape (2, 3, 1, 4) like x, not (2, 3, 2, 4); {} [161002]"),
        (((2, 3, 4), (3, 1, 5)),
        "weight must have shape (2, 3, 1, 4) like x, not (3, 1, 5); {} [161002]"),
        (((2, 4), (2, 1, 4), (5,)), "bias must have shape (4,) like x, not (5,); {} [561002]"),
        (((2, 4), (2, 1, 4), (4,), (3, 7)),
        "scale must have shape (4, groups) like x, not (3, 7); {} [161002]"),
        (((2, 4), (2, 1, 4), (4,), (4,)),
        "scale must have shape (4, groups) like x, not (4,); {} [161002]"),
    ],
)  # fmt: skip
def test_a_name_is_one_size_in_all_tensors(
    shapes: tuple[tuple[int, ...], ...], message: str
) -> None:
    given = dict(zip(SHAPED.entries, (spec("float16", *shape) for shape in shapes), strict=False))
    held = Contract("op", A2, arguments=given, support=(SHAPED,))
    *good, last = given
    for name in good:
        held.operand(name)
    whole = f"op: {message.format('pass one of that shape')}"
    with pytest.raises(OpError, match=f"^{re.escape(whole)}$"):
        held.operand(last)


def test_only_one_name_stands_for_any_number_of_sizes() -> None:
    message = (
        "Operands: a shape must have one name at most that stands for any number of sizes, not "
        "'*rows *columns'; name the others one by one"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        Operands((FLOAT16,), shape="*rows *columns")


def test_the_table_says_the_names_of_sizes() -> None:
    operator = replace(
        ops.load("npu_swiglu"), support=(Row(x=Operands((FLOAT16,), shape="*rows columns")),)
    )
    assert ops.support_table(operator)[1][1] == "float16 of shape (*rows, columns)"


def test_the_table_has_a_line_a_row() -> None:
    rows = (
        Row(on=A2_A3, x=Operands((FLOAT16, BFLOAT16), ranks=(1, 8))),
        *(Row(on=ATLAS_INFERENCE, x=dtype) for dtype in (FLOAT16, FLOAT32)),
    )
    assert ops.support_text(replace(ops.load("npu_swiglu"), support=rows)).splitlines() == [
        "| product lines      | x                                           |",
        "| ------------------ | ------------------------------------------- |",
        "| Atlas A2, Atlas A3 | float16, bfloat16 of at least one dimension |",
        "| Atlas inference    | float16, float32                            |",
    ]
    header, *lines = ops.support_table(ops.load("npu_grouped_matmul"))
    facts = dict(zip(header, lines[-1], strict=True))
    assert facts["weight"] == "float16 as ND or FRACTAL_NZ, one"
    assert (facts["bias"], facts["scale"]) == ("float16, or None", "-")
    assert facts["group_list_type"] == "0, 1"


def test_the_rows_of_every_operator(pytestconfig: pytest.Config) -> None:
    """`pytest --update-golden` rewrites them: a type more or less shows as a diff."""
    path = Path(__file__).with_name("support.txt")
    text = "".join(f"{name}\n{ops.support_text(ops.load(name))}\n\n" for name in ops.names())
    if pytestconfig.getoption("--update-golden"):
        path.write_text(text)
    assert text == path.read_text()
