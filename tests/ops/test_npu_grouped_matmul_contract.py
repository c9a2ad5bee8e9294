"""npu_grouped_matmul: every constraint with a call that breaks it, and the forms that are accepted.

Sources: torch_npu-npu_grouped_matmul.md; ops-transformer@c29bc10 gmm/grouped_matmul, its README and
op_host/op_api/aclnn_grouped_matmul.cpp; op-plugin@517f2e7 GroupedMatmulKernelNpuOpApi.cpp.
"""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from calls import half_ones as ones
from op_calls import LINES, NEW, OLD, Row, constraints

from npusim import OpError, Tensor, TensorSpec, devices, ops, run
from npusim.ops import _support
from npusim.ops.npu_grouped_matmul.support import SUPPORT

OP = "npu_grouped_matmul"
I8, I32, I64, F32 = np.int8, np.int32, np.int64, np.float32


BASE: dict[str, Any] = {
    "x": ones(6, 32),
    "weight": ones(2, 32, 16),
    "group_list": np.array([2, 6]),
    "group_type": 0,
    "split_item": 3,
}
BYTES = {"x": ones(6, 32, dtype=I8), "weight": ones(2, 32, 16, dtype=I8)}
STATIC = BYTES | {"scale": np.full((2, 16), 1 << 46, I64)}
HALF = BYTES | {"scale": ones(2, 16, dtype=F32), "output_dtype": "float16"}
EACH: dict[str, Any] = {"x": [ones(6, 32)] * 2, "weight": [ones(32, 16)] * 2, "split_item": 0}
EACH |= {"group_list": None, "group_type": -1}
ALONG: dict[str, Any] = {"x": ones(32, 6).T, "weight": ones(32, 16), "group_type": 2}
ALONG |= {"group_list": np.array([2, 32])}

