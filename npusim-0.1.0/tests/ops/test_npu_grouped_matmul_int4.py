"""npu_grouped_matmul with weights of int4, by int4 and by int8: values, tiles and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from matrix_calls import packed
from op_calls import NEW, RNG, Row, assert_as_reference, assert_same, constraints

from npusim import Code, Tensor, TensorSpec, devices, ops, run
from npusim.ops.npu_grouped_matmul import choice

OP = "npu_grouped_matmul"
A2, A3 = "ascend910b2", "ascend910_9391"
REFERENCE = ops.load(OP).reference
F16, F32 = np.float16, np.float32


def words(rng: np.random.Generator, *shape: int) -> Any:
    """Scales as the low words of uint64, the high ones zero."""
    return (rng.random(shape, F32) * F32(0.01)).view(np.uint32).astype(np.uint64)


def call_of(
    rng: np.random.Generator,
    counts: list[int],
    sizes: tuple[int, int],
    groups: int,
    *,
    x: str = "int8",
    layout: str = "ND",
    dtype: str = "float16",
) -> dict[str, Any]:
    """A call with *counts* rows of each expert, and *groups* of k with scales of their own."""
    (k, n), m, experts = sizes, sum(counts), len(counts)
    numbers = rng.integers(-8, 8, (experts, k, n)).astype(np.int8)
    weight: Any = packed(numbers)
    if layout == "turned":
        weight = packed(numbers.swapaxes(1, 2)).swapaxes(1, 2)
    elif layout == "NZ":
        weight = Tensor.of(weight, "FRACTAL_NZ")
    call: dict[str, Any] = {
        "weight": [weight],
        "scale": [words(rng, experts, groups, n) if groups else words(rng, experts, n)],
        "per_token_scale": [rng.random(m, F32)],
        "split_item": 3,
        "group_type": 0,
        "group_list_type": 1,
        "group_list": np.array(counts),
        "output_dtype": dtype,
    }
    if x == "int8":
        bias = [rng.normal(0, 9, (experts, n)).astype(F32)]
        return call | {"x": [rng.integers(-128, 128, (m, k)).astype(np.int8)], "bias": bias}
    return call | {"x": [packed(rng.integers(-8, 8, (m, k)).astype(np.int8))]}


# ---- values ----


CHIPS = st.sampled_from([A2, A3])
COUNTS = st.lists(st.sampled_from([0, 1, 3, 70]), min_size=1, max_size=3).filter(any)
DTYPES = st.sampled_from(["float16", "bfloat16"])


def calls(k: int, groups: tuple[int, ...], x: str, layouts: tuple[str, ...]) -> Any:
    """Any call with *k* of each group, or in all, and columns that the layout has."""
    return st.one_of(
        st.builds(
            call_of, RNG, COUNTS,
            st.tuples(st.just(k * (count if x == "int8" else 1)), st.just(64 if of_64 else 520)),
            st.just(count), x=st.just(x), dtype=DTYPES,
            layout=st.sampled_from(layouts) if of_64 else st.just("ND"),
        )
        for count in groups for of_64 in (True, False)
    )  # fmt: skip


@draws(10)
@given(device=CHIPS, call=calls(256, (1, 2, 3), "int8", ("ND", "NZ")))
def test_int8_by_int4_equals_the_reference(device: str, call: dict[str, Any]) -> None:
    rows, scale = call["group_list"], call["scale"][0]
    is_unpacked = scale.shape[1] == 1 and scale.shape[-1] * len(rows) <= 4 * sum(rows)
    found = assert_as_reference(OP, **call, device=device)
    assert found.template == ("a8w4_unpacked" if is_unpacked else "a8w4")


@draws(10)
@given(
    device=CHIPS,
    call=calls(384, (0, 1, 2, 4), "int4", ("ND", "NZ", "turned")),
    is_tuned=st.booleans(),
)
def test_int4_by_int4_equals_the_reference(
    device: str, call: dict[str, Any], is_tuned: bool
) -> None:
    more = {"tuning_config": [int(sum(call["group_list"]))]} if is_tuned else {}
    assert assert_as_reference(OP, **call, **more, device=device).template == "a4w4"


@draws(10)
@given(
    device=st.sampled_from([A2, A3]),
    counts=st.lists(st.sampled_from([0, 40, 70, 150]), min_size=1, max_size=2).filter(sum),
    k=st.sampled_from([64, 320]),
    layout=st.sampled_from(["ND", "NZ"]),
    dtype=st.sampled_from(["float16", "bfloat16"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_int4_of_few_columns_becomes_int8(
    device: str, counts: list[int], k: int, layout: str, dtype: str, seed: int
) -> None:
    """As many columns as four times the rows of an expert."""
    n = 4 * sum(counts) // len(counts) // 64 * 64
    call = call_of(np.random.default_rng(seed), counts, (k, n), 0, layout=layout, dtype=dtype)
    call["scale"][0][:, ::2] |= np.uint64(1 << 31)
    found = assert_as_reference(OP, **call, device=device)
    assert found.template == "a8w4_unpacked"


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("groups", [0, 1])
def test_a_small_product_has_scales_of_float32(groups: int, dtype: str) -> None:
    """Sums above 2048 lose bits before they are scaled."""
    call = call_of(np.random.default_rng(3), [16], (256, 512), groups, layout="NZ", dtype=dtype)
    call["x"][0][:4], call["x"][0][4:8] = 127, -128
    found = run(OP, **call, device=A2)
    assert found.template == "a8w4_vector"
    assert_same(found.output, REFERENCE(**call))
    in_rows = call | {"weight": [np.asarray(call["weight"][0])]}
    found = assert_as_reference(OP, **in_rows, device=A2)
    assert found.template == "a8w4"


@pytest.mark.sample(1)
@pytest.mark.usefixtures("nothing_kept")
@pytest.mark.parametrize("counts", [[150], [20, 0], [3, 40]])
def test_scaled_groups_are_added_up_in_float32(
    counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other shape that has this kernel holds 2 GiB: here are smaller ones."""
    known = (len(counts), sum(counts), 1024, 1088)
    monkeypatch.setattr(choice, "VECTOR_DEQUANTISED", (known,))
    call = call_of(np.random.default_rng(7), counts, (1024, 1088), 4, layout="NZ")
    found = assert_as_reference(OP, **call, device=A3)
    assert found.template == "a8w4_vector"


