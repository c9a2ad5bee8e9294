"""Copies: every type and alignment, how they are cut, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from draws import draws
from hypothesis import given as drawn
from hypothesis import strategies as st

from npusim import OpError, TensorSpec, ops, run
from npusim.isa import Load

CHIPS = ("ascend310p3", "ascend910b2", "ascend910_9391")
DTYPES = (np.float16, np.float32, ml_dtypes.bfloat16, np.int8, np.uint8, np.int32, np.int64)
SHAPES = ((4, 9, 17), (64, 40), (3, 9), (5, 9, 2000), (2, 32))


@pytest.mark.sample(7)
@pytest.mark.parametrize("device", CHIPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_bit_changes(dtype: Any, device: str, rng: np.random.Generator) -> None:
    if device == "ascend310p3" and dtype is ml_dtypes.bfloat16:
        return
    for shape in SHAPES:
        x = rng.integers(0, 100, shape).astype(dtype)
        calls: list[tuple[str, tuple[Any, ...], Any]] = [
            ("clone", (x,), x),
            ("narrow", (x, 1, 3, 5), x[:, 3:8]),
            ("narrow", (x, 0, 1, 1), x[1:2]),
            ("concat", ([x, x[:, :7]], 1), np.concatenate([x, x[:, :7]], 1)),
            ("concat", ([x, x[:2], x[1:]],), np.concatenate([x, x[:2], x[1:]])),
        ]
        for name, args, expected in calls:
            found = np.asarray(run(name, *args, device=device, timing=False).output)
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(ops.load(name).reference(*args), expected)


@st.composite
def operands(draw: Any, device: str, least: int = 0) -> Any:
    """Any bits of any type in any shape, contiguous, with gaps, or backwards."""
    dtypes = [x for x in DTYPES if device != "ascend310p3" or x is not ml_dtypes.bfloat16]
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    shape = draw(st.lists(st.integers(least, 40), min_size=1, max_size=4))
    step = draw(st.sampled_from([1, 2, -1, -3]))
    whole = (*shape[:-1], shape[-1] * abs(step))
    count = int(np.prod(whole)) * dtype.itemsize
    bits = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 256, count, np.uint8)
    # Elements of a view that begins somewhere in a larger array.
    return bits.view(dtype).reshape(whole)[..., ::step][..., : shape[-1]]


def assert_copied(name: str, device: str, expected: Any, *args: Any) -> None:
    for found in (
        np.asarray(run(name, *args, device=device, timing=False).output),
        np.asarray(ops.load(name).reference(*args)),
    ):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert found.tobytes() == expected.tobytes()


@draws(40)
@drawn(data=st.data(), device=st.sampled_from(CHIPS))
def test_any_tensor_is_cloned(data: st.DataObject, device: str) -> None:
    x = data.draw(operands(device))
    assert_copied("clone", device, x.copy(), x)


@draws(60)
@drawn(data=st.data(), device=st.sampled_from(CHIPS))
def test_any_part_along_any_axis(data: st.DataObject, device: str) -> None:
    x = data.draw(operands(device))
    dim = data.draw(st.integers(-x.ndim, x.ndim - 1))
    start = data.draw(st.integers(0, x.shape[dim]))
    length = data.draw(st.integers(0, x.shape[dim] - start))
    expected = np.take(x, np.arange(start, start + length), axis=dim)
    assert_copied("narrow", device, expected, x, dim, start, length)


@draws(60)
@drawn(data=st.data(), device=st.sampled_from(CHIPS))
def test_any_tensors_behind_each_other(data: st.DataObject, device: str) -> None:
    x = data.draw(operands(device))
    dim = data.draw(st.integers(-x.ndim, x.ndim - 1))
    sizes = data.draw(st.lists(st.integers(0, x.shape[dim]), max_size=4))
    tensors = [x, *(np.take(x, np.arange(size), axis=dim) for size in sizes)]
    assert_copied("concat", device, np.concatenate(tensors, dim), tensors, dim)


@pytest.mark.parametrize(
    ("count", "cores", "tiles"),
    [(16, 1, 1), (100, 7, 1), (48 * 16, 48, 1), (48 * 47040, 48, 1), (48 * 47056, 48, 2)],
)
def test_a_long_row_is_shared_out_in_blocks(count: int, cores: int, tiles: int) -> None:
    """Half of 196352 B less 8 KiB are 94080 B, 47040 numbers of 16 bits."""
    done = run("clone", TensorSpec((count,), "float16"), device="ascend910b2", values=False)
    assert done.plan is not None
    assert done.plan.block_dim == cores
    assert done.trace is not None
    first = [span for span in done.trace.spans() if span.core == 0]
    assert sum(isinstance(span.op, Load) for span in first) == tiles


REFUSED = [
    ("narrow", ("ascend910b2", np.ones((4, 4)).astype(np.float32), 2, 0, 1),
     "narrow: dim must lie in [-2, 1] for x of shape (4, 4), not 2; pass -1 for the last "
     "dimension"),
    ("narrow", ("ascend910b2", np.ones((4, 4), np.float32), 0, 3, 2),
     "narrow: start and length must name a part of the 4 along dim, not [3, 5); cut it"),
    ("concat", ("ascend910b2", [np.ones((4, 4), np.float32), np.ones((3, 4), np.float32)], 1),
     "concat: tensors must have the same sizes but along dim, not (4, 4), (3, 4); reshape one of "
     "them"),
    ("concat", ("ascend910b2", [np.ones(4, np.float32), np.ones(4, np.float16)]),
     "concat: tensors[1] must be float32 with tensors[0] of float32 on Atlas A2, not float16; "
     "convert it"),
    ("concat", ("ascend910b2", [np.ones(4, np.float32)] * 33),
     "concat: tensors must be at most 32 tensors, not 33; split the call"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "message"), REFUSED)
def test_what_is_refused(name: str, given: tuple[Any, ...], message: str) -> None:
    device, *args = given
    with pytest.raises(OpError, match=rf"^{re.escape(message)} \[161002\]$"):
        run(name, *args, device=device, timing=False)
