"""The best experts of each row by softmax: what comes out, bit for bit, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, SPECIAL, Row, assert_as_reference, constraints

from npusim import ops, run

OP = "npu_moe_gating_top_k_softmax"
A2, A3 = "ascend910b2", "ascend910_9391"


def outputs(*args: Any) -> list[Any]:
    found = run(OP, *args, device=A2, timing=False)
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


def test_no_row_is_no_work() -> None:
    assert run(OP, np.zeros((0, 8), np.float16), None, 2, device=A2).time_us == 0


# ---- what is refused ----

BASE = {"x": np.zeros((2, 3, 64), np.float16), "k": 4}
ROWS = [
    Row({"x": np.zeros(64, np.float16)},
        "x must have 2 to 3 dimensions, not shape (64,); reshape it"),
    Row({"x": np.zeros((1, 4097), np.float16)},
        "x must have 1 to 4096 columns, not 4097; longer rows are not simulated: split them",
        {"x": np.zeros((1, 4096), np.float16)}),
    Row({"finished": np.zeros((2, 4), np.uint8)},
        "finished must have shape (2, 3) like x, not (2, 4); pass one of that shape",
        "row", {"finished": np.zeros((2, 3), np.uint8)}),
    Row({"k": 65}, "k must be from 1 to 64, not 65; choose fewer of the experts", {"k": 64}),
    Row({"k": 1025, "x": np.zeros((1, 2048), np.float16)},
        "k must be from 1 to 1024, not 1025; choose fewer of the experts",
        {"k": 1024, "x": np.zeros((1, 2048), np.float16)}),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)
