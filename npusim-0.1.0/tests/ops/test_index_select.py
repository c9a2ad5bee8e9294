"""Parts of a tensor along an axis: what comes out, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, assert_as_reference, assert_same

from npusim import OpError, TensorSpec, run

OP = "index_select"
A2, A3, INFERENCE = "ascend910b2", "ascend910_9391", "ascend310p3"


def test_parts_along_each_axis() -> None:
    x = np.arange(48, dtype=np.float32).reshape(2, 3, 8)
    for dim in (-3, -2, 0, 1):
        index = np.array([1, 0, 1, 1])
        found = run(OP, x, dim, index, device=A2).output
        assert_same(found, np.take(x, index, axis=dim))


@draws(30)
@given(data=st.data(), device=st.sampled_from([A2, A3, INFERENCE]), seed=st.integers(0, 99))
def test_a_tiled_run_equals_the_reference(data: st.DataObject, device: str, seed: int) -> None:
    types = [np.float16, np.float32, np.int8, np.int64, *([BF16] if device != INFERENCE else [])]
    dtype = data.draw(st.sampled_from(types))
    shape = data.draw(
        st.sampled_from(
            [(7,), (3, 5), (2, 9, 32), (4, 3, 33), (2, 3, 2, 32), (1, 20, 8), (3, 2), (70, 6, 3)]
        )
    )
    dim = data.draw(st.integers(0, len(shape) - 1))
    rng = np.random.default_rng(seed)
    x = rng.integers(-99, 99, shape).astype(dtype)
    if data.draw(st.booleans()):
        x = x[..., ::-1]
    count = data.draw(st.sampled_from([0, 1, 5, 50]))
    index_type = data.draw(st.sampled_from([np.int32, np.int64]))
    index = rng.integers(0, shape[dim], count).astype(index_type)
    assert_as_reference(OP, x, dim, index, device=device)


@pytest.mark.parametrize("device", [A2, A3, INFERENCE])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_columns_are_rows_of_one_element(device: str, count: int, rng: np.random.Generator) -> None:
    x = rng.integers(-99, 99, (70, 50)).astype(np.int8)
    index = rng.integers(0, 50, count)
    found = run(OP, x, 1, index, device=device, timing=False).output
    assert_same(found, x[:, index])


def test_without_values_rows_are_taken_in_turn() -> None:
    x, index = TensorSpec((4, 300, 64), "float16"), TensorSpec((100,), "int64")
    done = run(OP, x, 1, index, device=A2)
    assert done.template == "whole"
    assert done.outputs["output"] == TensorSpec((4, 100, 64), "float16")


REFUSED = [
    ({"dim": 2},
        "dim must lie in [-2, 1] for x of shape (4, 2), not 2; pass -1 for the last dimension"),
    ({"index": np.array([0, 4])},
     "index must name rows in [0, 4) of x, not 4; a card would read elsewhere: correct them"),
    ({"x": np.ones((0, 2), np.float16)},
     "x must have rows along dim for the 2 indices, not shape (0, 2); pass a tensor that has them"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "message"), REFUSED)
def test_what_is_refused(changed: dict[str, Any], message: str) -> None:
    call = {"x": np.ones((4, 2), np.float16), "dim": 0, "index": np.array([1, 0])} | changed
    with pytest.raises(OpError, match=rf"^{re.escape(f'{OP}: {message}')} \[161002\]$"):
        run(OP, device=A2, timing=False, **call)
