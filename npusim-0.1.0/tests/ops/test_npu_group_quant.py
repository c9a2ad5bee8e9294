"""npu_group_quant: its rules; kernels against numpy, numpy against exact fractions and the vendor.

Sources: torch_npu-npu_group_quant.md; for what the kernel checks, ops-nn, group_quant_base.h.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from calls import ones
from chips import every
from draws import draws
from hypothesis import given
from op_calls import (
    A2,
    A3,
    BF16,
    FLOATS,
    INFERENCE,
    Array,
    DrawnCall,
    Row,
    assert_accepted,
    assert_as_reference,
    assert_same,
    constraints,
    floats,
    group_calls,
)
from scalar_oracle import add, fit, multiply, packed

from npusim import Code, OpError, TensorSpec, ops, run

OP = "npu_group_quant"


def ends(*values: int, dtype: Any = np.int32) -> Any:
    return np.array(values, dtype)


BASE = {"x": ones(6, 4), "scale": ones(4, 4), "group_index": ends(1, 4, 6, 6)}

ROWS = [
    # tensors
    # types
    # shapes
    *(
        Row({"x": ones(*shape)},
            f"x must have shape (rows, columns), not {shape}; pass one of that shape")
        for shape in ((), (4,), (1, 6, 4))
    ),
    *(
        Row({"scale": ones(*shape)},
            f"scale must have shape (groups, 4) like x, not {shape}; pass one of that shape")
        for shape in ((4,), (1, 4, 4))
    ),
    *(
        Row({"group_index": np.zeros(shape, np.int32)},
            f"group_index must have shape (4,) like scale, not {shape}; pass one of that shape")
        for shape in ((), (1, 4))
    ),
    Row({"scale": ones(0, 4), "group_index": ends()},
        "scale must have at least one row, not shape (0, 4); add one, and its end to "
        "group_index", {"scale": ones(1, 4), "group_index": ends(6)}),
    Row({"scale": ones(4, 3)},
        "scale must have shape (groups, 4) like x, not (4, 3); pass one of that shape"),
    Row({"scale": ones(4, 1)},
        "scale must have shape (groups, 4) like x, not (4, 1); pass one of that shape"),
    Row({"group_index": ends(1, 4, 6)},
        "group_index must have shape (4,) like scale, not (3,); pass one of that shape"),
    *(
        Row({"offset": ones(*shape)},
            f"offset must be one number, of shape () or (1,), not {shape}; pass one",
            {"offset": ones(*right)})
        for shape, right in (((0,), (1,)), ((2,), (1,)), ((4,), ()), ((1, 1), ()))
    ),
    # dst_dtype
    *(
        Row({"x": ones(6, columns), "scale": ones(4, columns), "dst_dtype": "quint4x2"},
            "the last dimension of x must be a multiple of 8 with dst_dtype='quint4x2', "
            f"not {columns}; pad x and scale",
            {"x": ones(6, 8), "scale": ones(4, 8), "dst_dtype": "quint4x2"})
        for columns in (4, 9, 12)
    ),
]  # fmt: skip
test_each_constraint = constraints(OP, BASE, ROWS)


@pytest.mark.parametrize("device", INFERENCE)
def test_a_310p_has_no_such_kernel(device: str) -> None:
    message = (
        f"npu_group_quant: the chip must be of Atlas A2 or Atlas A3, not {device} of "
        "Atlas inference, which has no such kernel; use npu_quantize with "
        "div_mode=False for each group [361001]"
    )
    # Whatever the arguments are.
    for call in (BASE, dict.fromkeys(BASE)):
        with pytest.raises(OpError, match="^" + re.escape(message) + "$") as caught:
            run(OP, device=device, **call)
        assert caught.value.code is Code.UNSUPPORTED


# ---- what the kernel finds out ----

DECREASE = "group_index must not decrease, not be [{}]"
NEGATIVE = "group_index must not be negative, not be [{}]"
LAST = "group_index must end with the number of rows of x, 6, not be [{}]"
TRAPS = [
    ((2, 1, 6, 6), DECREASE, (1, 2, 6, 6)),
    ((1, 4, 6, 5), DECREASE, (1, 4, 5, 6)),
    ((1, 4, 7, 6), DECREASE, (1, 4, 6, 6)),
    ((2**31 - 1, -(2**31), 6, 6), DECREASE, (0, 0, 6, 6)),
    ((-1, 4, 6, 6), NEGATIVE, (0, 4, 6, 6)),
    ((-(2**31), 0, 0, 6), NEGATIVE, (0, 0, 0, 6)),
    ((1, 4, 5, 5), LAST, (1, 4, 5, 6)),
    ((1, 4, 6, 7), LAST, (1, 4, 6, 6)),
    ((0, 0, 0, 0), LAST, (0, 0, 0, 6)),
    ((6, 6, 6, 2**31 - 1), LAST, (6, 6, 6, 6)),
]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("device", ["ascend910b2", "ascend910_9391"])
def test_a_bad_group_index_stops_the_kernel(
    device: str, kind: Any, subtests: pytest.Subtests
) -> None:
    for bad, template, good in TRAPS:
        with subtests.test(bad=bad):
            text = template.format(", ".join(map(str, bad)))
            says = f"{OP}: {text}; pass the end row of each group, in order"
            wrong = BASE | {"group_index": ends(*bad, dtype=kind)}
            for timing in (True, False):
                with pytest.raises(
                    OpError, match="^" + re.escape(f"{says} (core 0) [507015]") + "$"
                ) as e:
                    run(OP, device=device, timing=timing, **wrong)
                assert e.value.code is Code.AICORE_EXCEPTION
            # Without values no core is the first one to find out.
            timed = wrong | {"x": TensorSpec((6, 4), "float32")}
            with pytest.raises(OpError, match="^" + re.escape(f"{says} [507015]") + "$"):
                run(OP, device=device, **timed)
            assert_accepted(OP, BASE | {"group_index": ends(*good, dtype=kind)}, "Atlas A2")


def test_a_group_index_beyond_int32_stops_the_kernel() -> None:
    with pytest.raises(
        OpError, match=r"must not decrease, not be \[4611686018427387904, 0, 6, 6\]"
    ):
        run(OP, device="ascend910b2", **(BASE | {"group_index": ends(2**62, 0, 6, 6, dtype="i8")}))


def test_a_long_group_index_is_quoted_in_part() -> None:
    many = np.arange(600, dtype=np.int32)
    call = {"x": ones(6, 4), "scale": ones(600, 4), "group_index": many[::-1].copy()}
    message = (
        "npu_group_quant: group_index must not decrease, not be [599, 598, 597, 596, ..., 0]; "
        "pass the end row of each group, in order (core 0) [507015]"
    )
    with pytest.raises(OpError, match="^" + re.escape(message) + "$"):
        run(OP, device="ascend910b2", **call)


@pytest.mark.parametrize("groups", [2, 255, 256, 257, 512, 600])
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_every_neighbouring_pair_is_looked_at(kind: Any, groups: int) -> None:
    """Each entry in turn is one too large, also where one piece of group_index meets the next."""
    for place in {0, groups // 2, 254, 255, 256, 510, 511} & set(range(groups - 1)):
        index = np.full(groups, 3, kind)
        index[place] = 4
        call = {"x": ones(3, 4), "scale": ones(groups, 4), "group_index": index}
        with pytest.raises(OpError, match="group_index must not decrease"):
            run(OP, device="ascend910b2", timing=False, **call)
        index[place] = 3
        run(OP, device="ascend910b2", timing=False, **call)


reference = ops.load(OP).reference


def group_quant(device: str, *args: Any, **kwargs: Any) -> Array:
    output = run(OP, *args, device=device, timing=False, **kwargs).output
    assert isinstance(output, np.ndarray)
    return output


@draws(40)
@given(group_calls())
def test_a_tiled_run_equals_the_reference(call: DrawnCall) -> None:
    assert_as_reference(OP, *call.args, device=call.device, **call.kwargs)


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
def test_an_empty_input_ignores_group_index(
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
