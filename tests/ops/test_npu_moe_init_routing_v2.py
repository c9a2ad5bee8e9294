"""Rows sorted by their experts: what comes out, bit for bit, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, NEW, OLD, Row, assert_as_reference, constraints, rows_of_floats

from npusim import Code, TensorSpec, run
from npusim.isa import Load, MrgSort, RpSort16, Sort32, Store, global_operand

OP = "npu_moe_init_routing_v2"
A2, A3, INFERENCE = "ascend910b2", "ascend910_9391", "ascend310p3"


def outputs(x: Any, experts: Any, **kwargs: Any) -> list[Any]:
    given = {"expert_num": 4, "expert_tokens_num_flag": True} | kwargs
    found = run(OP, np.asarray(x), np.int32(experts), device=A2, timing=False, **given)
    return [np.asarray(output).tolist() for output in found.outputs.values()]


# ---- values ----

X, EXPERTS = np.float32([[10], [20], [30]]), [[2, 0], [2, 3], [0, 2]]


def test_rows_are_sorted_by_expert_and_keep_their_order() -> None:
    rows, index, counts, scales = outputs(X, EXPERTS)
    assert rows == [[10], [30], [10], [20], [30], [20]]
    assert index == [2, 0, 3, 5, 1, 4]
    assert counts == [2, 2, 5, 6]
    assert scales == [0] * 6


def test_the_index_may_say_where_rows_came_from() -> None:
    assert outputs(X, EXPERTS, row_idx_type=1)[1] == [1, 4, 0, 2, 5, 3]


def test_counts_may_be_those_of_each_expert_or_pairs() -> None:
    assert outputs(X, EXPERTS, expert_tokens_num_type=1)[2] == [2, 0, 3, 1]
    pairs = outputs(X, EXPERTS, expert_tokens_num_type=2)[2]
    assert pairs == [[0, 2], [2, 3], [3, 1], [0, 0]]
    assert outputs(X, EXPERTS, expert_tokens_num_flag=False)[2] == [0] * 4


def test_inactive_experts_come_last() -> None:
    rows, index, counts, _ = outputs(X, EXPERTS, active_expert_range=[2, 3])
    assert rows == [[10], [20], [30], [0], [0], [0]]
    assert index == [0, -1, 1, -1, -1, 2]
    assert counts == [3]
    came_from = outputs(X, EXPERTS, active_expert_range=[2, 3], row_idx_type=1)[1]
    assert came_from == [0, 2, 5, 3, 1, 4]
    pairs = outputs(X, EXPERTS, active_expert_range=[2, 4], expert_tokens_num_type=2)[2]
    assert pairs == [[2, 3], [3, 1], [0, 0], [0, 0]]


def test_halves_go_away_from_zero_when_rows_are_quantised() -> None:
    x = np.float32([[127, 2.5, -2.5, 1.4999]])
    rows, _, _, scales = outputs(x, [[1]], quant_mode=1)
    assert (rows, scales) == ([[127, 3, -3, 1]], [1])


def test_what_is_cut_does_not_round_up() -> None:
    """126.49999 is 126.5 as the nearest float16, and 126.4375 when cut."""
    rows = outputs(np.float32([[127, 126.49999]]), [[1]], quant_mode=1)[0]
    assert rows == [[127, 126]]


def test_the_kernel_of_single_tokens_rounds_halves_to_even() -> None:
    x = np.zeros((1, 7168), BF16)
    x[0, :3] = 127, 2.5, -2.5
    given = {
        "scale": np.ones((256, 7168), np.float32),
        "expert_num": 256,
        "expert_tokens_num_type": 2,
        "quant_mode": 1,
    }
    experts = [[5, 3, 200, 7, 0, 255, 8, 9]]
    assert outputs(x, experts, **given)[0][0][:3] == [127, 2, -2]
    for more in ({"expert_tokens_num_type": 1}, {"drop_pad_mode": 1, "expert_capacity": 1}):
        rows = np.ravel(outputs(x, experts, **(given | more))[0])
        assert rows[:3].tolist() == [127, 3, -3]


def test_rows_of_zeros_nan_and_infinities() -> None:
    x = np.float32([[0, -0.0, 0], [1, np.nan, 2], [np.inf, 1, -np.inf]])
    rows, _, _, scales = outputs(x, [[0], [1], [2]], quant_mode=1)
    assert rows == [[0] * 3] * 3
    assert scales[0] == 0
    assert np.isnan(scales[1])
    assert scales[2] == np.inf


def test_each_expert_has_its_scales() -> None:
    x, scale = np.float32([[2, 1]]), np.float32([[1, 1], [0.5, 2]])
    found = outputs(x, [[3, 2]], quant_mode=1, scale=scale, active_expert_range=[2, 4])
    assert found[0] == [[127, 64], [64, 127]]
    np.testing.assert_allclose(found[3], np.float32([2, 2]) / np.float32(127))


def test_a_scale_goes_along_with_its_row() -> None:
    """`(tokens,)`; those of experts that are not active do not come."""
    given = {"scale": np.float32([1, 2, 3]), "active_expert_range": [2, 4]}
    assert outputs(X, EXPERTS, **given)[3] == [1, 2, 3, 2, 0, 0]


def test_the_call_of_the_document() -> None:
    """torch_npu 2.14.0, the text of the function: a token, 475 choices, 12 of 226 experts here."""
    rng = np.random.default_rng(0)
    experts = rng.integers(0, 226, (1, 475)).astype(np.int32)
    x = rng.standard_normal((1, 613)).astype(np.float32)
    given: dict[str, Any] = {"active_num": 475, "expert_num": 226, "active_expert_range": [23, 35]}
    given |= {"scale": np.float32([7]), "expert_tokens_num_type": 1}
    rows, index, counts, scales = outputs(x, experts, **given)
    coming = sum(counts)
    assert coming == ((experts >= 23) & (experts < 35)).sum()
    assert [row == x[0].tolist() for row in rows] == [True] * coming + [False] * (475 - coming)
    assert scales == [7] * coming + [0] * (475 - coming)
    assert sorted(index) == [-1] * (475 - coming) + list(range(coming))


def test_experts_with_a_capacity_drop_rows_and_fill_up() -> None:
    given = {"drop_pad_mode": 1, "expert_capacity": 2}
    rows, index, counts, scales = outputs(X, EXPERTS, **given, scale=np.float32([1, 2, 3]))
    assert rows == [[[10], [30]], [[0], [0]], [[10], [20]], [[20], [0]]]
    assert index == [4, 0, 5, 6, 1, -1]
    assert counts == [2, 2, 5, 6]
    assert scales == [1, 3, 0, 0, 1, 2, 2, 0]
    quantised = outputs(X, EXPERTS, **given, quant_mode=1)
    assert quantised[0] == [[[127], [127]], [[0], [0]], [[127], [127]], [[127], [0]]]
    assert [scale > 0 for scale in quantised[3]] == [1, 1, 0, 0, 1, 1, 1, 0]


def test_what_capacities_leave_is_what_finalize_routing_takes() -> None:
    """drop_pad_mode 3: an index of a token next to the other, -1 adds nothing."""
    given = {"drop_pad_mode": 1, "expert_capacity": 2}
    rows, index, *_ = outputs(X, EXPERTS, **given)
    weights = np.ones((3, 2), np.float32)
    found = run(
        "npu_moe_finalize_routing", np.float32(rows), None, None, None, weights, np.int32(index),
        None, 3, device=A2, timing=False,
    )  # fmt: skip
    assert found.output.tolist() == [[20], [40], [30]]


@draws(40)
@given(
    device=st.sampled_from([A2, A3]),
    sizes=st.sampled_from([
        (1, 16, 1), (7, 40, 3), (100, 129, 4), (64, 16, 8), (2, 8192, 2), (3, 100000, 2),
    ]),
    experts=st.sampled_from([1, 4, 40, 256]),
    capacity=st.none() | st.integers(1, 30),
    dtype=st.sampled_from([np.float16, BF16, np.float32, np.int8]),
    kinds=st.tuples(st.integers(0, 2), st.integers(0, 1), st.booleans()),
    quantises=st.booleans(),
    scale_rows=st.sampled_from([0, 1, 2]),
    is_part=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_a_tiled_run_equals_the_reference(
    device: str,
    sizes: tuple[int, int, int],
    experts: int,
    capacity: int | None,
    dtype: Any,
    kinds: tuple[int, int, bool],
    quantises: bool,
    scale_rows: int,
    is_part: bool,
    seed: int,
) -> None:
    rng, (tokens, width, k) = np.random.default_rng(seed), sizes
    quantises &= dtype != np.int8 and width < 9000
    if capacity is not None and width > 9000:
        experts, capacity = min(experts, 4), 1
    active = [0, experts]
    if is_part and capacity is None:
        active[0] = int(rng.integers(0, experts))
        active[1] = int(rng.integers(active[0], experts)) + 1
    of_experts = (1 if scale_rows == 1 else active[1] - active[0], width)
    shape = of_experts if quantises else (tokens,)
    x = rng.integers(-99, 99, (tokens, width)).astype(dtype)
    given: dict[str, Any] = {
        "x": rows_of_floats(rng, (tokens, width), dtype) if quantises else x,
        "expert_idx": rng.integers(0, experts, (tokens, k)).astype(np.int32),
        "scale": rows_of_floats(rng, shape, np.float32) if scale_rows else None,
        "expert_num": experts,
        "expert_tokens_num_type": kinds[0],
        "row_idx_type": kinds[1] if capacity is None else 0,
        "expert_tokens_num_flag": kinds[2],
        "quant_mode": 1 if quantises else -1,
        "active_expert_range": active,
    }
    if capacity is not None:
        given |= {"drop_pad_mode": 1, "expert_capacity": capacity}
    assert_as_reference(OP, **given, device=device)


@pytest.mark.nightly
def test_lists_beyond_one_core_are_merged() -> None:
    rng = np.random.default_rng(5)
    given: dict[str, Any] = {
        "x": rng.integers(-99, 99, (5000, 8)).astype(np.int8),
        "expert_idx": rng.integers(0, 64, (5000, 6)).astype(np.int32),
        "expert_num": 64,
        "expert_tokens_num_flag": True,
    }
    for active in ([], [10, 30]):
        call = given | {"active_expert_range": active}
        found = assert_as_reference(OP, **call, device=A2)
        assert found.template == "many_cores"


# ---- Atlas inference ----


def test_atlas_inference_gives_the_ends_of_all_experts_in_int32() -> None:
    x = np.arange(3, dtype=np.float16)[:, None] + np.zeros((3, 32), np.float16)
    given = {"expert_num": 5, "active_num": 6, "expert_tokens_num_type": 1, "row_idx_type": 1}
    found = run(OP, x, np.int32(EXPERTS), **given, device=INFERENCE, timing=False)
    rows, index, ends, unwritten = found.outputs.values()
    assert np.asarray(rows)[:, 0].tolist() == [0, 2, 0, 1, 2, 1]
    assert np.asarray(index).tolist() == [2, 0, 3, 5, 1, 4]
    assert np.asarray(ends).tolist() == [2, 2, 5, 6, 6]
    assert np.asarray(unwritten).tolist() == [0] * 5
    assert {np.asarray(each).dtype for each in (index, ends, unwritten)} == {np.dtype(np.int32)}
    assert (found.kernel_type, found.template) == ("MoeInitRoutingV2", "full_load")


@draws(30)
@given(
    shape=st.sampled_from(
        [(1, 1, 32), (1, 8, 64), (3, 2, 32), (5, 6, 96), (17, 1, 32), (60, 8, 64), (180, 8, 32)]
    ),
    experts=st.sampled_from([1, 3, 8, 9, 128]),
    dtype=st.sampled_from([np.float16, np.float32]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_of_atlas_inference_equals_the_reference(
    shape: tuple[int, int, int], experts: int, dtype: Any, seed: int
) -> None:
    tokens, k, width = shape
    rng = np.random.default_rng(seed)
    call = {
        "x": rng.standard_normal((tokens, width)).astype(dtype),
        "expert_idx": rng.integers(0, experts, (tokens, k)).astype(np.int32),
        "expert_num": experts,
        "active_num": 0,
    }
    assert_as_reference(OP, **call, device=INFERENCE)


def test_every_core_of_atlas_inference_sorts_and_copies_its_rows() -> None:
    x, experts = np.zeros((9, 32), np.float16), np.int32([[3, 1]] * 9)
    found = run(OP, x, experts, expert_num=4, active_num=0, device=INFERENCE)
    assert found.trace is not None
    programs = [lane.program.ops for lane in found.trace.lanes]
    # 18 choices: three for each of six cores.
    sorts = [[op.dst.count // 8 for op in ops_ if isinstance(op, RpSort16)] for ops_ in programs]
    assert sorts[:6] == [[32, 32]] * 6
    stored = [
        [place.name for op in ops_ if isinstance(op, Store) and (place := global_operand(op))]
        for ops_ in programs
    ]
    assert stored[0] == ["expanded_row_idx", *["output"] * 3]
    assert stored[5] == ["expert_token_cumsum_or_count", *["output"] * 3]
    assert not any(stored[6:])


def test_no_token_is_no_work() -> None:
    found = run(OP, np.zeros((0, 8), np.int8), np.zeros((0, 2), np.int32), expert_num=3, device=A2)
    assert found.time_us == 0


# ---- the schedule ----


def test_one_core_sorts_and_all_copy() -> None:
    x = np.zeros((48, 16), np.float16)
    experts = np.arange(48, dtype=np.int32)[::-1].reshape(48, 1)
    found = run(OP, x, experts, expert_num=48, device=A2)
    assert found.trace is not None
    assert (len(found.trace.lanes), found.template) == (48, "one_core")
    programs = [lane.program.ops for lane in found.trace.lanes]
    sorts = [[op.dst.count for op in ops if isinstance(op, Sort32)] for ops in programs]
    assert sorts == [[64], *[[]] * 47]
    assert [op.counts for op in programs[0] if isinstance(op, MrgSort)] == [(32, 32)]
    loads = [global_operand(op) for op in programs[5] if isinstance(op, Load)]
    assert [str(place) for place in loads if place and place.name == "x"] == ["x+1344 32 B"]


def test_without_values_choices_go_to_the_experts_in_turn() -> None:
    x = TensorSpec((64, 64), "bfloat16")
    times = {
        run(OP, x, experts, expert_num=8, device=A2, values=False).time_us
        for experts in (
            TensorSpec((64, 2), "int32"), (np.arange(128, dtype=np.int32) % 8).reshape(64, 2),
        )
    }  # fmt: skip
    assert len(times) == 1


# ---- what is refused ----

BASE = {
    "x": np.ones((4, 16), np.float16),
    "expert_idx": np.zeros((4, 2), np.int32),
    "expert_num": 4,
}
QUANT = {"quant_mode": 1}
PADDED = {"drop_pad_mode": 1, "expert_capacity": 3}
PAIRS = {"expert_tokens_num_type": 2, "expert_tokens_num_flag": True}
ROWS = [
    Row({"quant_mode": 0},
        "quant_mode must be -1 or 1, not 0, whose rounding no source gives; pass -1, and the rows "
        "to npu_quantize", code=Code.UNSUPPORTED),
    Row({"active_num": 4},
        "active_num must be -1, 0 or at least the 8 choices, not 4, whose index is not known; pass "
        "-1", {"active_num": 8}, code=Code.UNSUPPORTED),
    Row({"drop_pad_mode": 1},
        "expert_capacity must be positive for drop_pad_mode=1, not -1; pass how many rows an "
        "expert takes", PADDED),
    Row(PADDED | {"active_expert_range": [0, 3]},
        "active_expert_range must name all experts for drop_pad_mode=1, whose output has rows for "
        "each of them; leave it out", PADDED | {"active_expert_range": [0, 4]}),
    Row(PADDED | {"row_idx_type": 1},
        "row_idx_type must be 0 for drop_pad_mode=1, not 1: rows that are filled up come from "
        "nowhere; pass 0", PADDED),
    Row({"x": np.ones(4, np.float16)},
        "x must have shape (tokens, width), not (4,); pass one of that shape"),
    Row({"expert_idx": np.zeros((3, 2), np.int32)},
        "expert_idx must have shape (4, k) like x, not (3, 2); pass one of that shape"),
    Row(QUANT | {"x": np.ones((4, 8193), np.float16)},
        "x must have at most 8192 columns for quant_mode=1, not 8193; longer rows are not "
        "simulated: quantise first", QUANT | {"x": np.ones((4, 8192), np.float16)}),
    Row({"expert_num": -1}, "expert_num must be from 1 to 10240, not -1; pass how many there are",
        {"expert_num": 10240}),
    Row(PAIRS | {"expert_num": 5121},
        "expert_num must be from 1 to 5120 for expert_tokens_num_type=2, not 5121; pass how many "
        "there are", PAIRS | {"expert_num": 5120}),
    Row(QUANT | {"expert_num": 5121},
        "expert_num must be from 1 to 5120 for quant_mode=1, as far as it is simulated, not 5121; "
        "pass how many there are", QUANT | {"expert_num": 5120}),
    Row({"active_expert_range": [1]},
        "active_expert_range must be empty or two integers, not [1]; pass the first expert and the "
        "one behind the last", {"active_expert_range": [1, 2]}),
    Row({"active_expert_range": [2, 2]},
        "active_expert_range must name experts in [0, 4), not [2, 2); correct it",
        {"active_expert_range": (0, 4)}),
    Row({"scale": np.ones((4, 16), np.float32)},
        "scale must have shape (4,) for quant_mode=-1, a number for each row of x, not (4, 16); "
        "reshape it", {"scale": np.ones(4, np.float32)}),
    Row(QUANT | {"scale": np.ones((3, 16), np.float32)},
        "scale must have shape (1, 16) or (4, 16) for quant_mode=1, a row for each active expert, "
        "not (3, 16); reshape it", QUANT | {"scale": np.ones((1, 16), np.float32)}),
    *(
        Row({"expert_idx": np.full((4, 2), expert, np.int32)},
            f"expert_idx must name experts in [0, 4), not {expert}; raise expert_num, or correct "
            f"it", {"expert_idx": np.full((4, 2), 3, np.int32)})
        for expert in (4, -1)
    ),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS, NEW)
ON_310P = BASE | {"x": np.ones((4, 32), np.float16), "active_num": 0}
ROWS_310P = [
    Row({"active_num": -1},
        "active_num must not be negative on {series}, not -1; pass 0, or the 8 choices"),
    Row({"active_num": 4},
        "active_num must be -1, 0 or at least the 8 choices, not 4, whose index is not known; pass "
        "-1", {"active_num": 8}, code=Code.UNSUPPORTED),
    Row({"active_expert_range": [0, 3]},
        "active_expert_range must name all experts on {series}, not [0, 3); leave it out",
        {"active_expert_range": [0, 4]}),
    Row({"x": np.ones((4, 48), np.float16)},
        "x must have a multiple of 32 columns on {series}, not 48; pad it"),
    Row({"x": np.ones((304, 32), np.float16), "expert_idx": np.zeros((304, 8), np.int32)},
        "x and expert_idx must be so small that a core holds all choices and its rows of at most "
        "16376 columns, in fewer than 262144 bytes on {series}, not 265184 bytes and 32 columns, "
        "for which other kernels wait for each other in a way that is not simulated; pass fewer "
        "tokens a call", code=Code.UNSUPPORTED),
]  # fmt: skip
test_each_constraint_of_310p = constraints(OP, ON_310P, ROWS_310P, OLD)
