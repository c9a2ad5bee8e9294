"""Rows of a table: what comes out, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, Row, assert_as_reference, constraints

from npusim import TensorSpec, run
from npusim.isa import Load, Store, global_operand

OP = "embedding"
A2, A3, OLD_CHIP = "ascend910b2", "ascend910_9391", "ascend310p3"


# ---- values ----


def test_a_row_for_each_index() -> None:
    table = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    found = run(OP, table, np.array([[2, 0], [2, 2]]), device=A2).output
    assert found.tolist() == [[[5, 6], [1, 2]], [[5, 6], [5, 6]]]


@draws(40)
@given(
    device=st.sampled_from([A2, A3, OLD_CHIP]),
    table=st.sampled_from([
        (1, 1), (7, 3), (60000, 5), (9, 16), (9000, 64), (9000, 63), (3, 50000), (2, 60001),
    ]),
    shape=st.sampled_from([(1,), (5,), (2, 3), (49,), (11, 31)]),
    dtype=st.sampled_from([np.float16, BF16, np.float32, np.int8, np.int64]),
    index_type=st.sampled_from([np.int32, np.int64]),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_a_tiled_run_equals_the_reference(
    device: str, table: Any, shape: Any, dtype: Any, index_type: Any, seed: int
) -> None:
    if device == OLD_CHIP and dtype is BF16:
        dtype = np.float16
    rng = np.random.default_rng(seed)
    weight = rng.integers(-99, 99, table).astype(dtype)
    indices = rng.integers(0, table[0], shape).astype(index_type)
    assert_as_reference(OP, weight, indices, device=device)


@pytest.mark.parametrize(
    ("table", "template"),
    [
        ((9000, 8), "short"),
        ((9, 8), "short_table"),
        ((9000, 16), "whole"),
        ((9, 16), "whole_table"),
        ((9, 17), "ragged"),
        ((9, 60000), "pieces"),
    ],
)
def test_the_template_goes_by_the_row_and_the_table(table: Any, template: str) -> None:
    weight, indices = TensorSpec(table, "float16"), TensorSpec((4,), "int64")
    assert run(OP, weight, indices, device=A2).template == template


def test_rows_of_whole_blocks_leave_in_one_burst() -> None:
    """98 indices on 48 cores: two for each, and one more for the first two."""
    weight, indices = TensorSpec((9000, 64), "float16"), TensorSpec((98,), "int64")
    found = run(OP, weight, indices, device=A2)
    assert found.trace is not None
    stores = [
        [str(global_operand(op)) for op in lane.program.ops if isinstance(op, Store)]
        for lane in found.trace.lanes
    ]
    assert stores[:3] == [
        ["output+0 256 B", "output+12288 128 B"],
        ["output+256 256 B", "output+12416 128 B"],
        ["output+512 256 B"],
    ]
    loads = [op for op in found.trace.lanes[47].program.ops if isinstance(op, Load)]
    assert [str(global_operand(op)) for op in loads] == [
        "indices+752 16 B", "weight+12032 128 B", "weight+12160 128 B",
    ]  # fmt: skip


def test_an_empty_table_serves_no_indices() -> None:
    found = run(OP, np.ones((0, 4), np.float16), np.zeros((0, 2), np.int64), device=A2).output
    assert found.shape == (0, 2, 4)


# ---- what is refused ----


BASE = {"weight": np.ones((3, 16), np.float16), "indices": np.array([0, 2])}
ROWS = [
    *(
        Row({"indices": np.array([0, index])},
            f"indices must name rows in [0, 3) of weight, not {index}; a card would read "
            "elsewhere: correct them")
        for index in (3, -1)
    ),
    Row({"weight": np.ones((0, 16), np.float16)},
        "weight must have rows for the 2 indices, not shape (0, 16); pass a table that has them"),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)