@pytest.mark.sample(1)
@pytest.mark.parametrize(("device", "counts", "groups"), [(A2, [3], 0), (A3, [2, 0, 3], 8)])
def test_offsets_are_added_for_each_row(device: str, counts: list[int], groups: int) -> None:
    """`(e, 1, n)`: sum of the row times number of the column, rounded, and added."""
    rng = np.random.default_rng(len(counts))
    call = call_of(rng, counts, (2048, 7168), groups)
    call["offset"] = [rng.normal(0, 0.1, (len(counts), 1, 7168)).astype(F32)]
    found = assert_as_reference(OP, **call, device=device)
    assert found.template == "a8w4"


def test_offsets_of_many_rows_keep_the_weight_packed() -> None:
    given: dict[str, Any] = {
        "x": TensorSpec((2048, 7168), "int8"), "weight": TensorSpec((1, 7168, 512), "int32"),
        "scale": TensorSpec((1, 4096), "uint64"), "bias": TensorSpec((1, 4096), "float32"),
        "per_token_scale": TensorSpec((2048,), "float32"), "output_dtype": "float16",
        "group_list": np.array([2048]), "group_list_type": 1, "group_type": 0, "split_item": 3,
    }  # fmt: skip
    chip = devices.load(A2)
    for more, wanted in (
        ({}, "a8w4_unpacked"),
        ({"offset": TensorSpec((1, 1, 4096), "float32")}, "a8w4"),
    ):
        assert ops.load(OP).plan(chip, ops.load(OP).check(chip, **given | more)).template == wanted


def test_scales_of_unpacked_weights_are_rounded_down() -> None:
    """1 + 2 ** -8 is 1 as bfloat16 rounded down, and minus that -(1 + 2 ** -7)."""
    scale = np.where(np.arange(8) % 2, F32(-1 - 2**-8), F32(1 + 2**-8))[None]
    call: dict[str, Any] = {
        "x": [np.eye(8, 64, dtype=np.int8)],
        "weight": [packed(np.ones((1, 64, 8), np.int8))],
        "scale": [scale.view(np.uint32).astype(np.uint64)],
        "per_token_scale": [np.ones(8, F32)],
        "bias": [np.full((1, 8), 77, F32)],
        "split_item": 3, "group_type": 0, "group_list_type": 1, "group_list": np.array([8]),
    }  # fmt: skip
    for dtype, wanted in (("bfloat16", [1, -1.0078125]), ("float16", [1.00390625, -1.00390625])):
        found = run(OP, **call, output_dtype=dtype, device=A2, timing=False)
        assert found.output[0, :2].astype(F32).tolist() == wanted


