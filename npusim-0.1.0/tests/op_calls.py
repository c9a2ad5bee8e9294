"""Calls of operators that tests make: hostile numbers, drawn shapes, and what must be equal."""

from __future__ import annotations

import re
from math import prod
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from npusim import Code, OpError, TensorSpec, devices, ops, run

Array = NDArray[Any]

BF16 = ml_dtypes.bfloat16
A2 = tuple(name for name in devices.names() if devices.load(name).series == "Atlas A2")
A3 = tuple(name for name in devices.names() if devices.load(name).series == "Atlas A3")
INFERENCE = tuple(
    name for name in devices.names() if devices.load(name).series == "Atlas inference"
)
FLOATS = {
    "Atlas A2": (np.float32, np.float16, BF16),
    "Atlas A3": (np.float32, np.float16, BF16),
    "Atlas inference": (np.float32, np.float16),
}
# NaN, infinities, zeros, subnormals, ties, and the edges of int4, int8, uint8, fp16 and int32.
SPECIAL = np.array([
    np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-45, 0.5, -0.5, 1.5, 2.5, -2.5, 7.5, -8.5, 126.5,
    127.5, -128.5, -129.0, 254.5, 255.5, 65504.0, 7e4, 2147483520.0, 3e9, -3e9, 3e38,
])  # fmt: skip