ROWS = [
    Row({"x": []}, "x must be a list of 1 to 128 tensors, not of 0; pass a tensor"),
    Row({"weight": [ones(32, 16)] * 129},
        "weight must be a list of 1 to 128 tensors, not of 129; split the call"),
    Row({"weight": [ones(32, 16), ones(32, 16, dtype=I8)]},
        "weight[1] must be float16 with weight[0] of float16 on {series}, not int8; convert it"),
    Row({"weight": [ones(32, 16), ones(16, 32).T]},
        "weight[1] must be contiguous like weight[0], not a transposed view; make all "
        "tensors of weight alike"),
    Row({"activation_input": [ones(1)]}, "activation_input must be None, not given; leave it out"),
    Row({"bias": ones(16)},
        "bias must have shape (2, 16) for weight of shape (2, 32, 16), not (16,); pass a "
        "number a column"),
    Row({"bias": [ones(16)] * 2},
        "bias must have as many tensors as weight, 1, not 2; pass one for each"),
    Row(HALF | {"per_token_scale": ones(5, dtype=F32)},
        "per_token_scale must have shape (6,) for x of shape (6, 32), not (5,); pass a "
        "number a row"),
    Row(HALF | {"per_token_scale": [ones(6, dtype=F32)] * 2},
        "per_token_scale must have as many tensors as x, 1, not 2; pass one for each"),
    Row({"split_item": 4},
        "split_item must be 0, 1, 2 or 3, not 4; pass 0 or 1 for an output for each "
        "group, 2 or 3 for one"),
    Row({"split_item": 0}, "split_item must be 2 or 3 with group_type=0, not 0; change it"),
    Row({"group_type": None},
        "group_type must be given unless group_list is a list of integers, not None; pass"
        " -1, 0 or 2"),
    Row({"group_type": -1}, "group_list must be None with group_type=-1; leave it out"),
    Row({"group_list_type": 3},
        "group_list_type must be 0, 1 or 2, not 3; pass 0 for ends, 1 for rows, 2 for "
        "pairs of an expert and its rows"),
    Row({"group_list": None},
        "group_list must be given with group_type=0 and one x, not None; pass the end of "
        "each group"),
    Row({"group_list": np.array([[2, 6]])},
        "group_list must have shape (e,) with group_list_type=0, not (1, 2); pass a number a group",
        ),
    Row({"group_list": np.array([6])},
        "group_list must have as many groups as there are weights, 2, not 1; pass one for each"),
    Row({"group_list": np.array([3, 2])},
        "group_list must not decrease, but a group has -1 rows; pass the groups in order"),
    Row({"group_list": np.array([3, 7])},
        "group_list must list at most the 6 rows of x, not 7; pass the groups of this x"),
    Row({"group_list": np.array([7, -1]), "group_list_type": 1},
        "group_list must have no negative numbers, but a group has -1 rows; pass the "
        "groups in order"),
    Row(HALF | {"group_list": np.array([[0, 2], [2, 1]]), "group_list_type": 2},
        "group_list must name experts from 0 to 1, not 2; pass the number of a weight"),
    Row({"group_list": [2, 6], "group_list_type": 1},
        "group_list_type must be 0 if group_list is a list of integers, not 1; pass the "
        "end of each group"),
    Row({"group_list": [2, 6]},
        "weight must be a list of (k, n) matrices if group_list is a list of integers, "
        "not of shape (2, 32, 16); unbind it, or pass group_list as a tensor"),
    Row({"x": ones(2, 3, 32)},
        "x must have two dimensions with group_type=0, not shape (2, 3, 32); reshape it"),
    Row({"weight": ones(32, 16)},
        "group_list must have as many groups as there are weights, 1, not 2; pass one for each"),
    Row({"weight": ones(2, 31, 16)},
        "weight must have as many rows as x has columns, 32, not 31; pass x as (m, k) and"
        " weight as (k, n)"),
    Row({"x": ones(0, 32)}, "x must not be empty, not of shape (0, 32); leave the call out"),
    Row({"x": ones(32, 6).T},
        "x must be contiguous with group_type=0, not a transposed view; make it contiguous"),
    Row({"weight": [ones(32, 16), ones(32, 17)]},
        "weight[1] must have as many columns as weight[0], 16, not 17; pad it"),
    Row({"weight": [ones(32, 16), ones(31, 16)]},
        "weight[1] must have as many rows as x has columns, 32, not 31; pass x as (m, k) "
        "and weight as (k, n)"),
    Row({"x": [ones(3, 32)] * 3, "weight": [ones(32, 16)] * 2},
        "x and weight must be one tensor each, one tensor and several or as many tensors "
        "with group_type=0 and split_item=3, not 3 and 2 tensors; change the lists"),
    Row({"x": [ones(3, 32)] * 2, "weight": ones(2, 32, 16)},
        "x and weight must be one tensor each, one tensor and several or as many tensors "
        "with group_type=0 and split_item=3, not 2 and 1 tensors; change the lists"),
    Row({"weight": TensorSpec((2, 32, 65536), "float16")},
        "the last dimension of weight must be at most 65535, not 65536; split the call"),
    Row({"weight": Tensor.of(ones(2, 32, 17), "FRACTAL_NZ")},
        "weight in FRACTAL_NZ must have k and n that are multiples of 16 and 16, not 32 "
        "and 17; pad it"),
    Row({"weight": Tensor.of(ones(2, 33, 16), "FRACTAL_NZ", transposed=True), "x": ones(6, 33)},
        "weight in FRACTAL_NZ must have k and n that are multiples of 16 and 16, not 33 "
        "and 16; pad it"),
    Row(EACH | {"x": [ones(6, 32), ones(2, 3, 32)]},
        "x[1] must have two to six dimensions, all as many, with group_type=-1, not shape"
        " (2, 3, 32); reshape it"),
    Row(EACH | {"split_item": 2},
        "split_item must be 0 or 1 with group_type=-1, not 2; change it"),
    Row({
        "x": [ones(2, 32), ones(4, 32)],
        "weight": [ones(32, 16)] * 2,
        "group_list": np.array([3, 6]),
    },
        "group_list must give x[0] its 2 rows, not 3; leave it out"),
    Row(ALONG | {"x": ones(6, 32)},
        "x must be the transposed view of a (k, m) matrix with group_type=2, not "
        "contiguous; pass the .T of one"),
    Row(ALONG | {"weight": ones(16, 32).T},
        "weight must be contiguous with group_type=2, not a transposed view; make it contiguous"),
    Row(ALONG | {"weight": ones(31, 16)},
        "weight must have as many rows as x has columns, 32, not 31; pass x as (m, k) and"
        " weight as (k, n)"),
    Row(ALONG | {"bias": ones(2, 16)}, "bias must be None with group_type=2; leave it out"),
    Row(ALONG | {"group_list": np.array([2, 33])},
        "group_list must list at most the 32 columns of x, not 33; pass the groups of this x"),
    Row(ALONG | {"weight": [ones(20, 16)] * 2, "split_item": 0, "group_list": None},
        "weight must have at most as many rows as x has columns, 32, not 40; pass x as "
        "(m, k) and weight as (k, n)"),
    Row(ALONG | {"weight": [ones(16, 16)] * 2, "split_item": 0},
        "group_list must be None with group_type=2 and several weights; leave it out"),
    Row(ALONG | {"group_list": None},
        "group_list must be given with group_type=2 and one x, not None; pass the end of "
        "each group"),
    Row({"tuning_config": 3},
        "tuning_config must be a list of integers, not 3; pass a list of them"),
    Row({"tuning_config": [7]},
        "tuning_config[0] must lie in [0, 6], the rows of x, not 7; pass the rows that an"
        " expert is expected to have"),
    Row({"group_list": np.arange(1025)},
        "group_list must have at most 1024 groups with one tensor of weight, not 1025; "
        "split the call"),
    Row({"group_list": np.arange(129) // 22, "weight": [ones(32, 16)] * 128},
        "group_list must have at most 128 groups with several tensors of weight, not 129;"
        " split the call"),
]  # fmt: skip
ROWS_OF_310P = [
    Row({"group_list": [2, 6], "group_type": None, "weight": [ones(32, 16)] * 2},
        "weight must be one tensor on Atlas inference, not 2; stack them"),
    Row(EACH, "x must be one tensor on Atlas inference, not 2; stack them"),
    Row({"group_type": None},
        "group_type must be given unless group_list is a list of integers, not None; pass -1, 0 "
        "or 2"),
    Row({"weight": [ones(32, 16)] * 2},
        "weight must be one tensor on Atlas inference, not 2; stack them"),
    Row({"weight": ones(2, 32, 24)},
        "n must be a multiple of 16 on Atlas inference, not 24; pad weight"),
    Row({"template": "plain"},
        "template must be coupled with float16 x, float16 weight and float16 output, not 'plain'; "
        "leave it out to get the vendor's choice"),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS, NEW)
test_each_constraint_on_310p = constraints(OP, BASE, ROWS_OF_310P, OLD)


def check(series: str, call: dict[str, Any]) -> Any:
    return ops.load(OP).check(devices.load(LINES[series]), **(BASE | call))


@pytest.mark.parametrize("given", [
    {}, {"bias": ones(2, 16)}, {"weight": Tensor.of(ones(2, 32, 16), "FRACTAL_NZ")},
    {"group_list": np.array([2, 4]), "group_list_type": 1}, {"template": "coupled"},
])  # fmt: skip
def test_what_310p_takes(given: dict[str, Any]) -> None:
    assert check("Atlas inference", given).outputs == {"output": TensorSpec((6, 16), "float16")}


# ---- what is accepted ----


FLOAT_ROWS = [row for row in SUPPORT if row.on == _support.A2_A3 and row.facts.weight.bits >= 8]
"""int4 comes packed."""


@pytest.mark.parametrize("row", FLOAT_ROWS, ids=lambda row: str(row.facts))
@pytest.mark.parametrize("series", NEW)
def test_the_types_of_a_row_go_together(row: _support.Row, series: str) -> None:
    types = row.facts
    call: dict[str, Any] = {"x": TensorSpec((6, 32), types.x.name)}
    call |= {"output_dtype": types.output.name, "group_list": TensorSpec((2,), "int64")}
    for name in ("antiquant_scale", "antiquant_offset", "per_token_scale"):
        if row.operands(name).presence == "required":
            shape = (6,) if name == "per_token_scale" else (2, 64)
            call[name] = TensorSpec(shape, row.operands(name).dtypes[0].name)
    choices = {
        name: (*of.dtypes, *(() if of.presence == "required" else (None,)))
        for name in ("bias", "scale")
        for of in (row.operands(name),)
    }
    for layout in row.operands("weight").layouts:
        call["weight"] = TensorSpec((2, 32, 64), types.weight.name, layout)
        for bias, scale in product(choices["bias"], choices["scale"]):
            given = {"bias": bias, "scale": scale}
            numbers = {k: TensorSpec((2, 64), v.name) for k, v in given.items() if v}
            problem = check(series, call | numbers)
            assert problem.types is types
            assert problem.output == TensorSpec((6, 64), types.output.name)


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (EACH, [(6, 16), (6, 16)]),
        (EACH | {"x": [ones(2, 3, 32)] * 2}, [(2, 3, 16)] * 2),
        (ALONG, [(2, 6, 16)]),
        (ALONG | {"weight": [ones(16, 16), ones(16, 8)], "group_list": None, "split_item": 1},
         [(6, 16), (6, 8)]),
        ({"weight": [ones(32, 16)] * 2, "group_list": [2, 6], "group_type": None, "split_item": 0},
         [(2, 16), (4, 16)]),
        ({"bias": [], "scale": [], "activation_input": []}, [(6, 16)]),
    ],
)  # fmt: skip
def test_outputs_are_those_of_the_groups(call: Any, shapes: Any) -> None:
    assert [spec.shape for spec in check("Atlas A2", call).outputs.values()] == shapes


def test_parameters_of_later_chips_must_be_none() -> None:
    message = (
        f"{OP}: x_dtype must be None on the chips that are simulated, not given; leave it out "
        f"[161002]"
    )
    with pytest.raises(OpError, match="^" + re.escape(message) + "$"):
        run(OP, **BASE, x_dtype="int8", device="ascend910b2")
