"""Axes in another order: every bit arrives, tiles and shares are as said, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st

from npusim import OpError, TensorSpec, ops, run
from npusim.data.dtypes import Array

CHIPS = ("ascend310p3", "ascend910b2", "ascend910_9391")
DTYPES = (np.int8, np.uint8, np.int64, np.float16, np.float32, np.int32, ml_dtypes.bfloat16)


def numbers(shape: tuple[int, ...], dtype: Any, seed: int) -> Array:
    """Any bits at all, NaN of every kind among them."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    bits = np.random.default_rng(seed).integers(0, 256, count, np.uint8)
    return np.asarray(bits.view(dtype).reshape(shape))


def assert_moved(x: Array, dims: tuple[int, ...], device: str) -> None:
    found = np.asarray(run("permute", x, dims, device=device, timing=False).output)
    expected = np.transpose(x, dims)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.tobytes() == expected.tobytes()
    assert np.asarray(ops.load("permute").reference(x, dims)).tobytes() == expected.tobytes()


@draws(60)
@given(data=st.data(), device=st.sampled_from(CHIPS), seed=st.integers(0, 9))
def test_any_order_of_axes(data: st.DataObject, device: str, seed: int) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=4)))
    dims = tuple(data.draw(st.permutations(range(len(shape)))))
    dtype = data.draw(st.sampled_from(DTYPES))
    if device == "ascend310p3":
        # Whole blocks of each row, and no bfloat16.
        shape = tuple(size if axis != dims[-1] else 32 for axis, size in enumerate(shape))
        dtype = np.float16 if dtype is ml_dtypes.bfloat16 else dtype
    x = numbers(shape, dtype, seed)
    if data.draw(st.booleans()):
        # A view that is copied first.
        x = x[..., ::-1]
    assert_moved(x, dims, device)


@pytest.mark.sample(7)
@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_moved_and_matrices_turned(dtype: Any, device: str) -> None:
    if device == "ascend310p3" and dtype is ml_dtypes.bfloat16:
        return
    for dims in ((1, 0, 2, 3), (2, 1, 0, 3), (0, 1, 2, 3)):
        assert_moved(numbers((5, 9, 2, 24), dtype, 0), dims, device)
    assert_moved(numbers((3, 2, 7), dtype, 0), (1, 0, 2), device)
    # More than a tile along both axes, and a batch of them.
    assert_moved(numbers((288, 150), dtype, 0), (1, 0), device)
    assert_moved(numbers((3, 32, 17), dtype, 0), (0, -1, 1), device)


@pytest.mark.parametrize(
    ("dtype", "tiles", "share"),
    [("float16", 256, 6), ("float32", 512, 11), ("int8", 256, 6), ("int64", 1024, 22)],
)
def test_tiles_are_32_kib_of_128_rows(dtype: str, tiles: int, share: int) -> None:
    """2048 / 128 rows of tiles, of 128 columns of 16 bits or 64 of 32 bits, on 48 cores.

    Bytes are as many as they are of float16.
    """
    x = TensorSpec((2048, 2048), dtype)
    done = run("permute", x, (1, 0), device="ascend910b2", values=False, timing=False)
    assert done.plan is not None
    assert done.plan.block_dim == -(-tiles // share)


def test_an_order_that_stays_is_shared_out_in_blocks() -> None:
    x = numbers((7, 1, 100), np.float16, 0)
    assert_moved(x, (1, 0, 2), "ascend910b2")
    done = run("permute", x, (1, 0, 2), device="ascend910b2", timing=False)
    assert done.plan is not None
    # 700 numbers in 44 blocks of 16.
    assert done.plan.block_dim == 44


REFUSED = [
    ("ascend910b2", np.ones((4, 4), np.float32), (0, 0),
     "permute: dims must name each of the 2 axes of x once, not be (0, 0); pass a tuple of them"),
    ("ascend910b2", np.ones((4, 4), np.float32), 1,
     "permute: dims must be a list of integers, not 1; pass a list of them"),
    ("ascend310p3", np.ones((4, 8), np.float32), (1, 0),
     "permute: the last axes of the result must have whole blocks of 32 bytes on Atlas inference, "
     "not 4 elements: others are not simulated; pad x"),
]  # fmt: skip


@pytest.mark.parametrize(("device", "x", "dims", "message"), REFUSED)
def test_what_is_refused(device: str, x: Any, dims: Any, message: str) -> None:
    with pytest.raises(OpError, match=rf"^{re.escape(message)} \[161002\]$"):
        run("permute", x, dims, device=device, timing=False)
