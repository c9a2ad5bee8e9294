"""The best experts of each row: what comes out, bit for bit, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, SPECIAL, Row, assert_as_reference, constraints

from npusim import TensorSpec, run
from npusim.data.errors import DocumentWarning
from npusim.isa import MrgSort, Sort32

OP = "npu_moe_gating_top_k"
A2, A3 = "ascend910b2", "ascend910_9391"
OF_32 = {"group_count": 8, "k_group": 4, "group_select_mode": 1, "norm_type": 1}


def chosen(x: Any, k: int, **kwargs: Any) -> list[list[int]]:
    found = run(OP, np.asarray(x), k, device=A2, timing=False, **kwargs)
    return np.asarray(found.outputs["expert_idx"]).tolist()


# ---- values ----


def test_the_best_come_first() -> None:
    x = np.float32([[0, 3, 0, 0], [0, 0, 0, 0]])
    found = run(OP, x, 2, device=A2, norm_type=1, routed_scaling_factor=2.0)
    high, half = 1 / (1 + np.exp(-3.0)), 0.5
    wanted = [[2 * high / (high + half), 2 * half / (high + half)], [1, 1]]
    np.testing.assert_allclose(found.outputs["output"], wanted, rtol=1e-6)
    assert np.asarray(found.outputs["expert_idx"]).tolist() == [[1, 0], [0, 1]]


def test_the_bias_chooses_and_does_not_weigh() -> None:
    x, bias = np.zeros((1, 4), np.float32), np.float32([0, 0, 9, 1])
    found = run(OP, x, 2, bias=bias, device=A2)
    assert np.asarray(found.outputs["expert_idx"]).tolist() == [[2, 3]]
    assert np.asarray(found.outputs["output"]).tolist() == [[0.25, 0.25]]


def test_equal_keys_keep_their_order_and_nan_is_above_all() -> None:
    zeros = np.zeros((1, 70), np.float32)
    assert chosen(zeros, 70) == [[*range(70)]]
    bias = np.float32([[-0.0, np.nan, np.inf, 0, -np.inf, np.inf, np.nan, -1]])[0]
    keys = np.full((1, 8), -np.inf, np.float32)
    # A sigmoid of 0 each, so that the bias is the key.
    assert chosen(keys, 8, bias=bias, norm_type=1) == [[1, 6, 2, 5, 0, 3, 7, 4]]


def test_a_row_of_nan_is_a_row_of_the_first_experts() -> None:
    found = run(OP, np.full((1, 9), np.nan, np.float32), 3, device=A2)
    assert np.isnan(np.asarray(found.outputs["output"])).all()
    assert np.asarray(found.outputs["expert_idx"]).tolist() == [[0, 1, 2]]


def test_a_group_counts_by_one_key_or_two() -> None:
    """Groups of four: the second has the largest key, the first the larger sum of two."""
    x, bias = np.zeros((1, 12), np.float32), np.float32([6, 5, 0, 0, 0, 0, 0, 8, 1, 1, 1, 1])
    of_three: dict[str, Any] = {"bias": bias, "group_count": 3}
    assert chosen(x, 2, group_select_mode=0, **of_three) == [[7, 4]]
    assert chosen(x, 2, group_select_mode=1, **of_three) == [[0, 1]]
    assert chosen(x, 2, group_select_mode=1, k_group=2, **of_three) == [[7, 0]]


def test_equal_groups_keep_the_first() -> None:
    x = np.zeros((1, 256), np.float32)
    assert chosen(x, 8, bias=x[0], **OF_32) == [[*range(8)]]
    last = np.where(np.arange(256) // 32 == 5, 1, 0).astype(np.float32)
    assert chosen(x, 8, bias=last, **OF_32) == [[*range(160, 168)]]


SHAPES: list[tuple[tuple[int, int], int, dict[str, Any]]] = [
    ((3, 256), 8, OF_32),
    ((2, 7), 3, {}),
    ((50, 60), 6, {"group_count": 6, "k_group": 2}),
    ((2, 160), 5, {"group_count": 4}),
    ((2, 160), 6, {"group_count": 8, "k_group": 3, "norm_type": 1}),
    ((2, 2048), 20, {"norm_type": 1, "out_flag": True}),
    ((2, 300), 64, {"group_count": 3, "k_group": 2, "group_select_mode": 1}),
    ((2, 256), 8, OF_32 | {"k_group": 5}),
    ((2, 256), 8, {"group_count": 16, "k_group": 9, "norm_type": 1}),
    ((2, 256), 8, {"group_count": 32, "k_group": 21, "group_select_mode": 1}),
    ((1, 64), 64, {"group_count": 64, "k_group": 64, "out_flag": True}),
    ((2, 1000), 9, {"group_count": 50, "k_group": 40, "out_flag": True}),
]


@draws(40)
@given(
    device=st.sampled_from([A2, A3]),
    call=st.sampled_from(SHAPES),
    dtype=st.sampled_from([np.float32, np.float16, BF16]),
    has_bias=st.booleans(),
    is_special=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_equals_the_reference(
    device: str,
    call: tuple[tuple[int, int], int, dict[str, Any]],
    dtype: Any,
    has_bias: bool,
    is_special: bool,
    seed: int,
) -> None:
    shape, k, kwargs = call
    rng = np.random.default_rng(seed)

    def floats(*shape: int) -> Any:
        drawn = rng.choice(SPECIAL, shape) if is_special else rng.normal(0, 3, shape)
        with np.errstate(all="ignore"):
            return drawn.astype(dtype)

    given = {"x": floats(*shape), "k": k, "bias": floats(shape[1]) if has_bias else None} | kwargs
    assert_as_reference(OP, **given, device=device)


def test_no_row_is_no_work() -> None:
    assert run(OP, np.zeros((0, 8), np.float16), 2, device=A2).time_us == 0


# ---- the schedule ----


@pytest.mark.parametrize(
    ("experts", "kwargs", "template"),
    [
        (256, OF_32, "groups_of_32"),
        (256, OF_32 | {"norm_type": 0}, "any_groups"),
        (256, OF_32 | {"out_flag": True}, "any_groups"),
        (256, OF_32 | {"k_group": 8}, "no_group"),
        (256, {"norm_type": 1}, "no_group"),
        (128, OF_32, "any_groups"),
    ],
)
def test_the_template_goes_by_the_groups(
    experts: int, kwargs: dict[str, Any], template: str
) -> None:
    x, bias = TensorSpec((4, experts), "float32"), TensorSpec((experts,), "float32")
    assert run(OP, x, 8, bias=bias, device=A2, **kwargs).template == template


def test_groups_of_32_are_sorted_at_once() -> None:
    x, bias = TensorSpec((1, 256), "float32"), TensorSpec((256,), "float32")
    found = run(OP, x, 8, bias=bias, device=A2, **OF_32)
    assert found.trace is not None
    ops_of = found.trace.lanes[0].program.ops
    assert [op.dst.count for op in ops_of if isinstance(op, Sort32)] == [256, 32, 32]
    assert [op.counts for op in ops_of if isinstance(op, MrgSort)] == [(32,) * 4]


@pytest.mark.parametrize("kept", range(2, 64))
def test_any_number_of_groups_may_be_kept(kept: int, rng: np.random.Generator) -> None:
    x = rng.normal(0, 3, (1, 256)).astype(np.float32)
    given = {"x": x, "k": kept * 4, "group_count": 64, "k_group": kept}
    best = np.sort(np.argsort(-x.reshape(64, 4).max(axis=1))[:kept])
    wanted = [4 * group + place for group in best for place in range(4)]
    assert sorted(chosen(given.pop("x"), given.pop("k"), **given)[0]) == wanted


# ---- what is refused ----

BASE = {"x": np.zeros((4, 64), np.float16), "k": 4}
ROWS = [
    Row({"x": np.zeros((2, 4, 64), np.float16)},
        "x must have shape (rows, experts), not (2, 4, 64); pass one of that shape"),
    Row({"x": np.zeros((1, 2049), np.float16)},
        "x must have 1 to 2048 experts, not 2049; choose from fewer",
        {"x": np.zeros((1, 2048), np.float16)}),
    Row({"bias": np.zeros(63, np.float16)},
        "bias must have shape (64,) like x, not (63,); pass one of that shape",
        "x has columns", {"bias": np.zeros(64, np.float16)}),
    Row({"group_count": 6},
        "group_count must divide the 64 experts of x, not be 6; choose a divisor",
        {"group_count": 4}),
    Row({"group_count": 4, "k_group": 5},
        "k_group must be from 1 to group_count, 4, not 5; keep no more than there are",
        {"group_count": 4, "k_group": 4}),
    Row({"x": np.zeros((1, 1040), np.float16), "group_count": 65},
        "groups must fit into 2048 experts when each is filled up to a multiple of 32, not need "
        "2080; make fewer groups", {"x": np.zeros((1, 1024), np.float16), "group_count": 64}),
    Row({"group_count": 64, "k_group": 64, "group_select_mode": 1},
        "group_count must leave at least two experts to a group for group_select_mode=1, not 1; "
        "make fewer groups, or take mode 0", {"group_count": 64, "k_group": 64}),
    Row({"k": 17, "group_count": 4},
        "k must be from 1 to 16, the experts of 1 groups, not 17; choose fewer, or keep more "
        "groups", {"k": 16, "group_count": 4}),
    Row({"eps": "small"}, "eps must be a number, not 'small'; pass one without quotes"),
    Row({"routed_scaling_factor": float("inf")},
        "routed_scaling_factor must be a number that float32 has, not inf; pass a finite one",
        {"routed_scaling_factor": 2}),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)


def test_two_experts_to_a_group_are_warned_of() -> None:
    x = np.zeros((4, 64), np.float16)
    message = (
        "npu_moe_gating_top_k: group_count should leave more than 2 experts to a group, as the "
        "document asks, not 2; make fewer groups"
    )
    with pytest.warns(DocumentWarning, match=f"^{re.escape(message)}$"):
        run(OP, x, 4, group_count=32, k_group=4, device=A2)
    run(OP, x, 4, group_count=16, k_group=4, device=A2)
