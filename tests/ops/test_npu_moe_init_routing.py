"""npu_moe_init_routing: rows by their experts, both lists, fewer rows than choices, refusals."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from npusim import Code, OpError, TensorSpec, ops, run
from npusim.ops._oracle import Given

NAME, BF16 = "npu_moe_init_routing", ml_dtypes.bfloat16


def call(tokens: int, k: int, width: int, experts: int, active: int, dtype: Any) -> dict[str, Any]:
    rng = np.random.default_rng(tokens * k)
    numbers = np.arange(tokens * k, dtype=np.int32).reshape(k, tokens).T
    return {
        "x": rng.standard_normal((tokens, width)).astype(dtype),
        "row_idx": np.ascontiguousarray(numbers),
        "expert_idx": rng.integers(0, experts, (tokens, k)).astype(np.int32),
        "active_num": active,
    }


@pytest.mark.parametrize(("tokens", "k", "width", "experts", "active", "dtype"), [
    (4, 2, 64, 8, 4, np.float16), (3, 8, 100, 16, 3, BF16), (100, 4, 129, 8, 100, np.float32),
    (64, 8, 256, 64, 20, np.float16), (1, 1, 16, 1, 1, BF16), (300, 6, 200, 3, 500, np.float16),
    (5, 60, 40, 128, 2, np.float16),
])  # fmt: skip
def test_rows_lie_by_their_experts(
    tokens: int, k: int, width: int, experts: int, active: int, dtype: Any
) -> None:
    given = call(tokens, k, width, experts, active, dtype)
    made: Any = run(NAME, device="Atlas A2", **given)
    # The choices one by one, into a list for each expert.
    lists: list[list[tuple[int, int]]] = [[] for _ in range(experts)]
    for token, choice in np.ndindex(tokens, k):
        lists[given["expert_idx"][token, choice]].append((token, choice))
    coming = [each for own in lists for each in own]
    rows = min(tokens, active) * k
    assert made.outputs["output"].shape == (rows, width)
    for place, (token, choice) in enumerate(coming):
        if place < rows:
            assert made.outputs["output"][place].tobytes() == given["x"][token].tobytes()
        assert made.outputs["expanded_row_idx"][choice * tokens + token] == place
        expert = given["expert_idx"][token, choice]
        assert made.outputs["expanded_expert_idx"][place] == expert
    expected: Any = ops.load(NAME).oracle(Given(NAME, given))
    for one, other in zip(made.outputs.values(), expected, strict=True):
        assert one.tobytes() == other.tobytes()


SPECS: dict[str, Any] = {
    "x": TensorSpec((4, 32), "float16"),
    **dict.fromkeys(("row_idx", "expert_idx"), TensorSpec((4, 2), "int32")),
    "active_num": 4,
}
REFUSED: list[tuple[dict[str, Any], str, Code]] = [
    ({"active_num": -1}, "active_num must not be negative, not -1; pass how many tokens count",
     Code.INVALID_PARAMETER),
    ({"active_num": 0}, "x must have columns, and active_num be positive, not 32 and 0; leave the "
     "call out", Code.INVALID_PARAMETER),
    ({"row_idx": np.arange(8, dtype=np.int32).reshape(4, 2)}, "row_idx must be 4 * j + token for "
     "choice j of each token, as npu_moe_gating_top_k_softmax has it, not other numbers, which are "
     "not simulated; make it so", Code.UNSUPPORTED),
    ({"x": TensorSpec((4, 16384), "float16")}, "x and expert_idx must fit the buffer of each core, "
     "not be of 8 choices and rows of 16384 columns: kernels of more are not simulated; use "
     "npu_moe_init_routing_v2", Code.UNSUPPORTED),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text", "code"), REFUSED)
def test_what_does_not_fit_is_refused(given: dict[str, Any], text: str, code: Code) -> None:
    message = f"^{NAME}: {re.escape(text)} \\[{code.value}\\]$"
    with pytest.raises(OpError, match=message):
        run(NAME, device="Atlas A2", **SPECS | given)
