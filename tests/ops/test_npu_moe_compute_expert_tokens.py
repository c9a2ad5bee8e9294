"""npu_moe_compute_expert_tokens: ends of the rows of experts, shares of cores, refusals."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from npusim import Code, OpError, TensorSpec, ops, run
from npusim.ops._oracle import Given

NAME = "npu_moe_compute_expert_tokens"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("rows", "experts"), [(1, 1), (5, 9), (64, 8), (300, 256), (12000, 16), (65536, 8)]
)
def test_each_expert_ends_behind_its_last_row(rows: int, experts: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Some experts have no rows, so that some shares begin or end with one of them.
    named = rng.choice(experts, max(1, experts * seed // 2 or experts), replace=False)
    given = np.sort(rng.choice(named, rows)).astype(np.int32)
    made: Any = run(NAME, given, experts, device="Atlas A2")
    expected = [int((given <= expert).sum()) for expert in range(experts)]
    assert made.output.tolist() == expected
    assert made.output.dtype == np.int32
    found: Any = ops.load(NAME).oracle(
        Given(NAME, {"sorted_expert_for_source_row": given, "num_expert": experts})
    )
    assert found.tolist() == expected


def test_without_values_experts_have_equal_parts() -> None:
    given = np.repeat(np.arange(8), 40).astype(np.int32)
    times = {
        run(NAME, x, 8, device="Atlas A2").time_us for x in (given, TensorSpec((320,), "int32"))
    }
    assert len(times) == 1


ROWS = np.array([0, 0, 2, 3], np.int32)
REFUSED: list[tuple[Any, int, str, Code]] = [
    (ROWS, 0, "num_expert must be at least 1, not 0; pass how many there are",
     Code.INVALID_PARAMETER),
    (ROWS, 3, "sorted_expert_for_source_row must rise from 0 to 2 at most, not go from 0 to 3; "
     "sort the experts of rows", Code.INVALID_PARAMETER),
    (ROWS[::-1].copy(), 4, "sorted_expert_for_source_row must rise from 0 to 3 at most, not go "
     "from 0 to 3 unsorted; sort the experts of rows", Code.INVALID_PARAMETER),
    (TensorSpec((12001,), "int32"), 8, "sorted_expert_for_source_row must have up to 12000 rows of "
     "up to 256 experts, not 12001 of 8: kernels of more are not simulated; count them by "
     "themselves", Code.UNSUPPORTED),
]  # fmt: skip


@pytest.mark.parametrize(("given", "experts", "text", "code"), REFUSED)
def test_what_does_not_fit_is_refused(given: Any, experts: int, text: str, code: Code) -> None:
    message = f"^{NAME}: {re.escape(text)} \\[{code.value}\\]$"
    with pytest.raises(OpError, match=message):
        run(NAME, given, experts, device="Atlas A2")
