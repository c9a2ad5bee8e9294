"""npu_group_quant: the kernels against numpy, numpy against exact fractions and the vendor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from chips import every
from draws import draws
from hypothesis import given
from op_calls import (
    A2,
    A3,
    BF16,
    FLOATS,
    Array,
    GroupCall,
    assert_same,
    floats,
    group_calls,
)
from scalar_oracle import add, fit, multiply, packed

from npusim import TensorSpec, ops, run

OP = "npu_group_quant"
reference = ops.load(OP).reference


def group_quant(device: str, *args: Any, **kwargs: Any) -> Array:
    output = run(OP, *args, device=device, timing=False, **kwargs).output
    assert isinstance(output, np.ndarray)
    return output


@draws(40)
@given(group_calls())
def test_a_tiled_run_equals_the_reference(call: GroupCall) -> None:
    before = [arg.tobytes() for arg in call.args]
    output = group_quant(call.device, *call.args, **call.kwargs)
    assert_same(output, reference(*call.args, **call.kwargs))
    assert [arg.tobytes() for arg in call.args] == before


@pytest.mark.parametrize(("rows", "columns"), [(3, 20000), (100, 8193), (97, 65)])
def test_large_shapes_equal_the_reference(rows: int, columns: int) -> None:
    """8192 columns are a piece, so these take one, two and three."""
    rng = np.random.default_rng(rows)
    ends = np.array([0, 1, 1, rows - 1, rows], np.int64)
    for kind in FLOATS["Atlas A2"]:
        args = (floats(rng, (rows, columns), kind), floats(rng, (5, columns), BF16), ends)
        offset = floats(rng, (1,), BF16)
        output = group_quant("ascend910b2", *args, offset=offset)
        assert_same(output, reference(*args, offset=offset))


EMPTYING = [
    [6], [0, 6], [6, 6], [0, 0, 6], [6, 6, 6], [1, 2, 3, 4, 5, 6], [0, 1, 1, 1, 6, 6], [5, 6, 6],
]  # fmt: skip


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_every_way_to_leave_groups_empty_equals_the_reference(
    kind: Any, subtests: pytest.Subtests
) -> None:
    rng = np.random.default_rng(1)
    for ends in EMPTYING:
        with subtests.test(ends=ends):
            x, scale = floats(rng, (6, 9), np.float16), floats(rng, (len(ends), 9), np.float32)
            args = (x, scale, np.array(ends, kind))
            assert_same(group_quant("ascend910_9391", *args), reference(*args))


@pytest.mark.parametrize(
    ("groups", "kind"),
    [(255, np.int32), (256, np.int64), (257, np.int32), (512, np.int32), (513, np.int64)],
)
def test_more_groups_than_fit_the_buffer_equal_the_reference(groups: int, kind: Any) -> None:
    """256 entries of group_index are read at a time."""
    rng = np.random.default_rng(groups)
    ends = np.sort(rng.integers(0, 50, groups)).astype(kind)
    ends[-1] = 50
    args = (floats(rng, (50, 8), np.float32), floats(rng, (groups, 8), np.float32), ends)
    assert_same(group_quant("ascend910b2", *args), reference(*args))


@pytest.mark.parametrize(("rows", "groups"), [(100, 4), (7, 3), (3, 8), (1, 1)])
def test_an_unknown_group_index_is_timed_as_even_groups(rows: int, groups: int) -> None:
    even = -(-np.arange(1, groups + 1) * rows // groups)
    x, scale = TensorSpec((rows, 64), "float16"), TensorSpec((groups, 64), "float32")
    known = run(OP, x, scale, even, device="ascend910b2")
    unknown = run(OP, x, scale, TensorSpec((groups,), "int64"), device="ascend910b2")
    assert unknown.cycles == known.cycles


@pytest.mark.parametrize("shape", [(0, 4), (6, 0), (0, 0)])
def test_an_empty_input_gives_an_empty_output_whatever_group_index_says(
    shape: tuple[int, int],
) -> None:
    x, scale = np.empty(shape, np.float16), np.ones((2, shape[1]), np.float16)
    result = run(OP, x, scale, np.array([9, -1]), device="ascend910b2")
    assert_same(result.output, np.empty(shape, np.int8))
    assert (result.plan, result.cycles) == (None, 0)


def test_an_empty_packed_output_is_int32() -> None:
    for shape, packed_shape in (((0, 16), (0, 2)), ((5, 0), (5, 0))):
        x, scale = np.empty(shape, np.float32), np.ones((1, shape[1]), np.float32)
        output = group_quant("ascend910b2", x, scale, np.array([0]), dst_dtype="quint4x2")
        assert_same(output, np.empty(packed_shape, np.int32))


# ---- numpy against exact fractions, and against the vendor ----


@pytest.mark.parametrize("dst_dtype", [None, "quint4x2"])
@pytest.mark.parametrize("kind", FLOATS["Atlas A2"], ids=lambda kind: np.dtype(kind).name)
def test_the_reference_equals_exact_fractions(kind: Any, dst_dtype: str | None) -> None:
    rng = np.random.default_rng(3)
    x, scale = floats(rng, (12, 16), kind), floats(rng, (5, 16), np.float32)
    ends, offset = [0, 3, 3, 10, 12], np.float32([-1.25])
    low, high = (-128, 127) if dst_dtype is None else (-8, 7)
    expected = []
    for row in range(12):
        group = next(index for index, end in enumerate(ends) if row < end)
        numbers = [
            fit(add(multiply(float(a), float(b)), float(offset[0])), low, high)
            for a, b in zip(x[row], scale[group], strict=True)
        ]
        halves = [packed(numbers[:8]), packed(numbers[8:])]
        expected.append(numbers if dst_dtype is None else halves)
    output = reference(x, scale, np.array(ends), offset=offset, dst_dtype=dst_dtype)
    assert output.tolist() == expected


@pytest.mark.parametrize("device", every(A2 + A3))
def test_the_golden_of_op_plugin(device: str) -> None:
    """op-plugin, test_npu_group_quant.py: np.round(x * scale + offset) group by group, clipped."""
    rng = np.random.default_rng(4)
    x = rng.normal(0, 30, (6, 40)).astype(np.float16)
    scale = rng.normal(0, 2, (4, 40)).astype(np.float32)
    golden = np.empty((6, 40), np.int8)
    start = 0
    for group, end in enumerate((1, 4, 6, 6)):
        values = np.round(x[start:end].astype(np.float32) * scale[group] + np.float32(3))
        golden[start:end] = np.clip(values, -128, 127)
        start = end
    ends = np.array([1, 4, 6, 6], np.int32)
    assert_same(group_quant(device, x, scale, ends, offset=np.float32([3])), golden)
