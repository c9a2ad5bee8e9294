"""Rows of experts weighed and added up: what comes out, bit for bit, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import half_ones as ones
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, RNG, SPECIAL, Row, assert_as_reference, constraints

from npusim import TensorSpec, run
from npusim.isa import Load, ScalarLoadGlobal, global_operand

OP = "npu_moe_finalize_routing"
A2, A3 = "ascend910b2", "ascend910_9391"
EXPERTS, CAPACITY = 5, 3


def routed(
    rng: np.random.Generator, sizes: tuple[int, int, int], mode: int, dtype: Any, given: set[str]
) -> dict[str, Any]:
    """A call with the optional tensors *given*, of *sizes* (tokens, k, width)."""
    tokens, k, width = sizes
    count, is_padded = tokens * k, mode in (1, 3)

    def floats(*shape: int) -> Any:
        special = rng.random(shape) < 0.05
        with np.errstate(all="ignore"):
            values = np.where(special, rng.choice(SPECIAL, shape), rng.normal(0, 3, shape))
            return values.astype(dtype)

    places = rng.integers(-1, EXPERTS * CAPACITY, count) if is_padded else rng.permutation(count)
    optional = {
        "skip1": floats(tokens, width),
        "skip2": floats(tokens, width),
        "bias": floats(EXPERTS, width),
        "scales": floats(tokens, k),
        "export_for_source_row": rng.integers(0, EXPERTS, (tokens, k)).astype(np.int32),
    }
    kept = given | {"export_for_source_row"} if "bias" in given else given
    return {name: value if name in kept else None for name, value in optional.items()} | {
        "expanded_permuted_rows": floats(
            *((EXPERTS, CAPACITY, width) if is_padded else (count, width))
        ),
        "expanded_src_to_dst_row": places.astype(np.int32),
        "drop_pad_mode": mode,
        "k": k,
    }


# ---- values ----


def test_rows_are_taken_by_choice_or_by_token() -> None:
    """Two tokens of two rows: by choice a token's indices are apart, by token side by side."""
    rows, scales = np.float32([[1], [10], [100], [1000]]), np.float32([[1, 2], [3, 4]])
    where = np.array([2, 0, 1, 3], np.int32)
    for mode, wanted in ((0, [[100 + 20], [3 + 4000]]), (2, [[100 + 2], [30 + 4000]])):
        found = run(OP, rows, None, None, None, scales, where, None, mode, device=A2).output
        assert np.asarray(found).tolist() == wanted


def test_a_dropped_row_contributes_nothing_not_even_its_bias() -> None:
    rows, where = np.ones((2, 1, 1), np.float32), np.array([-1, 1], np.int32)
    experts, bias = np.array([[0, 1]], np.int32), np.float32([[np.inf], [8]])
    scales = np.float32([[np.nan, 2]])
    found = run(OP, rows, None, None, bias, scales, where, experts, 3, device=A2).output
    assert np.asarray(found).tolist() == [[18]]


def test_float16_rounds_each_step_and_bfloat16_once() -> None:
    """2048 + 1 + 1: each 1 is lost in fp16. 256 + 1 + 1 = 258 is a number of bf16."""
    where, scales = np.arange(3, dtype=np.int32), np.ones((1, 3))
    for dtype, rows, wanted in ((np.float16, [2048, 1, 1], 2048), (BF16, [256, 1, 1], 258)):
        x = np.array(rows)[:, None].astype(dtype)
        found = run(OP, x, None, None, None, scales.astype(dtype), where, None, device=A2).output
        assert float(np.asarray(found)[0, 0]) == wanted


@pytest.mark.parametrize(
    ("dtype", "sign"), [(np.float16, False), (np.float32, False), (BF16, True)]
)
def test_zero_is_added_where_there_is_no_bias(dtype: Any, sign: bool) -> None:
    x, where = np.array([[-0.0]]).astype(dtype), np.zeros(1, np.int32)
    found = np.asarray(run(OP, x, None, None, None, None, where, None, device=A2).output)
    assert bool(np.signbit(found.astype(np.float32))[0, 0]) is sign


CALLS = st.builds(
    routed,
    RNG,
    sizes=st.sampled_from([(1, 1, 1), (7, 3, 40), (100, 4, 129), (49, 2, 16), (2, 2, 30001)]),
    mode=st.integers(0, 3),
    dtype=st.sampled_from([np.float16, BF16, np.float32]),
    given=st.sampled_from(
        [set(), {"scales"}, {"skip1", "scales"}, {"skip1", "skip2", "bias", "scales"}, {"bias"}]
    ),
)


@draws(40)
@given(device=st.sampled_from([A2, A3]), call=CALLS)
def test_a_tiled_run_equals_the_reference(device: str, call: dict[str, Any]) -> None:
    assert_as_reference(OP, **call, device=device)


def test_no_token_is_no_work() -> None:
    where = np.zeros(0, np.int32)
    call = (np.ones((0, 4), np.float16), None, None, None, np.ones((0, 2), np.float16), where, None)
    found = run(OP, *call, device=A2)
    assert (np.asarray(found.output).shape, found.time_us) == ((0, 4), 0)


# ---- the schedule ----


def test_a_row_is_loaded_where_its_index_says() -> None:
    x, where = np.ones((4, 16), np.float16), np.array([2, 0, 1, 3], np.int32)
    found = run(OP, x, None, None, None, None, where, None, 2, 4, device=A2)
    assert found.trace is not None
    (lane,) = found.trace.lanes
    loads = [str(global_operand(op)) for op in lane.program.ops if isinstance(op, Load)]
    assert loads == [f"expanded_permuted_rows+{32 * row} 32 B" for row in where]
    reads = [op.is_cached for op in lane.program.ops if isinstance(op, ScalarLoadGlobal)]
    assert reads == [False, True, True, True]


