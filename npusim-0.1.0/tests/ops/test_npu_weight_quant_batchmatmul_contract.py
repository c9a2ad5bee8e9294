"""npu_weight_quant_batchmatmul: every rule of its code, a call that breaks it, one that does not.

Sources: torch_npu.contrib.module.LinearWeightQuant; for what its document leaves open, op-plugin,
WeightQuantBatchMatmulV2KernelNpuOpApi.cpp, and ops-nn, aclnn_weight_quant_batch_matmul_v2.cpp.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from calls import half_ones as ones
from matrix_calls import fractals
from op_calls import LINES, NEW, OLD, Row, constraints
from weight_calls import check

from npusim import Code, DocumentWarning, Tensor, TensorSpec, devices
from npusim.ops.npu_weight_quant_batchmatmul import Problem

OP = "npu_weight_quant_batchmatmul"
HALF, FULL = np.float16, np.float32


def int8(*shape: int) -> Any:
    return ones(*shape, dtype=np.int8)


def int32(*shape: int) -> Any:
    return ones(*shape, dtype=np.int32)


def spec(*shape: int, dtype: str = "float16") -> TensorSpec:
    return TensorSpec(shape, dtype)


def checked(call: dict[str, Any], series: str) -> Problem:
    return check(devices.load(LINES[series]), **call)


WORD = 70507248484352
BASE = {"x": ones(4, 64), "weight": int8(64, 128), "antiquant_scale": ones(128)}
GROUP = {"antiquant_scale": ones(2, 128), "antiquant_group_size": 32}
PACKED = {
    "weight": int8(128, 64).T,
    "antiquant_scale": np.full(128, WORD, np.int64),
}
INT4 = {"weight": int32(64, 16)}
INT8_NZ = {"weight": fractals(int8(64, 128))}
INT4_NZ = {"weight": fractals(int32(128, 8)).T}
QUANT = {"quant_scale": ones(128, dtype=FULL)}
BIG = {"antiquant_scale": spec(1)}

RESHAPE, ONE_OR_N = "reshape it", "pass one value, or one for each column"
EACH = "pass a scale for each group and column"
PAIR_T = {"antiquant_scale": ones(128, 2).T, "antiquant_group_size": 32}
SHAPES = [
    Row({"x": ones(0, 64)}, "x must not be empty, not of shape (0, 64); leave the call out"),
    Row({"weight": int8(64, 0)},
        "weight must not be empty, not of shape (64, 0); leave the call out"),
    Row({"weight": int8(128, 64)},
        "weight must have k = 64 rows as x has columns, not 128; pass its transpose",
        {"weight": int8(128, 64).T}),
    Row({"weight": int32(8, 128)},
        "weight must have k = 64 rows as x has columns, not 8; pass it as (k, n / 8), or as the "
        "transpose of (n, k / 8)", {"weight": int32(128, 8).T}, NEW),
    Row({"weight": int32(16, 64).T},
        "weight must have k = 64 rows as x has columns, not 512; an int32 of weight holds "
        "eight int4: pack those that hold one with npu_convert_weight_to_int4pack",
        {"weight": np.ascontiguousarray(int32(16, 64).T)}, NEW),
    Row(BIG | {"x": spec(4, 65536), "weight": spec(65536, 1, dtype="int8")},
        "k must lie in [1, 65535], not be 65536; split the weight",
        BIG | {"x": spec(4, 65535), "weight": spec(65535, 1, dtype="int8")}),
    Row({"weight": spec(64, 65536, dtype="int8"), "antiquant_scale": spec(65536)},
        "n must lie in [1, 65535], not be 65536; split the weight",
        {"weight": spec(64, 65535, dtype="int8"), "antiquant_scale": spec(65535)}),
    Row({"weight": spec(64, 8192, dtype="int32"), "antiquant_scale": spec(65536)},
        "n must lie in [1, 65535], not be 65536; split the weight",
        {"weight": spec(64, 8191, dtype="int32"), "antiquant_scale": spec(65528)}, NEW),
    Row({"x": spec(2**31, 64)}, "m must lie in [1, 2147483647], not be 2147483648; split x",
        {"x": spec(2**31 - 1, 64)}),
    Row({"x": spec(64, 65536).T},
        "m must lie in [1, 65535] for a transposed x, not be 65536; split x",
        {"x": spec(64, 65535).T}),
    # scales
    *(
        Row({"antiquant_scale": ones(*shape)},
            "antiquant_scale must have shape (1,), (1, 1), (128,) or (1, 128), "
            f"not {shape}; {remedy}", {"antiquant_scale": ones(*right)}, NEW)
        for shape, right, remedy in (
            ((), (1,), RESHAPE), ((128, 1), (1, 128), RESHAPE), ((64,), (128,), ONE_OR_N),
            ((1, 1, 128), (128,), RESHAPE), ((1, 2), (1, 1), ONE_OR_N),
            ((3, 128), (128,), ONE_OR_N),
        )
    ),
    Row({"antiquant_scale": ones(2, 128)},
        "antiquant_scale must have shape (1,), (1, 1), (128,) or (1, 128), not (2, 128); "
        "pass antiquant_group_size=32 if these are scales of groups", GROUP, NEW),
    Row({"x": ones(4, 200), "weight": int8(200, 128), "antiquant_scale": ones(3, 128)},
        "antiquant_scale must have shape (1,), (1, 1), (128,) or (1, 128), not (3, 128); "
        "pass antiquant_group_size=96 if these are scales of groups",
        {"x": ones(4, 200), "weight": int8(200, 128), "antiquant_scale": ones(3, 128),
        "antiquant_group_size": 96}, NEW),
    Row(INT4 | {"weight": int32(64, 128)},
        "antiquant_scale must have shape (1,), (1, 1), (1024,) or (1, 1024), not (128,); "
        "an int32 of weight holds eight int4: pack those that hold one with "
        "npu_convert_weight_to_int4pack", INT4, NEW),
    Row({"antiquant_scale": ones(64)},
        "antiquant_scale must have shape (1,), (1, 1), (128,) or (1, 128), not (64,); "
        "pass one for each column", lines=OLD),
    *(
        Row(GROUP | {"antiquant_scale": ones(*shape)},
            f"antiquant_scale must have shape (2, 128), not {shape}; {remedy}", right, NEW)
        for shape, right, remedy in (
            ((1,), GROUP, EACH), ((128,), GROUP, EACH), ((128, 2), PAIR_T, "transpose it"),
            ((3, 128), GROUP, EACH), ((1, 128), GROUP, EACH),
        )
    ),
    Row({"antiquant_offset": ones(1, 128)},
        "antiquant_offset must have the shape of antiquant_scale, (128,), not (1, 128); "
        "reshape it", {"antiquant_offset": ones(1, 128), "antiquant_scale": ones(1, 128)}),
    Row({"antiquant_offset": ones(1)},
        "antiquant_offset must have the shape of antiquant_scale, (128,), not (1,); "
        "pass as many elements as antiquant_scale has", {"antiquant_offset": ones(128)}),
    Row(GROUP | {"antiquant_offset": ones(128, 2)},
        "antiquant_offset must have the shape of antiquant_scale, (2, 128), not (128, 2); "
        "transpose it", GROUP | {"antiquant_offset": ones(128, 2).T}, NEW),
    *(
        Row(QUANT | {"quant_scale": ones(*shape, dtype=FULL)},
            f"quant_scale must have shape (1,), (128,) or (1, 128), not {shape}; {remedy}",
            {"quant_scale": ones(*right, dtype=FULL)}, NEW)
        for shape, right, remedy in (
            ((1, 1), (1,), RESHAPE), ((128, 1), (1, 128), RESHAPE), ((64,), (128,), ONE_OR_N),
        )
    ),
    Row(QUANT | {"quant_offset": ones(1, dtype=FULL)},
        "quant_offset must have the shape of quant_scale, (128,), not (1,); "
        "pass as many elements as quant_scale has",
        QUANT | {"quant_offset": ones(128, dtype=FULL)}, NEW),
    *(
        Row({"bias": ones(*shape)},
            f"bias must have shape (1,), (128,) or (1, 128), not {shape}; {remedy}",
            {"bias": ones(*right)})
        for shape, right, remedy in (
            ((1, 1), (1,), RESHAPE), ((128, 1), (1, 128), RESHAPE), ((64,), (128,), ONE_OR_N),
        )
    ),
]  # fmt: skip

ATTRIBUTES = [
    *(
        Row(GROUP | {"antiquant_group_size": size},
            "antiquant_group_size must be 0, or a multiple of 32 in [32, k - 1 = 63], "
            f"not {size}; pass 32 with scales (2, n), or 0 with one for each column", GROUP, NEW)
        for size in (-32, 1, 16, 48, 64, 96)
    ),
    Row({"x": ones(4, 32), "weight": int8(32, 128), "antiquant_group_size": 32},
        "antiquant_group_size must be 0 for k = 32, not 32; pass 0, with one scale for each column",
        {"x": ones(4, 32), "weight": int8(32, 128)}, NEW),
    Row(GROUP, "antiquant_group_size must be 0 on {series}, not 32; pass a scale for each column",
        lines=OLD),
    Row({"inner_precise": 2}, "inner_precise must be 0 or 1, not 2; 0 is precise, 1 is fast",
        {"inner_precise": 1}),
    *(
        Row({"template": template},
            "template must be split_k, msd_group, msd, nz_splitk, custom or fixpipe on Atlas A2 "
            f"and Atlas A3, not {template!r}; leave it out to get the vendor's choice",
            {"template": "custom"}, NEW)
        for template in ("fast", 3)
    ),
    Row({"template": "fixpipe"},
        "template 'fixpipe' can run only if antiquant_scale is int64; leave it out to get the "
        "vendor's choice", PACKED | {"template": "fixpipe"}, NEW),
    # what quantises the output
    Row({"quant_offset": ones(128, dtype=FULL)},
        "quant_offset must be None without quant_scale; pass both, or neither",
        QUANT | {"quant_offset": ones(128, dtype=FULL)}, NEW),
    *(
        Row({"quant_scale": np.full(128, word, np.int64)},
            f"quant_scale must come from npu_trans_quant_param if it is int64, not be {word}; "
            "pack it", {"quant_scale": np.full(128, WORD, np.int64)}, NEW)
        for word in (1065353216, WORD | 1 << 36, WORD | 1 << 32)
    ),
    Row(PACKED | {"antiquant_scale": np.full(128, WORD | 1 << 36, np.int64)},
        f"antiquant_scale must come from npu_trans_quant_param if it is int64, not be "
        f"{WORD | 1 << 36}; pack it",
        PACKED | {"antiquant_scale": np.full(128, 1065353216, np.int64)}, NEW),
    *(
        Row(PACKED | {"antiquant_offset": np.full(128, value, np.int32)},
            f"antiquant_offset must lie in [-128, 127] if it is int32, not in [{value}, {value}]; "
            "clip it", PACKED | {"antiquant_offset": np.full(128, right, np.int32)}, NEW)
        for value, right in ((128, 127), (-129, -128))
    ),
]  # fmt: skip

INT4_GROUP_NZ = {
    "x": ones(128, 4).T,
    "weight": fractals(int32(128, 16)),
    "antiquant_scale": ones(2, 128),
    "antiquant_group_size": 64,
}
AND_NZ = "change that, or pass weight through npu_format_cast(..., 2)"
OR_FLOAT = "change that, or pass a float16 antiquant_scale"
COMBINATIONS = [
    # an int64 antiquant_scale
    Row(PACKED | {"x": ones(64, 4).T},
        f"with an int64 antiquant_scale, x must not be transposed; {OR_FLOAT}", PACKED, NEW),
    Row(PACKED | INT4_NZ,
        "with an int64 antiquant_scale, weight must be int8 in ND, not int4 in FRACTAL_NZ; "
        f"{OR_FLOAT}", PACKED, NEW),
    Row(PACKED | {"weight": int8(64, 128)},
        "with an int64 antiquant_scale, weight must be the transposed view of an (n, k) matrix, "
        f"not of (k, n); {OR_FLOAT}", PACKED, NEW),
    Row(PACKED | {"antiquant_scale": np.full(1, WORD, np.int64)},
        "with an int64 antiquant_scale, antiquant_scale must have a value for each column, not "
        f"one for all; {OR_FLOAT}", PACKED, NEW),
    Row(PACKED | {"x": ones(97, 64)},
        f"with an int64 antiquant_scale, m must be at most 96, not 97; {OR_FLOAT}",
        PACKED | {"x": ones(96, 64)}, NEW),
    Row(PACKED | {"x": ones(4, 32), "weight": int8(128, 32).T},
        f"with an int64 antiquant_scale, k must be a multiple of 64, not 32; {OR_FLOAT}",
        PACKED, NEW),
    Row(PACKED | {"x": ones(64, 97).T},
        "with an int64 antiquant_scale, x must not be transposed and m must be at most 96, not 97; "
        f"{OR_FLOAT}", PACKED, NEW),
    # an int8 weight in FRACTAL_NZ
    Row(INT8_NZ | {"antiquant_scale": ones(1)},
        "with an int8 FRACTAL_NZ weight, antiquant_scale must have a value for each column, not "
        f"one for all; {AND_NZ}", INT8_NZ, NEW),
    Row(INT8_NZ | GROUP,
        "with an int8 FRACTAL_NZ weight, antiquant_scale must have a value for each column, not "
        f"one for each group of 32; {AND_NZ}", GROUP, NEW),
    Row(INT8_NZ | {"x": ones(64, 4).T},
        f"with an int8 FRACTAL_NZ weight, x must not be transposed; {AND_NZ}", INT8_NZ, NEW),
    # an int32 one
    Row(INT4_NZ | QUANT,
        f"with an int32 FRACTAL_NZ weight, quant_scale must be None; {AND_NZ}", INT4_NZ, NEW),
    Row(INT4_NZ | {"antiquant_scale": ones(1)},
        "with an int32 FRACTAL_NZ weight, antiquant_scale must have a value for each column, not "
        f"one for all; {AND_NZ}", INT4_NZ, NEW),
    Row({"weight": fractals(int32(64, 16))},
        "with an int32 FRACTAL_NZ weight, weight must be the transposed view of an (n, k) matrix "
        f"for a scale for each column, not a (k, n) matrix; {AND_NZ}", INT4_NZ, NEW),
    Row(INT4_GROUP_NZ | {"weight": fractals(int32(128, 16)), "antiquant_group_size": 96},
        "with an int32 FRACTAL_NZ weight, antiquant_group_size must be 64 or 128, not 96; "
        f"{AND_NZ}", INT4_GROUP_NZ, NEW),
    Row(INT4_GROUP_NZ | {"weight": fractals(int32(128, 16)).T},
        "with an int32 FRACTAL_NZ weight, weight must be a (k, n) matrix for scales of groups, not "
        f"the transposed view of an (n, k) matrix; {AND_NZ}", INT4_GROUP_NZ, NEW),
    Row(INT4_GROUP_NZ | {"x": ones(96, 4).T, "weight": fractals(int32(96, 16))},
        "with an int32 FRACTAL_NZ weight, k must be a multiple of antiquant_group_size, 64, not "
        f"96; {AND_NZ}", INT4_GROUP_NZ, NEW),
    Row(INT4_GROUP_NZ | {"weight": fractals(int32(128, 4)), "antiquant_scale": ones(2, 32)},
        f"with an int32 FRACTAL_NZ weight, n must be a multiple of 64, not 32; {AND_NZ}",
        INT4_GROUP_NZ, NEW),
    # Atlas inference
    Row({"antiquant_scale": ones(1)},
        "antiquant_scale must have a value for each of 128 columns on {series}, not one for "
        "all; repeat it", lines=OLD),
    Row(BIG | {"x": spec(12801, 40000), "weight": spec(40000, 1, dtype="int8")},
        "m x k must be at most 512000000 with one scale for all on {series}, not 512040000; "
        "split x",
        BIG | {"x": spec(12800, 40000), "weight": spec(40000, 1, dtype="int8")}, OLD),
    Row({"weight": fractals(int8(64, 128))},
        "weight in FRACTAL_NZ must be the transposed view of an (n, k) matrix on {series}, not of "
        "(k, n); cast the contiguous (n, k) matrix with npu_format_cast(..., 29), and pass that "
        "one's .T", {"weight": fractals(int8(128, 64)).T}, OLD, Code.UNSUPPORTED),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, SHAPES + ATTRIBUTES + COMBINATIONS)


# ---- where the document contradicts itself ----

QUANT_NZ = (
    f"{OP}: the document takes quant_scale with ND weights only, but its own example passes it "
    "with a FRACTAL_NZ one; it is taken"
)
X_NZ = (
    f"{OP}: the document asks for a transposed x with an int32 FRACTAL_NZ weight scaled per "
    "group, but its inner_precise and the kernels for m <= 16 take x as it is; it is taken"
)


@pytest.mark.parametrize("series", NEW)
@pytest.mark.parametrize(
    ("call", "message"),
    [(INT8_NZ | QUANT, QUANT_NZ), (INT4_GROUP_NZ | {"x": ones(4, 128)}, X_NZ)],
)
def test_contradictions_are_warned_of(series: str, call: dict[str, Any], message: str) -> None:
    with pytest.warns(DocumentWarning, match="^" + re.escape(message) + "$"):
        checked(BASE | call, series)


@pytest.mark.parametrize("call", [INT8_NZ, QUANT, INT4_GROUP_NZ])
def test_nothing_else_is_warned_of(call: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checked(BASE | call, "Atlas A2")


# ---- what the kernel gets ----


def test_inputs_are_those_that_the_kernel_reads() -> None:
    everything = QUANT | {
        "quant_offset": ones(128, dtype=FULL), "bias": ones(128), "antiquant_offset": ones(128),
    }  # fmt: skip
    problem = checked(BASE | everything, "Atlas A2")
    assert [operand.name for operand in problem.inputs] == [
        "x", "weight", "antiquant_scale", "antiquant_offset", "quant_scale", "bias",
    ]  # fmt: skip
    assert problem.output == TensorSpec((4, 128), "int8")
    assert [operand.name for operand in checked(BASE, "Atlas A2").inputs] == [
        "x", "weight", "antiquant_scale",
    ]  # fmt: skip


def test_a_float_quant_scale_is_packed_with_its_offset() -> None:
    call = {
        "quant_scale": np.full((1, 128), 1.5, FULL),
        "quant_offset": np.full((1, 128), -1, FULL),
    }
    packed = checked(BASE | call, "Atlas A2").quant_scale
    assert packed is not None
    assert packed.array is not None
    assert packed.spec == TensorSpec((1, 128), "int64")
    assert set(packed.array.flat) == {1 << 46 | 0x1FF << 37 | 0x3FC00000}
    call["quant_offset"] = spec(1, 128, dtype="float32")
    packed = checked(BASE | call, "Atlas A2").quant_scale
    assert packed is not None
    assert packed.array is None


def test_a_bias_of_one_number_is_spread() -> None:
    bias = checked(BASE | {"bias": np.full(1, 3, HALF)}, "Atlas A2").bias
    assert bias is not None
    assert bias.array is not None
    assert bias.array.tolist() == [3.0] * 128
    bias = checked(BASE | {"bias": spec(1)}, "Atlas A2").bias
    assert bias is not None
    assert (bias.spec, bias.array) == (spec(128), None)


def test_310p_gets_the_weight_in_fractals() -> None:
    rng = np.random.default_rng(1)
    weight = rng.integers(-128, 128, (64, 128), np.int8)
    for given in (weight, np.asfortranarray(weight), fractals(weight.T.copy()).T):
        problem = checked(BASE | {"weight": given}, "Atlas inference")
        assert problem.weight.spec == TensorSpec((128, 64), "int8", "FRACTAL_NZ").T
        assert problem.weight.array is not None
        tensor = Tensor(problem.weight.spec, problem.weight.array)
        np.testing.assert_array_equal(np.asarray(tensor), weight)
    problem = checked(BASE | {"weight": spec(64, 128, dtype="int8")}, "Atlas inference")
    assert problem.weight.array is None


@pytest.mark.parametrize(
    ("call", "traits"),
    [
        ({}, {"m": 4, "k": 64, "n": 128, "trans_weight": False, "weight": "int8"}),
        ({"weight": int8(128, 64).T}, {"k": 64, "n": 128, "trans_weight": True}),
        ({"x": ones(64, 4).T}, {"m": 4, "k": 64, "trans_x": True}),
        (INT4, {"n": 128, "weight": "int4", "is_nz": False}),
        (INT4_NZ, {"k": 64, "n": 128, "weight": "int4", "trans_weight": True, "is_nz": True}),
        ({"weight": TensorSpec((128, 8), "int32").T}, {"k": 64, "n": 128, "trans_weight": True}),
        (GROUP, {"scaling": "group", "group_size": 32}),
        (PAIR_T, {"scaling": "group", "group_size": 32}),
        ({"antiquant_scale": ones(1, 1)}, {"scaling": "tensor"}),
        ({"bias": ones(128), "antiquant_offset": ones(128)},
         {"has_bias": True, "has_offset": True, "has_quant": False}),
        (QUANT | {"deterministic": True}, {"has_quant": True, "deterministic": True}),
        (PACKED, {"is_packed": True, "scaling": "channel"}),
    ],
)  # fmt: skip
def test_facts_are_read_off(call: dict[str, Any], traits: dict[str, Any]) -> None:
    found = checked(BASE | call, "Atlas A3").traits
    assert {name: getattr(found, name) for name in traits} == traits
