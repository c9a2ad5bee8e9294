"""The best experts of each row by softmax: what comes out, bit for bit, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, NEW, OLD, SPECIAL, Row, assert_as_reference, constraints

from npusim import TensorSpec, ops, run
from npusim.data.errors import Code

OP = "npu_moe_gating_top_k_softmax"
A2, A3, INFERENCE = "ascend910b2", "ascend910_9391", "ascend310p3"


def outputs(*args: Any, device: str = A2) -> list[Any]:
    found = run(OP, *args, device=device, timing=False)
    return [np.asarray(output) for output in found.outputs.values()]


# ---- values ----


def test_weights_are_those_of_the_softmax() -> None:
    x = np.log(np.float32([[1, 2, 5], [6, 2, 8]]))
    weights, experts, rows = outputs(x, None, 2)
    np.testing.assert_allclose(weights, [[5 / 8, 2 / 8], [8 / 16, 6 / 16]], rtol=1e-6)
    assert experts.tolist() == [[2, 1], [2, 0]]
    assert rows.tolist() == [[0, 2], [1, 3]]


def test_a_finished_row_goes_to_no_expert() -> None:
    weights, experts, _ = outputs(np.zeros((2, 4), np.float16), np.uint8([1, 0]), 2)
    assert experts.tolist() == [[4, 4], [0, 1]]
    assert weights.tolist() == [[0.25, 0.25]] * 2


def test_equal_numbers_keep_their_order() -> None:
    x = np.zeros((2, 40), np.float32)
    x[1, 7] = np.nan
    assert outputs(x, None, 40)[1].tolist() == [[*range(40)]] * 2


def test_infinities() -> None:
    """inf - inf is NaN, and so is the sum of its row; what is infinitely less weighs nothing."""
    x = np.float32([[0, np.inf, 1], [-np.inf, 0, 0]])
    weights, experts, _ = outputs(x, None, 3)
    assert experts.tolist() == [[0, 1, 2], [1, 2, 0]]
    assert np.isnan(weights[0]).all()
    assert weights[1].tolist() == [0.5, 0.5, 0]


def test_bfloat16_rounds_halves_away_from_zero() -> None:
    x = np.log(np.float32([[257, 255]])).astype(BF16)
    weights = outputs(x, None, 2)[0]
    wide = ops.load(OP).reference(x.astype(np.float32), None, 2)[0]
    bits = (wide.view(np.uint32).astype(np.uint64) + 0x8000) >> 16
    assert weights.view(np.uint16).tolist() == bits.tolist()


@draws(40)
@given(
    device=st.sampled_from([A2, A3]),
    shape=st.sampled_from([(3, 256), (100, 7), (2, 3, 60), (2, 2048), (1, 4096), (2, 1)]),
    k=st.sampled_from([1, 2, 6, 20, 1024]),
    dtype=st.sampled_from([np.float32, np.float16, BF16]),
    has_finished=st.booleans(),
    is_special=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_equals_the_reference(
    device: str,
    shape: tuple[int, ...],
    k: int,
    dtype: Any,
    has_finished: bool,
    is_special: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    drawn = rng.choice(SPECIAL, shape) if is_special else rng.normal(0, 3, shape)
    with np.errstate(all="ignore"):
        x = drawn.astype(dtype)
    finished = rng.integers(0, 3, shape[:-1]).astype(np.uint8) if has_finished else None
    given = {"x": x, "finished": finished, "k": min(k, shape[-1])}
    assert_as_reference(OP, **given, device=device)


def test_atlas_inference_counts_rows_one_by_one_and_finishes_none() -> None:
    x = np.full((3, 16), -100, np.float16)
    x[:, [5, 9, 11]] = np.log(np.float16([[2, 5, 1], [2, 2, 4], [3, 1, 4]]))
    weights, experts, rows = outputs(x, np.uint8([0, 1, 0]), 2, device=INFERENCE)
    np.testing.assert_allclose(weights, [[5 / 8, 2 / 8], [4 / 8, 2 / 8], [4 / 8, 3 / 8]], rtol=1e-3)
    assert experts.tolist() == [[9, 5], [11, 5], [11, 5]]
    assert rows.tolist() == [[0, 1], [2, 3], [4, 5]]


@draws(40)
@given(
    shape=st.sampled_from(
        [(1, 16), (3, 64), (1, 128), (17, 96), (2, 3, 48), (128, 128), (9, 80), (2, 256), (3, 320)]
    ),
    k=st.sampled_from([1, 2, 6, 16, 17]),
    is_special=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_of_atlas_inference_equals_the_reference(
    shape: tuple[int, ...], k: int, is_special: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    drawn = rng.choice(SPECIAL, shape) if is_special else rng.normal(0, 3, shape)
    with np.errstate(all="ignore"):
        given = {"x": drawn.astype(np.float16), "k": min(k, shape[-1])}
    assert_as_reference(OP, **given, device=INFERENCE)


def test_groups_of_rows_follow_each_other() -> None:
    x = np.random.default_rng(4).normal(0, 3, (300, 32)).astype(np.float16)
    parts = [outputs(x[rows], None, 3, device=INFERENCE) for rows in (slice(9), slice(290, 300))]
    whole = outputs(x, None, 3, device=INFERENCE)
    assert whole[0][:9].tolist() == parts[0][0].tolist()
    assert whole[1][290:].tolist() == parts[1][1].tolist()
    assert whole[2].ravel().tolist() == [*range(900)]
    times = [
        run(OP, TensorSpec((rows, 32), "float16"), None, 3, device=INFERENCE).time_us
        for rows in (128, 256)
    ]
    assert None not in times
    assert times[1] > 1.8 * times[0]


def test_no_row_is_no_work() -> None:
    assert run(OP, np.zeros((0, 8), np.float16), None, 2, device=A2).time_us == 0


# ---- what is refused ----

BASE = {"x": np.zeros((2, 3, 64), np.float16), "k": 4}
ROWS = [
    Row({"x": np.zeros(64, np.float16)},
        "x must have 2 to 3 dimensions, not shape (64,); reshape it"),
    Row({"x": np.zeros((1, 4097), np.float16)},
        "x must have 1 to 4096 columns, not 4097; longer rows are not simulated: split them",
        {"x": np.zeros((1, 4096), np.float16)}, code=Code.UNSUPPORTED),
    Row({"finished": np.zeros((2, 4), np.uint8)},
        "finished must have shape (2, 3) like x, not (2, 4); pass one of that shape",
        {"finished": np.zeros((2, 3), np.uint8)}),
    Row({"k": 65}, "k must be from 1 to 64, not 65; choose fewer of the experts", {"k": 64}),
    Row({"k": 1025, "x": np.zeros((1, 2048), np.float16)},
        "k must be from 1 to 1024, not 1025; choose fewer of the experts",
        {"k": 1024, "x": np.zeros((1, 2048), np.float16)}),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS, NEW)
ROWS_310P = [
    Row({"x": np.zeros((2, 40), np.float16)},
        "x must have a multiple of 16 columns on {series}, not 40; pad it with experts of -65504",
        {"x": np.zeros((2, 48), np.float16)}),
    Row({"x": np.zeros((128, 192), np.float16)},
        "x must be so small that a group of rows fits, with room to work, into the 244736 bytes "
        "that the kernel has on {series}, not need 258048; pass fewer rows a call, or fewer "
        "columns",
        {"x": np.zeros((100, 192), np.float16)}),
    Row({"k": 65}, "k must be from 1 to 64, not 65; choose fewer of the experts", {"k": 64}),
]  # fmt: skip
test_each_constraint_of_310p = constraints(OP, BASE, ROWS_310P, OLD)