def test_without_values_rows_are_taken_in_turn() -> None:
    rows, scales = TensorSpec((8, 16), "bfloat16"), TensorSpec((4, 2), "bfloat16")
    run_of = {
        kind: run(OP, rows, None, None, None, scales, where, None, 2, device=A2, values=False)
        for kind, where in (
            ("spec", TensorSpec((8,), "int32")), ("array", np.arange(8, dtype=np.int32)),
        )
    }  # fmt: skip
    assert run_of["spec"].time_us == run_of["array"].time_us


# ---- what is refused ----


BASE = {
    "expanded_permuted_rows": ones(6, 16),
    "skip1": None,
    "skip2": None,
    "bias": None,
    "scales": ones(3, 2),
    "expanded_src_to_dst_row": np.arange(6, dtype=np.int32),
    "export_for_source_row": np.zeros((3, 2), np.int32),
}
PADDED = {"expanded_permuted_rows": ones(2, 3, 16), "drop_pad_mode": 3}
ROWS = [
    Row({"expanded_permuted_rows": ones(2, 3, 16)},
        "expanded_permuted_rows must have two dimensions, (rows, width) for drop_pad_mode=0, not "
        "shape (2, 3, 16); reshape it", PADDED),
    Row({"drop_pad_mode": 1},
        "expanded_permuted_rows must have three dimensions, (experts, capacity, width) for "
        "drop_pad_mode=1, not shape (6, 16); reshape it"),
    Row({"expanded_src_to_dst_row": np.zeros((3, 2), np.int32)},
        "expanded_src_to_dst_row must have one dimension, not 2; flatten it"),
    Row({"scales": None, "k": 4},
        "k must be a positive divisor of the 6 indices without scales, not 4; pass how many "
        "experts a token has", {"scales": None, "k": 3}),
    Row({"scales": ones(3)},
        "scales must have shape (tokens, k) with a number for each of the 6 indices, not (3,); "
        "pass what the gate gives", {"scales": ones(2, 3)}),
    Row({"expanded_permuted_rows": ones(1025, 16), "scales": ones(1, 1025)}
        | {"expanded_src_to_dst_row": np.arange(1025, dtype=np.int32)},
        "the second dimension of scales must be at most 1024, not 1025; add up fewer experts at a "
        "time"),
    Row({"expanded_permuted_rows": ones(1025, 16), "scales": None, "k": 1025}
        | {"expanded_src_to_dst_row": np.arange(1025, dtype=np.int32)},
        "k must be at most 1024, not 1025; add up fewer experts at a time"),
    Row({"expanded_permuted_rows": ones(7, 16)},
        "expanded_permuted_rows must have the 6 rows of expanded_src_to_dst_row for "
        "drop_pad_mode=0, not 7; pass all of them, or pad them for each expert"),
    Row(PADDED | {"expanded_permuted_rows": ones(0, 3, 16)},
        "expanded_permuted_rows must have rows for the 6 indices, not shape (0, 3, 16); pass them",
        PADDED),
    Row({"skip2": ones(3, 16)}, "skip1 must be given where skip2 is, not None; pass skip2 as skip1",
        {"skip1": ones(3, 16), "skip2": ones(3, 16)}),
    Row({"skip1": ones(3, 8)},
        "skip1 must have the shape (3, 16) of the output, not (3, 8); pass a row for each token",
        {"skip1": ones(3, 16)}),
    Row({"bias": ones(4, 8)},
        "bias must have shape (experts, 16), not (4, 8); pass a row for each expert",
        {"bias": ones(4, 16)}),
    Row(PADDED | {"bias": ones(4, 16)},
        "bias must have shape (2, 16), not (4, 16); pass a row for each expert",
        PADDED | {"bias": ones(2, 16)}),
    Row({"bias": ones(4, 16), "export_for_source_row": None},
        "export_for_source_row must be given with bias, not None; pass the expert of each row",
        {"bias": ones(4, 16)}),
    Row({"bias": ones(4, 16), "export_for_source_row": np.zeros(6, np.int32)},
        "export_for_source_row must have the shape (3, 2) of scales, not (6,); reshape it",
        {"bias": ones(4, 16)}),
    Row({"bias": ones(4, 16), "export_for_source_row": np.zeros((3, 3), np.int32)},
        "export_for_source_row must have the shape (3, 2) of scales, not (3, 3); pass the expert "
        "of each row", {"bias": ones(4, 16)}),
    *(
        Row({"expanded_src_to_dst_row": np.array([0, 1, 2, 3, 4, place], np.int32)},
            f"expanded_src_to_dst_row must name rows in [0, 6) of expanded_permuted_rows, not "
            f"{place}; a card would read elsewhere: correct them")
        for place in (6, -1)
    ),
    Row(PADDED | {"expanded_src_to_dst_row": np.array([0, 1, 2, 3, 4, -2], np.int32)},
        "expanded_src_to_dst_row must name rows in [-1, 6) of expanded_permuted_rows, not -2; a "
        "card would read elsewhere: correct them",
        PADDED | {"expanded_src_to_dst_row": np.array([0, 1, 2, 3, 4, -1], np.int32)}),
    Row({"bias": ones(4, 16), "export_for_source_row": np.full((3, 2), 4, np.int32)},
        "export_for_source_row must name experts in [0, 4) of bias, not 4; a card would read "
        "elsewhere: correct them", {"bias": ones(4, 16)}),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)
