"""npu_moe_re_routing: values, who works, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from npusim import DocumentWarning, OpError, TensorSpec, run

TABLE = "expert_token_num_per_rank"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int8])
@pytest.mark.parametrize(("ranks", "experts", "most", "width", "kind", "left"), [
    (2, 3, 5, 64, np.int32, 0), (16, 16, 4, 700, np.int64, 3), (64, 4, 6, 100, np.int32, 0),
    (1, 1, 700, 512, np.int64, 1), (3, 5, 2, 16384, np.int32, 0),
])  # fmt: skip
def test_rows_of_all_ranks_are_sorted_by_expert(
    ranks: int, experts: int, most: int, width: int, kind: Any, left: int, dtype: Any
) -> None:
    rng = np.random.default_rng(ranks)
    table = rng.integers(0, most, (ranks, experts)).astype(kind)
    rows = int(table.sum()) + left
    x, scales = rng.integers(-100, 100, (rows, width)).astype(dtype), rng.random(rows)
    scales = scales.astype(np.float32)
    made = run("npu_moe_re_routing", x, table, per_token_scales=scales, device="Atlas A2")

    places: list[list[int]] = [[] for _ in range(experts)]
    row = 0
    for rank in range(ranks):
        for expert in range(experts):
            places[expert] += range(row, row + int(table[rank, expert]))
            row += int(table[rank, expert])
    order = [place for own in places for place in own]
    output, moved, index, counts = made.outputs.values()
    assert output[: len(order)].tobytes() == x[order].tobytes()
    assert moved[: len(order)].tobytes() == scales[order].tobytes()
    assert index[: len(order)].tolist() == order
    assert (counts.tolist(), counts.dtype) == ([len(own) for own in places], kind)


def test_rows_beyond_the_tensors_stay_where_they_are() -> None:
    """Rows 2 and 3 of rank 0 for expert 1 would go to rows 5 and 6, and rank 1 has row 4 on."""
    x, table = np.arange(40, dtype=np.float16).reshape(5, 8), np.array([[2, 2], [3, 1]])
    message = (
        f"npu_moe_re_routing: {TABLE} must count at most the 5 rows of tokens, not 8: a card reads "
        "and writes beyond its tensors, which is not simulated; pass how many came of each rank"
    )
    with pytest.warns(DocumentWarning, match=f"^{re.escape(message)}$"):
        made = run("npu_moe_re_routing", x, table, device="Atlas A2")
    output, _, index, counts = made.outputs.values()
    assert output.tolist() == [*x[[0, 1, 4]].tolist(), [0] * 8, [0] * 8]
    assert (index.tolist(), counts.tolist()) == ([0, 1, 4, 0, 0], [5, 3])


@pytest.mark.parametrize(("ranks", "cores"), [(1, 1), (16, 16), (48, 48), (49, 25), (64, 32)])
def test_ranks_go_round_the_cores(ranks: int, cores: int) -> None:
    given = TensorSpec((640, 64), "int8"), TensorSpec((ranks, 2), "int64")
    assert run("npu_moe_re_routing", *given, device="ascend910b2").plan.block_dim == cores


X, COUNTS = np.ones((4, 8), np.float16), np.array([[1, 2]], np.int32)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({TABLE: COUNTS - 2}, f"{TABLE} must not be negative anywhere, as -1 is; pass how many came of "
     "each rank"),
    ({"per_token_scales": np.ones(3, np.float32)}, "per_token_scales must have shape (4,), not "
     "(3,); pass a scale for each row of tokens"),
    ({"idx_type": 1}, "idx_type must be 0, not 1: others are of later chips; leave it out"),
    ({"expert_token_num_type": 0}, "expert_token_num_type must be 1, not 0: others are of later "
     "chips; leave it out"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text"), REFUSED)
def test_what_does_not_fit_is_refused(given: dict[str, Any], text: str) -> None:
    call = {"tokens": X, TABLE: COUNTS} | given
    with pytest.raises(OpError, match=f"^npu_moe_re_routing: {re.escape(text)} \\[161002\\]$"):
        run("npu_moe_re_routing", device="Atlas A2", **call)
