"""Reductions: values, their order of additions, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from draws import draws
from hypothesis import given as drawn
from hypothesis import strategies as st
from op_calls import assert_as_reference, assert_same

from npusim import OpError, TensorSpec, devices, ops, run

CHIPS = ("ascend310p3", "ascend910b2", "ascend910_9391")
HALF, FULL, BF16 = np.float16, np.float32, ml_dtypes.bfloat16
NAMES = ("sum", "mean", "amax", "argmax", "softmax", "log_softmax")
SHAPES = ((3, 5), (100, 64), (7, 65), (2, 3, 130), (1, 9000), (61, 257), (40,))


@pytest.mark.sample(18)
@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("dtype", [FULL, HALF, BF16])
@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_gives_the_bits_of_the_reference(
    name: str, dtype: Any, device: str, rng: np.random.Generator
) -> None:
    is_inference = device == "ascend310p3"
    if is_inference and dtype is BF16:
        return
    for shape in SHAPES:
        x = (5 * rng.normal(size=shape)).astype(dtype)
        if not is_inference:
            # Documents forbid them on Atlas inference.
            x.reshape(-1)[:2] = np.inf, np.nan
        assert_as_reference(name, x, device=device)


@draws(40)
@drawn(data=st.data(), device=st.sampled_from(CHIPS), seed=st.integers(0, 9))
def test_any_axis_of_any_shape_and_stride(data: st.DataObject, device: str, seed: int) -> None:
    name = data.draw(st.sampled_from(NAMES))
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
    is_inference = device == "ascend310p3"
    dtype = data.draw(st.sampled_from([FULL, HALF] if is_inference else [FULL, HALF, BF16]))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = (5 * np.random.default_rng(seed).normal(size=shape)).astype(dtype)
    if not is_inference and x.size > 3:
        x.reshape(-1)[:3] = data.draw(st.permutations([np.inf, -np.inf, np.nan, 0, -0.0]))[:3]
    if data.draw(st.booleans()):
        x = np.repeat(x, 2, axis=0)[::2]
    assert_as_reference(name, x, dim, device=device)


def test_other_axes_add_row_after_row() -> None:
    # 2**24 swallows each 1 that follows it, but not two that came before.
    x = np.zeros((4, 3), FULL)
    x[:3] = [[2.0**24, 1, 1], [1, 1, 2.0**24], [1, 2.0**24, 1]]
    found = run("sum", x, 0, device="ascend910b2", timing=False).output
    assert np.asarray(found).tolist() == [2.0**24, 2.0**24 + 2, 2.0**24]
    found = run("amax", x, 0, device="ascend910b2", timing=False).output
    assert np.asarray(found).tolist() == [2.0**24] * 3


@pytest.mark.sample(6)
@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("dtype", [FULL, HALF, BF16])
@pytest.mark.parametrize("name", ["amax", "argmax"])
def test_rows_beyond_the_buffer_are_walked_in_segments(
    name: str, dtype: Any, device: str, rng: np.random.Generator
) -> None:
    is_inference = device == "ascend310p3"
    if is_inference and dtype is BF16:
        return
    for columns in (24576, 30000):
        x = rng.normal(size=(3, columns)).astype(dtype)
        # Equals in several segments, in a later one alone, and all of a row.
        x[0, [5, 9000, columns - 1]] = 50
        x[1, 20000] = 50
        x[2] = -3
        found = assert_as_reference(name, x, device=device).output
        if name == "argmax":
            assert found.tolist() == [5, 20000, 0]
        if is_inference:
            continue
        x[0, 3], x[1, 9000], x[2] = np.nan, np.nan, -np.inf
        x[1, 30] = np.inf
        found = assert_as_reference(name, x, device=device).output
        if name == "argmax":
            assert found.tolist() == [columns - 1, columns - 1, 0]


EXACT = {
    "sum": lambda x: x.sum(axis=-1),
    "mean": lambda x: x.mean(axis=-1),
    "softmax": lambda x: (
        np.exp(x - x.max(axis=-1, keepdims=True))
        / np.exp(x - x.max(axis=-1, keepdims=True)).sum(axis=-1, keepdims=True)
    ),
    "log_softmax": lambda x: (
        (x - x.max(axis=-1, keepdims=True))
        - np.log(np.exp(x - x.max(axis=-1, keepdims=True)).sum(axis=-1, keepdims=True))
    ),
}
"""Operator -> what it is, in float64."""


@pytest.mark.sample(8)
@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("dtype", [FULL, HALF, BF16])
@pytest.mark.parametrize("name", EXACT)
def test_rows_beyond_the_buffer_come_in_pieces(
    name: str, dtype: Any, device: str, rng: np.random.Generator
) -> None:
    if device == "ascend310p3" and dtype is BF16:
        return
    for shape in ((3, 32000), (2, 30001), (1, 151_936), (1, 262_144)):
        x = rng.normal(size=shape).astype(dtype)
        found = np.asarray(run(name, x, device=device, timing=False).output)
        assert_same(found, ops.load(name).reference(x, spec=devices.load(device)))
        wanted = EXACT[name](x.astype(np.float64))
        within = {FULL: 2e-6, HALF: 2e-3, BF16: 1e-2}[dtype]
        # Each power of a vocabulary is below what float16 has as a normal number.
        least = 2**-24 if name == "softmax" and dtype is HALF else 2e-6
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=within, atol=least)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("device", ["ascend910b2", "ascend910_9391"])
def test_nan_and_infinities_in_pieces(name: str, device: str) -> None:
    x = np.ones((4, 40_000), FULL)
    x[0, 39_999], x[1, 20_000], x[2, 3] = np.nan, np.inf, -np.inf
    found = np.asarray(run(name, x, device=device, timing=False).output)
    assert_same(found, ops.load(name).reference(x, spec=devices.load(device)))
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[3]).all()


def test_sums_of_pieces_are_exact_where_float32_is() -> None:
    x = np.arange(200_000, dtype=FULL).reshape(4, 50_000) % 64
    found = run("sum", x, device="ascend910b2", timing=False).output
    np.testing.assert_array_equal(np.asarray(found), x.astype(int).sum(axis=1))


@pytest.mark.parametrize(("name", "read", "written"), [
    ("sum", 1, 0), ("mean", 1, 0), ("softmax", 3, 2), ("log_softmax", 3, 1),
])  # fmt: skip
def test_long_rows_are_read_as_often_as_they_are_walked(name: str, read: int, written: int) -> None:
    rows, row_bytes = 4, 4 * 100_000
    done = run(name, TensorSpec((rows, 100_000), "float32"), device="ascend910b2")
    assert done.trace is not None
    counters = list(done.trace.counters().values())
    assert [pipes["mte2"].nbytes for pipes in counters] == [read * row_bytes] * rows
    assert [pipes["mte3"].nbytes for pipes in counters] == [written * row_bytes or 4] * rows


@pytest.mark.sample(5)
@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("dtype", [FULL, HALF, BF16])
@pytest.mark.parametrize("name", ["argmax", "softmax", "log_softmax"])
def test_columns_of_any_length(
    name: str, dtype: Any, device: str, rng: np.random.Generator
) -> None:
    if device == "ascend310p3" and dtype is BF16:
        return
    # In one tile and in several, in one piece of columns and in several, whole ones and not.
    for shape, dim in (((2, 300, 20), 1), ((30, 2100), 0), ((3, 4, 5, 96), 1)):
        x = (5 * rng.normal(size=shape)).astype(dtype)
        assert_as_reference(name, x, dim, device=device)


def test_argmax_of_columns_is_the_first_of_several() -> None:
    x = HALF([[1, 0, -np.inf, 1], [7, -0.0, -np.inf, 2], [-1, 0, -np.inf, np.nan], [7, 0, -1, 3]])
    found = np.asarray(run("argmax", x, 0, device="ascend910b2", timing=False).output)
    assert found.dtype == np.int32
    assert found.tolist() == [1, 0, 3, 3]


def test_log_softmax_of_columns_looks_for_the_largest_in_float32() -> None:
    x = np.float32([[1e5, 1], [0, 2]])
    found = np.asarray(run("log_softmax", x, 0, device="ascend910b2", timing=False).output)
    assert found[:, 0].tolist() == [0, -1e5]


def test_softmax_takes_the_columns_that_fit() -> None:
    """(4 x 2 + 4) B of 100 rows and 12 B leave room for 128 columns of 196320 B, not for 256."""
    x = TensorSpec((100, 48 * 256), "float16")
    done = run("softmax", x, 0, device="ascend910b2", values=False, timing=False)
    plan: Any = done.plan
    assert (plan.piece_columns, plan.pieces_per_core, plan.tile_rows) == (128, 2, 100)


def test_columns_are_dealt_out_to_all_cores() -> None:
    """6144 columns are 48 pieces of 128."""
    x = TensorSpec((64, 6144), "float16")
    done = run("sum", x, 0, device="ascend910b2", values=False, timing=False)
    assert done.plan is not None
    assert done.plan.block_dim == 48


def test_argmax_is_the_first_of_several() -> None:
    x = HALF([[1, 7, -1, 7], [0, -0.0, 0, 0], [-np.inf] * 4, [1, 2, np.nan, 3]])
    found = np.asarray(run("argmax", x, device="ascend910b2", timing=False).output)
    assert found.dtype == np.int32
    assert found.tolist() == [1, 0, 0, 3]


@pytest.mark.parametrize("dtype", [FULL, HALF, BF16])
def test_results_are_near_the_exact_ones(dtype: Any, rng: np.random.Generator) -> None:
    x = rng.normal(size=(9, 300)).astype(dtype)
    wide = x.astype(np.float64)
    exponential = np.exp(wide - wide.max(axis=1, keepdims=True))
    total = exponential.sum(axis=1, keepdims=True)
    within = {FULL: 2e-6, HALF: 2e-3, BF16: 8e-3}[dtype]
    for name, exact in (
        ("sum", wide.sum(axis=1)),
        ("mean", wide.mean(axis=1)),
        ("softmax", exponential / total),
        ("log_softmax", wide - wide.max(axis=1, keepdims=True) - np.log(total)),
    ):
        found = np.asarray(run(name, x, device="ascend910b2", timing=False).output)
        np.testing.assert_allclose(found.astype(np.float64), exact, rtol=within, atol=within)


def test_a_sum_adds_halves_and_then_neighbours() -> None:
    # 2**24 swallows a 1 that is added by itself, but not two that come together.
    x = np.zeros(128, FULL)
    x[[0, 64]] = 2.0**24, 1
    assert run("sum", x, device="ascend910b2", timing=False).output == 2.0**24
    x[[1, 64, 65]] = 1, 0, 1
    assert run("sum", x, device="ascend910b2", timing=False).output == 2.0**24 + 2


def test_softmax_of_float16_is_a_published_vector() -> None:
    x = np.array([0x2E66, 0x3C00, 0xC000, 0x4280], np.uint16).view(HALF)
    found = np.asarray(run("softmax", x, device="ascend910b2", timing=False).output)
    assert found.view(np.uint16).tolist() == [0x28C1, 0x2DD9, 0x1CA9, 0x3AEF]


def test_log_softmax_looks_for_the_largest_in_float16() -> None:
    x = np.float32([1e5, 0])
    assert np.isnan(run("log_softmax", x, device="ascend910b2", timing=False).output).all()
    assert run("softmax", x, device="ascend910b2", timing=False).output.tolist() == [1, 0]


REFUSED = [
    ("argmax", {"x": TensorSpec((2**24 + 1, 2), "float16"), "dim": 0},
     "argmax: x must have at most 16777216 elements along an axis that others follow, not "
     "16777217: more are not simulated; transpose x first"),
    ("sum", {"x": np.ones((4, 4), HALF), "dim": 2},
     "sum: dim must lie in [-2, 1] for x of shape (4, 4), not 2; pass -1 for the last dimension"),
    ("mean", {"x": np.ones((4, 0), HALF)},
     "mean: x must have elements along dim, not (4, 0); give some"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "message"), REFUSED)
def test_what_is_refused(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(OpError, match=rf"^{re.escape(message)} \[161002\]$"):
        run(name, device="ascend910b2", values=False, **given)
