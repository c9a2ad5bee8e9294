"""npu_moe_token_permute and npu_moe_token_unpermute: values, and what they refuse."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from npusim import OpError, TensorSpec, ops, run

BF16 = ml_dtypes.bfloat16
FLOATS = (np.float16, BF16, np.float32)


# ---- there ----


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("tokens", "k", "width", "experts", "kind"), [
    (3, 2, 40, 5, np.int32), (100, 8, 512, 64, np.int64), (700, 6, 64, 60, np.int32),
    (7, None, 33, 4, np.int32), (1, 1, 1, 1, np.int64),
])  # fmt: skip
def test_rows_are_sorted_by_expert(
    tokens: int, k: int | None, width: int, experts: int, kind: Any, dtype: Any
) -> None:
    rng = np.random.default_rng(tokens)
    x = rng.standard_normal((tokens, width)).astype(dtype)
    indices = rng.integers(0, experts, (tokens, k) if k else tokens).astype(kind)
    made = run("npu_moe_token_permute", x, indices, device="Atlas A2")
    rows, places = made.outputs["output"], made.outputs["expanded_row_idx"]

    flat = indices.reshape(-1).tolist()
    order = sorted(range(len(flat)), key=lambda choice: (flat[choice], choice))
    assert [places[choice] for choice in order] == list(range(len(flat)))
    for place, choice in enumerate(order):
        assert rows[place].tobytes() == x[choice // (k or 1)].tobytes()


def test_there_and_back_is_a_weighed_sum() -> None:
    rng = np.random.default_rng(5)
    x, indices = rng.standard_normal((20, 72)), rng.integers(0, 6, (20, 3)).astype(np.int32)
    probs = rng.random((20, 3)).astype(np.float32)
    made = run("npu_moe_token_permute", x.astype(np.float32), indices, device="Atlas A3")
    rows, places = made.outputs.values()
    back = run("npu_moe_token_unpermute", rows, places, probs, device="Atlas A3").output
    np.testing.assert_allclose(back, x * probs.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)


# ---- back ----


def sums(rows: Any, places: Any, probs: Any) -> Any:
    """The sum of each token in float64."""
    weights = np.ones((len(places), 1)) if probs is None else probs.astype(np.float64)
    found = np.zeros((len(weights), rows.shape[1]))
    for token, weight in enumerate(weights):
        for k, each in enumerate(weight):
            row = places[token * len(weight) + k]
            if row < len(rows) and each:
                found[token] += rows[row].astype(np.float64) * each
    return found


@pytest.mark.parametrize(("dtype", "weight"), [
    (np.float16, np.float16), (BF16, np.float32), (np.float32, np.float32), (np.float32, BF16),
    (np.float16, None),
])  # fmt: skip
@pytest.mark.parametrize(("tokens", "k", "width"), [
    (3, 2, 40), (100, 4, 512), (50, 8, 900), (60, 2, 1), (2, 2, 40000),
])  # fmt: skip
def test_rows_are_weighed_and_added(
    tokens: int, k: int, width: int, dtype: Any, weight: Any
) -> None:
    rng = np.random.default_rng(width)
    k = k if weight else 1
    rows = rng.standard_normal((tokens * k, width)).astype(dtype)
    places = rng.permutation(tokens * k).astype(np.int32)
    places[::7] += tokens * k  # dropped
    probs = None if weight is None else rng.random((tokens, k)).astype(weight)
    if probs is not None:
        probs[1::3, 0] = 0
        # What is not read does not spread.
        rows[places[k]] = np.nan
    made = run("npu_moe_token_unpermute", rows, places, probs, device="Atlas A2")
    expected = sums(rows, places, probs)
    step = {2: 2.0**-7 if dtype is BF16 else 2.0**-10, 4: 2.0**-21}[np.dtype(dtype).itemsize]
    error = np.abs(made.output.astype(np.float64) - expected)
    assert (error <= step * np.maximum(np.abs(expected), 1)).all()
    whole = ops.load("npu_moe_token_unpermute").reference(rows, places, probs)
    assert made.output.tobytes() == whole.tobytes()


def test_shapes_alone_are_timed() -> None:
    rows, places = TensorSpec((40, 64), "float16"), TensorSpec((40,), "int32")
    probs = TensorSpec((20, 2), "float32")
    assert run("npu_moe_token_unpermute", rows, places, probs, device="Atlas A2").time_us > 0
    assert run("npu_moe_token_permute", rows, places, device="Atlas A2").time_us > 0


X, PLACES = np.ones((4, 8), np.float16), np.arange(4, dtype=np.int32)
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("npu_moe_token_permute", {"tokens": X, "indices": PLACES, "padded_mode": True},
     "padded_mode must be False, not True: the kernel takes no padding; leave it out [161002]"),
    ("npu_moe_token_permute", {"tokens": X, "indices": PLACES[:3]},
     "indices must have an entry for each of 4 tokens, not shape (3,); pass the experts of each "
     "[161002]"),
    ("npu_moe_token_permute", {"tokens": X, "indices": PLACES - 1},
     "indices must lie in [0, 16777215), not reach from -1 to 2; number the experts from 0 on "
     "[161002]"),
    ("npu_moe_token_permute", {"tokens": X, "indices": PLACES, "num_out_tokens": 3},
     "num_out_tokens must be 0 or the 4 choices, not 3: fewer rows are not simulated in this "
     "kernel; leave it out [361001]"),
    ("npu_moe_token_unpermute", {"permuted_tokens": X, "sorted_indices": PLACES,
                                 "probs": np.ones((3, 2), np.float16)},
     "sorted_indices must have an entry for each of probs, 3 x 2, not 4; pass the second output of "
     "npu_moe_token_permute [161002]"),
    ("npu_moe_token_unpermute", {"permuted_tokens": X, "sorted_indices": PLACES - 1},
     "sorted_indices must not be negative, not -1; pass rows [161002]"),
    ("npu_moe_token_unpermute", {"permuted_tokens": X, "sorted_indices": PLACES,
                                 "padded_mode": True},
     "padded_mode must be False, not True: the kernel takes no padding; leave it out [161002]"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "given", "text"), REFUSED)
def test_calls_that_do_not_fit_are_refused(op: str, given: dict[str, Any], text: str) -> None:
    with pytest.raises(OpError, match=f"^{op}: {re.escape(text)}$"):
        run(op, device="Atlas A2", **given)