def test_groups_of_k_are_added_up_in_float16() -> None:
    """2048 and three times 1 are 2048 in fp16, one after the other; exactly they are 2051."""
    numbers = np.zeros((1, 1024, 8), np.int8)
    numbers[0, ::256] = 1
    scale = np.ones((1, 4, 8), F32)
    scale[0, 0] = 2048
    call: dict[str, Any] = {
        "x": [packed(np.eye(1, 1024, dtype=np.int8) * 0 + (np.arange(1024) % 256 == 0))],
        "weight": [packed(numbers)],
        "scale": [scale.view(np.uint32).astype(np.uint64)],
        "per_token_scale": [np.ones(1, F32)],
        "group_list": np.array([1]),
        "split_item": 3,
        "group_type": 0,
        "output_dtype": "float16",
    }
    call["x"] = [packed((np.arange(1024) % 256 == 0).astype(np.int8).reshape(1, -1))]
    y = run(OP, **call, device=A2, timing=False).output
    assert y.tolist() == [[2048.0] * 8]


# ---- how it is split ----


@pytest.mark.parametrize(
    ("x", "rows", "tuning", "tile"),
    [
        ("int8", 16, None, (32, 512, 128)),
        ("int8", 64, None, (64, 512, 128)),
        ("int8", 512, None, (128, 256, 256)),
        ("int32", 64, None, (64, 512, 128)),
        ("int32", 512, [65], (128, 256, 256)),
    ],
)
def test_the_tiles(x: str, rows: int, tuning: Any, tile: tuple[int, int, int]) -> None:
    spec, operator = devices.load(A2), ops.load(OP)
    k = 2048 if x == "int8" else 256
    more = {"bias": [TensorSpec((8, 4096), "float32")], "group_list_type": 1}
    problem = operator.check(
        spec, [TensorSpec((rows, k), x)], [TensorSpec((8, 2048, 512), "int32")],
        scale=[TensorSpec((8, 8, 4096), "uint64")], output_dtype="bfloat16", split_item=3,
        per_token_scale=[TensorSpec((rows,), "float32")], group_list=TensorSpec((8,), "int64"),
        group_type=0, tuning_config=tuning, **(more if x == "int8" else {}),
    )  # fmt: skip
    plan = operator.tile(spec, problem)
    assert plan is not None
    assert (plan.tile.m, plan.tile.n, plan.tile.k) == tile


# ---- what is refused ----

MADE = np.random.default_rng(0)
MIXED = call_of(MADE, [3, 2], (512, 64), 2)
INT4 = call_of(MADE, [3, 2], (512, 64), 2, x="int4")
WIDE = call_of(MADE, [3], (2048, 7168), 8)
WITH = " with int8 x, int32 weight and float16 output"
OF = " with int32 x, int32 weight and float16 output"
MIXED_ROWS = [
    Row({"group_list_type": 0, "group_list": np.array([3, 5])},
        f"group_list_type must be 1{WITH}, not 0; list the rows of each group"),
    Row({"weight": [packed(np.zeros((2, 64, 512), np.int8)).swapaxes(1, 2)]},
        f"weight must be contiguous{WITH}, not a transposed view; turn it"),
    Row({"x": [np.ones((5, 500), np.int8)], "weight": [np.ones((2, 500, 8), np.int32)]},
        f"k must be a multiple of 64 up to 18432 and n one of 8{WITH}, not 500 and 64; pad weight, "
        "or split the call"),
    Row({"scale": [words(MADE, 2, 4, 64)]},
        f"scale must have 1 or 2 groups of k{WITH} and k = 512, not 4; pass a scale for each 256 "
        "of k"),
    Row({"scale": [words(MADE, 2, 64, 2)]},
        f"scale must have shape (2, 64) or (2, groups of k, 64){WITH}, not (2, 64, 2); pass a "
        "number a column"),
    Row({"tuning_config": [1, 1]},
        f"tuning_config must have at most one number{WITH}, not 2, which ask for a kernel that is "
        "not simulated; pass the first one", code=Code.UNSUPPORTED),
    Row({"offset": [np.ones((2, 1, 64), F32)]},
        f"offset must be None for weights that are not of (7168, 4096) or (2048, 7168){WITH}, not "
        "given for (512, 64); leave it out"),
]  # fmt: skip
WIDE_ROWS = [
    Row({"offset": [np.ones((1, 7168), F32)]},
        f"offset must be one tensor of shape (1, 1, 7168){WITH}, not [(1, 7168)]; pass a number a "
        "column"),
    Row({"offset": [np.ones((1, 1, 7168), F32)], "output_dtype": "bfloat16"},
        "offset must be None with output_dtype=bfloat16 on {series}, not given; leave it out"),
]  # fmt: skip
INT4_ROWS = [
    Row({"scale": [words(MADE, 2, 3, 64)]},
        f"k of a group must be a whole, even number{OF}, not 512 / 3; change the groups of scale"),
]  # fmt: skip
test_constraints_of_int8_by_int4 = constraints(OP, MIXED, MIXED_ROWS, NEW)
test_constraints_of_offsets = constraints(OP, WIDE, WIDE_ROWS, NEW)
test_constraints_of_int4 = constraints(OP, INT4, INT4_ROWS, NEW)
