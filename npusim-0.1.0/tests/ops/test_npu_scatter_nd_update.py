"""Rows replaced at their indices: what comes out, and what is refused."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from calls import half_ones as ones
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from op_calls import BF16, Row, assert_as_reference, constraints

from npusim import TensorSpec, run
from npusim.isa import Store, global_operand

OP = "npu_scatter_nd_update"
A2, A3 = "ascend910b2", "ascend910_9391"


# ---- values ----


def test_each_update_goes_to_its_index() -> None:
    x, indices = np.zeros((2, 3), np.float32), np.array([[1, 2], [0, 0]])
    found = run(OP, x, indices, np.float32([5, 7]), device=A2).output
    assert np.asarray(found).tolist() == [[7, 0, 0], [0, 0, 5]]
    assert not x.any()


@draws(30)
@given(
    device=st.sampled_from([A2, A3]),
    shape=st.sampled_from([(7,), (300, 5), (9, 8, 16), (200, 300, 2), (4, 70000)]),
    depth=st.integers(1, 3),
    count=st.sampled_from([0, 1, 6, 100, 5000]),
    dtype=st.sampled_from([np.float16, BF16, np.float32, np.int8, np.int64]),
    index_type=st.sampled_from([np.int32, np.int64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tiled_run_equals_the_reference(
    device: str,
    shape: tuple[int, ...],
    depth: int,
    count: int,
    dtype: Any,
    index_type: Any,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    depth = min(depth, len(shape))
    leading = shape[:depth]
    places = rng.permutation(prod(leading))[:count]
    indices = np.stack(np.unravel_index(places, leading), -1).astype(index_type)
    x = rng.integers(-99, 99, shape).astype(dtype)
    updates = rng.integers(-99, 99, (len(places), *shape[depth:])).astype(dtype)
    assert_as_reference(OP, x, indices, updates, device=device)


@pytest.mark.parametrize(("rows", "template"), [(2**24 - 1, "sorted"), (2**24, "scanned")])
def test_the_template_goes_by_the_rows(rows: int, template: str) -> None:
    x, updates = TensorSpec((rows, 1), "int8"), TensorSpec((2, 1), "int8")
    assert run(OP, x, TensorSpec((2, 1), "int32"), updates, device=A2).template == template


def test_a_core_replaces_rows_of_its_range_in_ascending_order() -> None:
    """Three cores for three tuples: rows 0 to 1, 2 to 3 and 4 to 5."""
    x, updates = np.zeros((6, 16), np.float16), np.ones((3, 16), np.float16)
    found = run(OP, x, np.array([[3], [5], [2]]), updates, device=A2)
    assert found.trace is not None
    stores = [
        [str(global_operand(op)) for op in lane.program.ops if isinstance(op, Store)]
        for lane in found.trace.lanes
    ]
    # Core 0 has the only tile of tuples.
    assert stores == [
        ["rows+0 12 B", "positions+0 12 B"],
        ["self+64 32 B", "self+96 32 B"],
        ["self+160 32 B"],
    ]


# ---- what is refused ----


BASE = {"self": ones(4, 5, 16), "indices": np.array([[1], [3]]), "updates": ones(2, 5, 16)}
ROWS = [
    Row({"indices": np.zeros((2, 4), np.int64)},
        "indices must have a last dimension in [1, 3], the dimensions of self, not 4; index no "
        "more than there are"),
    Row({"updates": ones(2, 16)},
        "updates must have shape (2, 5, 16) for indices of shape (2, 1) and self of shape "
        "(4, 5, 16), not (2, 16); pass a row for each index"),
    Row({"indices": np.zeros((5, 1), np.int64), "updates": ones(5, 5, 16)},
        "indices must name each of the 4 rows of self once at most, not 5 rows; leave out what "
        "others replace"),
    *(
        Row({"indices": np.array([[1], [place]])},
            f"indices must name places in [0, 4) of dimension 0 of self, not {place}; a card would "
            "write elsewhere: correct them")
        for place in (4, -1)
    ),
    Row({"indices": np.array([[1, 4], [1, 4]]), "updates": ones(2, 16)},
        "indices must name each place once, not (1, 4) twice: which update is kept is open on a "
        "card; leave one of them out",
        {"indices": np.array([[1, 4], [1, 3]]), "updates": ones(2, 16)}),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)
