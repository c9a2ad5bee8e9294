"""Values of collectives, against additions element by element in the stated order."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from npusim import collectives, devices
from npusim.collectives import Operation
from npusim.data.dtypes import Array

FLOAT16, FLOAT32 = np.dtype(np.float16), np.dtype(np.float32)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
LONG = 70_001
"""Elements whose slices are too long to move directly, for fp32 and 2 to 8 cards."""


def parts_of(cards: int, size: int, dtype: np.dtype[Any] = FLOAT32) -> list[Array]:
    """What each rank has; one short draw, over and over."""
    draw = np.random.default_rng(cards * size)
    drawn = [(draw.standard_normal(5003) * 100).astype(dtype) for _ in range(cards)]
    return [np.resize(each, size) for each in drawn]


def added(parts: Sequence[Array], order: Sequence[int]) -> Array:
    return reduce(lambda left, right: left + right, [parts[rank] for rank in order])


def share(size: int, cards: int, itemsize: int) -> int:
    """Elements of a slice: a share, up to 128 bytes."""
    return math.ceil(math.ceil(size / cards) * itemsize / 128) * 128 // itemsize


def half(*numbers: float) -> Array:
    return np.array(numbers, FLOAT16)


def bits(array: Array) -> bytes:
    return array.tobytes()


@pytest.mark.parametrize("cards", [2, 4, 8])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16])
def test_short_tensors_are_added_from_rank_0_on(cards: int, dtype: np.dtype[Any]) -> None:
    parts = parts_of(cards, 999, dtype)
    found = collectives.all_reduce(parts, "sum", devices.load("Atlas A2"))
    assert found.dtype == dtype
    assert bits(found) == bits(added(parts, range(cards)))


@pytest.mark.parametrize("cards", [2, 4, 8])
@pytest.mark.parametrize("chip", ["Atlas A2", "Atlas A3"])
def test_slices_of_long_tensors_begin_with_their_own_rank(cards: int, chip: str) -> None:
    size = LONG if chip == "Atlas A2" else 4 * LONG  # A3 moves up to 1 MiB directly
    parts = parts_of(cards, size * cards)
    found = collectives.all_reduce(parts, "sum", devices.load(chip))
    length = share(size * cards, cards, 4)
    bounds = [*range(0, size * cards, length), size * cards]
    for rank, (begin, end) in enumerate(pairwise(bounds)):
        order = [(rank + step) % cards for step in range(cards)]
        right = added([part[begin:end] for part in parts], order)
        assert bits(found[begin:end]) == bits(right)
    # The order is seen in the bits.
    assert cards == 2 or bits(found) != bits(added(parts, range(cards)))


@pytest.mark.parametrize("cards", [2, 4])
def test_a_ring_ends_at_the_rank_of_the_slice(cards: int) -> None:
    parts = parts_of(cards, 64 * cards)
    found = collectives.reduce_scatter(parts, "sum", devices.load("Atlas 300I Duo"))
    for rank, slice_ in enumerate(found):
        order = [(rank + 1 + step) % cards for step in range(cards)]
        own = [part[rank * 64 : (rank + 1) * 64] for part in parts]
        assert bits(slice_) == bits(added(own, order))


def test_servers_are_added_in_pairs() -> None:
    parts = parts_of(32, 32 * LONG)
    found = collectives.reduce_scatter(parts, "sum", devices.load("Atlas A2"))
    for rank in (0, 3, 13, 31):
        own = [part[rank * LONG : (rank + 1) * LONG] for part in parts]
        begin, first = divmod(rank, 8)
        inside = [(first + step) % 8 for step in range(8)]
        a, b, c, d = (
            added(own[8 * server : 8 * server + 8], inside)
            for server in [(begin + step) % 4 for step in range(4)]
        )
        assert bits(found[rank]) == bits((a + b) + (c + d))


@pytest.mark.parametrize(
    ("operation", "right"),
    [("prod", -24.0), ("max", 4.0), ("min", -2.0)],
)
def test_the_other_operations(operation: Operation, right: float) -> None:
    parts = [np.full(3, value, np.float32) for value in (-2.0, 4.0, 3.0)]
    found = collectives.all_reduce(parts, operation, devices.load("Atlas A2"))
    assert found.tolist() == [right] * 3


def test_sums_round_and_overflow_in_the_type_of_the_tensors() -> None:
    # 2048 + 1 is no fp16; 65504 + 65504 is beyond it.
    parts = [half(2048, 65504), half(1, 65504), half(1, 0)]
    on_a2 = collectives.all_reduce(parts, "sum", devices.load("Atlas A2"))
    assert on_a2.tolist() == [2048.0, np.inf]
    on_310p = collectives.all_reduce(parts[:2], "sum", devices.load("Atlas 300I Duo"))
    assert on_310p.tolist() == [2048.0, 65504.0]
    wrapped = collectives.all_reduce(
        [np.array([100], np.int8)] * 2, "sum", devices.load("Atlas A2")
    )
    assert wrapped.tolist() == [-56]


def test_shapes_stay_and_are_cut_along_the_first_dimension() -> None:
    parts = [np.arange(12, dtype=np.int32).reshape(4, 3)] * 2
    chip = devices.load("Atlas A2")
    assert collectives.all_reduce(parts, "sum", chip).tolist() == (parts[0] * 2).tolist()
    cut = collectives.reduce_scatter(parts, "sum", chip)
    assert [each.tolist() for each in cut] == [
        [[0, 2, 4], [6, 8, 10]],
        [[12, 14, 16], [18, 20, 22]],
    ]


ONE = np.ones(1, np.float32)
REFUSED: list[tuple[str, list[Array], str, str]] = [
    (
        "all_reduce",
        [],
        "sum",
        "collectives: all_reduce: there must be a part for each rank, not none; pass a list",
    ),
    (
        "all_reduce",
        [ONE, ONE],
        "avg",
        "collectives: all_reduce: the operation must be one of sum, prod, max, min, not 'avg'; "
        "use one of these",
    ),
    (
        "all_reduce",
        [ONE, np.ones(2, np.float32)],
        "sum",
        "collectives: all_reduce: every rank must pass the shape and type of rank 0, float32 "
        "(1,), but rank 1 passes float32 (2,); make them alike",
    ),
    (
        "reduce_scatter",
        [np.ones(2)] * 2,
        "sum",
        "collectives: reduce_scatter: the type must be one of int8, int16, int32, int64, "
        "float16, float32, bfloat16, not float64; convert the tensors",
    ),
    (
        "reduce_scatter",
        [np.ones(3, np.float32)] * 2,
        "sum",
        "collectives: reduce_scatter: the first dimension must be a multiple of 2, the number of "
        "ranks, not that of shape (3,); pad it",
    ),
    (
        "all_reduce",
        [ONE] * 9,
        "sum",
        "collectives: all_reduce: cards must be as many in each server, up to 8 on ascend910b2, "
        "not 9 in 2; take a multiple of the servers, or more of them",
    ),
]


@pytest.mark.parametrize(("name", "parts", "operation", "message"), REFUSED)
def test_parts_that_do_not_fit_are_refused(
    name: str, parts: list[Array], operation: Operation, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        getattr(collectives, name)(parts, operation, devices.load("Atlas A2"))