class DrawnCall(NamedTuple):
    """Arguments of an operator, and where to run it."""

    device: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def floats(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Numbers around the edge of int8, a fifth of them special."""
    values = np.where(rng.random(shape) < 0.2, rng.choice(SPECIAL, shape), rng.normal(0, 50, shape))
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def rows_of_floats(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Rows of all magnitudes, some full of ties, a few zero or with one special number."""
    values = rng.normal(0, 1, shape) * 2.0 ** rng.integers(-30, 16, (*shape[:-1], 1))
    # The largest number of these is 127, so halves are ties.
    halves = rng.integers(-254, 254, shape, endpoint=True) / 2
    halves[..., 0] = 127
    kind = rng.integers(0, 10, (*shape[:-1], 1))
    values = np.where(kind < 3, halves, np.where(kind == 3, 0.0, values))
    place = np.arange(shape[-1]) == rng.integers(0, shape[-1], (*shape[:-1], 1))
    values = np.where(place & (kind > 7), rng.choice(SPECIAL, (*shape[:-1], 1)), values)
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def points(rng: np.random.Generator, count: int, dtype: Any) -> Array:
    """Zero points over the whole range of an integer type, or hostile floats."""
    if np.dtype(dtype).kind not in "iu":
        return floats(rng, (count,), dtype)
    limits = np.iinfo(dtype)
    wide = rng.integers(limits.min, limits.max, count, dtype=dtype, endpoint=True)
    near = rng.integers(max(limits.min, -40), 40, count, dtype=dtype)
    return np.where(rng.random(count) < 0.2, wide, near).astype(dtype)


def bits_of(values: Array) -> Array:
    """Bit patterns; all NaN are one."""
    words = values.view(f"u{values.itemsize}").astype(np.uint64)
    return np.where(np.isnan(values.astype(np.float64)), 0, words + np.uint64(1))


def assert_same(output: Any, expected: Any) -> None:
    """Equal bit for bit, any NaN being as good as any other, and of the same type and shape."""
    assert not isinstance(output, TensorSpec)
    found, wanted = np.asarray(output), np.asarray(expected)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(bits_of(found), bits_of(wanted))


def assert_all_same(output: Any, expected: Any) -> None:
    """The same for one output or a tuple of several."""
    assert isinstance(output, tuple) == isinstance(expected, tuple)
    outputs, several = (each if isinstance(each, tuple) else (each,) for each in (output, expected))
    for one, other in zip(outputs, several, strict=True):
        assert_same(one, other)


def assert_as_reference(
    op: str, *args: Any, device: Any, byte_exact: bool = False, **given: Any
) -> Any:
    """The run of a call, which gives the bits of the reference."""
    found = run(op, *args, device=device, timing=False, byte_exact=byte_exact, **given)
    with np.errstate(all="ignore"):
        expected = ops.load(op).reference(*args, **given, spec=found.device)
    assert_all_same(found.output, expected)
    return found


RNG = st.integers(0, 2**32 - 1).map(np.random.default_rng)
"""Draws a generator of numbers."""


@st.composite
def shapes(draw: st.DrawFn, most: int = 6000) -> tuple[int, ...]:
    """One to eight dimensions: all small but two at most, of which one is the last."""
    shape = [draw(st.integers(1, 3)) for _ in range(draw(st.integers(1, 8)))]
    shape[draw(st.integers(0, len(shape) - 1))] = draw(st.integers(1, 90))
    shape[-1] = draw(st.integers(1, 200) | st.integers(1, 40))
    while prod(shape) > most:
        largest = shape.index(max(shape))
        shape[largest] = -(-shape[largest] // 2)
    return tuple(shape)


@st.composite
def quantize_calls(draw: st.DrawFn) -> DrawnCall:
    """Any call of npu_quantize that is accepted."""
    device = draw(st.sampled_from(devices.names()))
    series = devices.load(device).series
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape, kind = draw(shapes()), draw(st.sampled_from(FLOATS[series]))
    x = floats(rng, shape, kind)
    is_one = draw(st.integers(0, 3)) == 0
    is_bare = draw(st.integers(0, 2)) == 0
    if draw(st.booleans()):
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        scale_kind, point_kind = np.float32, draw(st.sampled_from((np.int8, np.uint8, np.int32)))
        if kind is BF16 and draw(st.booleans()):
            scale_kind = point_kind = BF16
        count = 1 if is_one else shape[axis]
        dtype = draw(st.sampled_from(("qint8", "quint8", "int32", "qint32")))
        s, z = floats(rng, (count,), scale_kind), points(rng, count, point_kind)
        return DrawnCall(device, (x, s, None if is_bare else z, dtype, axis, True), {})
    is_old = series == "Atlas inference"
    lowest = -1 if is_old or len(shape) == 1 else -2
    axis = draw(st.integers(lowest, len(shape)))
    scale_kind = draw(st.sampled_from(FLOATS[series])) if kind is np.float32 else kind
    dtype = "qint8" if is_old else draw(st.sampled_from(("qint8", "quint4x2")))
    if dtype == "quint4x2":
        x = floats(rng, (*shape[:-1], -(-shape[-1] // 8) * 8), kind)
    position = x.ndim - 2 if axis == -2 else x.ndim - 1
    count = 1 if is_one else x.shape[position]
    s, z = floats(rng, (count,), scale_kind), floats(rng, (count,), scale_kind)
    if draw(st.booleans()):
        full = tuple(count if index == position else 1 for index in range(x.ndim))
        s, z = s.reshape(full), z.reshape(full)
    return DrawnCall(device, (x, s, None if is_bare else z, dtype, axis, False), {})


@st.composite
def group_calls(draw: st.DrawFn) -> DrawnCall:
    """Any call of npu_group_quant that is accepted."""
    device = draw(st.sampled_from(A2 + A3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, columns = draw(st.integers(1, 120)), draw(st.integers(1, 120))
    groups = draw(st.integers(1, 12) | st.integers(250, 600))
    kinds = st.sampled_from(FLOATS["Atlas A2"])
    x_kind, scale_kind = draw(kinds), draw(kinds)
    dst_dtype = draw(st.sampled_from((None, "int8", "qint8", "quint4x2")))
    if dst_dtype == "quint4x2":
        columns = -(-columns // 8) * 8
    ends = np.sort(rng.integers(0, rows, groups, endpoint=True))
    ends[-1] = rows
    offset = draw(st.sampled_from((None, (), (1,))))
    args = (
        floats(rng, (rows, columns), x_kind),
        floats(rng, (groups, columns), scale_kind),
        ends.astype(draw(st.sampled_from((np.int32, np.int64)))),
    )
    point = None if offset is None else floats(rng, offset, scale_kind)
    return DrawnCall(device, args, {"offset": point, "dst_dtype": dst_dtype})


@st.composite
def dynamic_calls(draw: st.DrawFn) -> DrawnCall:
    """Any call of npu_dynamic_quant that is accepted, rows of more than 5000 elements aside."""
    device = draw(st.sampled_from(A2 + A3 + INFERENCE))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = draw(shapes().filter(lambda shape: len(shape) > 1))
    if draw(st.booleans()):
        shape = (*shape[:-1], 8 * draw(st.integers(14, 40)))
    if device in INFERENCE:
        shape = (*shape[:-1], -(-shape[-1] // 32) * 32)
        return DrawnCall(device, (rows_of_floats(rng, shape, np.float16),), {})
    kind = draw(st.sampled_from((np.float16, BF16)))
    dst_type = draw(st.sampled_from((None, "int8", "quint4x2")))
    if dst_type == "quint4x2":
        shape = (*shape[:-1], -(-shape[-1] // 8) * 8)
    kwargs: dict[str, Any] = {"dst_type": dst_type}
    smooth = draw(st.sampled_from(("none", "hostile", "plain", "groups")))
    if smooth == "hostile":
        kwargs["smooth_scales"] = floats(rng, shape[-1:], kind)
    elif smooth == "plain":
        kwargs["smooth_scales"] = rng.normal(0, 2, shape[-1]).astype(kind)
    elif smooth == "groups":
        rows, groups = prod(shape[:-1]), draw(st.integers(1, 9))
        kwargs["smooth_scales"] = rng.normal(0, 2, (groups, shape[-1])).astype(kind)
        index = rng.integers(0, rows, groups, endpoint=True)
        # In order or not: a row takes the first group that ends behind it.
        index[-1] = rows + draw(st.integers(0, 2))
        kwargs["group_index"] = index.astype(np.int32)
    return DrawnCall(device, (rows_of_floats(rng, shape, kind),), kwargs)


# ---- rows of contract tables ----

LINES = {
    "Atlas A2": "ascend910b2",
    "Atlas A3": "ascend910_9391",
    "Atlas inference": "ascend310p3",
}
"""A chip of each product line."""
NEW = ("Atlas A2", "Atlas A3")
OLD = ("Atlas inference",)


class Row(NamedTuple):
    """A constraint: a call that breaks it, what is said then, and the nearest call that does not.

    Calls are changes to the table's base call; messages are without the operator's name, and have
    `{series}` where the product line's stands.
    """

    wrong: dict[str, Any]
    message: str
    right: dict[str, Any] | None = None
    """None is the base call itself."""
    lines: tuple[str, ...] = NEW + OLD
    """On which it holds, of those that the operator has."""
    code: Code = Code.INVALID_PARAMETER


def constraints(
    op: str, base: dict[str, Any], rows: list[Row], lines: tuple[str, ...] = NEW + OLD
) -> Any:
    """A test of *rows*: *base* is refused with what is wrong of each, accepted with what is right.

    It has a case for each product line of *lines* that the operator has. A line of which the same
    holds as of one before it is nightly.
    """
    on = {line for row in ops.load(op).support for line in row.on if line in lines}
    cases, before = [], list[list[int]]()
    for series in [line for line in LINES if line in on]:
        places = [place for place, row in enumerate(rows) if series in row.lines]
        marks = pytest.mark.nightly if places in before else ()
        if places:
            before.append(places)
            own = [rows[place] for place in places]
            cases.append(pytest.param(series, own, id=series, marks=marks))

    @pytest.mark.parametrize(("series", "own"), cases)
    def test_each_constraint(series: str, own: list[Row], subtests: pytest.Subtests) -> None:
        for row in own:
            with subtests.test(row.message):
                assert_refused(op, base | row.wrong, row, series)
                if row.right is not None:
                    assert_accepted(op, base | row.right, series)
        if any(row.right is None for row in own):
            assert_accepted(op, base, series)

    return test_each_constraint


def assert_refused(op: str, call: dict[str, Any], row: Row, series: str) -> None:
    """*call* raises OpError with the row's message, whole, and its code."""
    message = f"{op}: {row.message.format(series=series)} [{row.code.value}]"
    with pytest.raises(OpError, match="^" + re.escape(message) + "$") as caught:
        run(op, device=LINES[series], timing=False, **call)
    assert caught.value.code is row.code


def assert_accepted(op: str, call: dict[str, Any], series: str) -> None:
    """*call* gives what the reference gives; without all values it is held against the rules."""
    spec = devices.load(LINES[series])
    if any(isinstance(value, TensorSpec) for value in call.values()):
        ops.load(op).check(spec, **call)
        return
    output = run(op, device=spec, timing=False, **call).output
    assert_all_same(output, ops.load(op).reference(**call, spec=spec))
