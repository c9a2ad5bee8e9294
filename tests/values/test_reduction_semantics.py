"""Reductions with masks, strides of results and indices, written a second time, lane by lane.

asc-devkit, ReduceRepeat.md and ReduceDataBlock.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_spec

from npusim import isa
from npusim.check.hazards import areas
from npusim.check.rules import Place, RuleError, check
from npusim.check.uninitialized.flow import FLOW
from npusim.check.uninitialized.marks import NOBODY, Marks
from npusim.data.dtypes import FLOAT16, FLOAT32, DType
from npusim.isa import BLOCK_BYTES
from npusim.kernel.program import Program
from npusim.values.buffers import Buffers
from npusim.values.semantics import State, run

SPEC = tiny_spec()
CORE = SPEC.cores["aiv"]
SRC, DST = 4096, 64


def repeats_of(ub: np.ndarray, src: isa.Local) -> list[dict[int, Any]]:
    """For each repeat, lane -> its value, of those that take part."""
    dtype, size = src.dtype.numpy, src.dtype.bits // 8
    found: list[dict[int, Any]] = []
    left = src.count
    while left:
        lanes = {}
        for lane in range(src.repeat_blocks * BLOCK_BYTES // size):
            if left and (src.mask is None or src.mask >> lane & 1):
                block, inside = divmod(lane * size, BLOCK_BYTES)
                blocks = len(found) * src.repeat_stride + block * src.block_stride
                at = src.offset_bytes + BLOCK_BYTES * blocks + inside
                lanes[lane] = ub[at : at + size].view(dtype)[0]
                left -= 1
        found.append(lanes)
    return found


def added(lanes: dict[int, Any], width: int, dtype: DType) -> Any:
    """The sum of *width* lanes in pairs, those that take no part being 0."""
    row = [lanes.get(lane, dtype.numpy.type(0)) for lane in range(width)]
    while len(row) > 1:
        pairs = zip(row[::2], row[1::2], strict=True)
        row = [dtype.numpy.type(np.float32(a) + np.float32(b)) for a, b in pairs]
    return row[0]


def extreme(op: str, lanes: dict[int, Any]) -> tuple[Any, int]:
    """The largest or smallest value, the first of equal ones, and its lane; NaN before all."""
    best = next(iter(lanes))
    for lane, value in lanes.items():
        if np.isnan(lanes[best]):
            break
        is_better = value > lanes[best] if op == "max" else value < lanes[best]
        if np.isnan(value) or is_better:
            best = lane
    return lanes[best], best


def results(op: isa.WholeReduce, lanes: dict[int, Any]) -> bytes:
    dtype = op.src.dtype.numpy
    if op.op == "sum":
        return np.array([added(lanes, 256 // dtype.itemsize, op.src.dtype)], dtype).tobytes()
    value, index = extreme(op.op, lanes)
    number = np.array([index], f"u{dtype.itemsize}").tobytes()
    if op.order == "index":
        return np.array([index], np.uint32).tobytes()
    of_value = np.array([value], dtype).tobytes()
    return {
        "value": of_value,
        "value_index": of_value + number,
        "index_value": number + of_value,
    }[op.order]


@st.composite
def sources(draw: st.DrawFn) -> isa.Local:
    """float16 or float32, strided, masked or counted."""
    dtype = draw(st.sampled_from((FLOAT16, FLOAT32)))
    lanes = 256 * 8 // dtype.bits
    mask = draw(st.none() | st.integers(1, 2**lanes - 1))
    count = draw(st.integers(1, 3)) * (mask or 0).bit_count() or draw(st.integers(1, 3 * lanes))
    stride = draw(st.integers(1, 2))
    local = isa.Local("ub", SRC, dtype, count, stride, 8 * stride + draw(st.integers(0, 3)))
    return replace(local, mask=mask)


def filled(seed: int) -> Buffers:
    rng = np.random.default_rng(seed)
    found = Buffers(CORE, byte_exact=True)
    ub = found.raw("ub")
    few = rng.integers(-9, 9, ub.size // 4).astype(np.float32)
    special = np.array([np.inf, -np.inf, np.nan, -0.0, 60000, 1e-7], np.float32)
    few[rng.integers(0, few.size, few.size // 50)] = rng.choice(special)
    ub[:] = few.view(np.uint8)
    half = ub[SRC : SRC + 8192].view(np.float16)
    half[:] = rng.integers(-9, 9, half.size)
    half[rng.integers(0, half.size, 30)] = np.float16(rng.choice(special))
    return found


def played(op: isa.MicroOp, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The unified buffer before and after *op*, which the chip accepts."""
    check(Program("reduces", (op,)), Place(SPEC, "aiv"))
    buffers = filled(seed)
    before = buffers.raw("ub").copy()
    run([op], State(buffers, {}))
    return before, buffers.raw("ub")


def assert_like(found: np.ndarray, expected: np.ndarray, dtype: DType) -> None:
    """The same bits, any NaN being as good as any other."""
    nan = np.isnan(expected.view(dtype.numpy))
    np.testing.assert_array_equal(np.isnan(found.view(dtype.numpy)), nan)
    bits = f"u{dtype.bits // 8}"
    np.testing.assert_array_equal(found.view(bits)[~nan], expected.view(bits)[~nan])


def touched_bytes(op: isa.MicroOp) -> set[int]:
    (area,) = areas.written(op)
    if area.shape is None:
        return set(range(area.start, area.end))
    starts, ends = areas.edges(area.shape)
    runs = zip(starts - starts[0] + area.start, ends - starts[0] + area.start, strict=True)
    return {byte for a, b in runs for byte in range(a, b)}


def assert_writes(op: isa.MicroOp, wrote: dict[int, bytes]) -> None:
    """What *op* says that it writes is that, to checks and to marks."""
    told = {at + byte for at, data in wrote.items() for byte in range(len(data))}
    assert touched_bytes(op) == told
    marks = Marks(CORE, np.uint8)
    for area in areas.read(op):
        marks.write(area)
    FLOW[type(op)](op, marks)
    unread = marks.bytes["ub"][:SRC]
    assert set(np.flatnonzero(unread != NOBODY).tolist()) == {x for x in told if x < SRC}


@draws(300)
@given(
    src=sources(),
    op=st.sampled_from(get_args(isa.ReduceOp)),
    order=st.sampled_from(get_args(isa.ReduceOrder)),
    stride=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_each_repeat_leaves_its_result(
    src: isa.Local, op: Any, order: Any, stride: int, seed: int
) -> None:
    order = "value" if op == "sum" else order
    size = src.dtype.bits // 8
    each = {"value": size, "index": 4}.get(order, 2 * size)
    dst = isa.Local("ub", DST, src.dtype, (max(src.repeats - 1, 0) * stride + 1) * each // size)
    reduction = isa.WholeReduce(op, dst, src, None, order, stride)
    with np.errstate(all="ignore"):
        expected, found = played(reduction, seed)
        wrote = {}
        for number, lanes in enumerate(repeats_of(expected, src)):
            wrote[DST + number * stride * each] = results(reduction, lanes)
    for at, data in wrote.items():
        expected[at : at + len(data)] = np.frombuffer(data, np.uint8)
    assert_like(found, expected, src.dtype)
    assert_writes(reduction, wrote)


@draws(200)
@given(
    src=sources(),
    op=st.sampled_from(get_args(isa.ReduceOp)),
    stride=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_each_block_leaves_its_result(src: isa.Local, op: Any, stride: int, seed: int) -> None:
    size = src.dtype.bits // 8
    per_block, wrote = BLOCK_BYTES // size, {}
    before = filled(seed).raw("ub")
    with np.errstate(all="ignore"):
        for number, lanes in enumerate(repeats_of(before, src)):
            for block in {lane // per_block for lane in lanes}:
                here = {
                    x - per_block * block: v for x, v in lanes.items() if x // per_block == block
                }
                value = added(here, per_block, src.dtype) if op == "sum" else extreme(op, here)[0]
                at = DST + size * (8 * number * stride + block)
                wrote[at] = np.array([value], src.dtype.numpy).tobytes()
    dst = isa.Local("ub", DST, src.dtype, (max(wrote) - DST) // size + 1)
    reduction = isa.BlockReduce(op, dst, src, stride)
    with np.errstate(all="ignore"):
        expected, found = played(reduction, seed)
    for at, data in wrote.items():
        expected[at : at + len(data)] = np.frombuffer(data, np.uint8)
    assert_like(found, expected, src.dtype)
    assert_writes(reduction, wrote)


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32])
def test_a_reduction_counts_from_the_first_element(dtype: DType) -> None:
    src = isa.Local("ub", SRC, dtype, 300)
    dst = isa.Local("ub", DST, dtype, 2)
    buffers = Buffers(CORE, byte_exact=True)
    values = buffers.view(src)
    values[:] = 1
    values[[170, 250]] = 7
    run([isa.Reduce("max", dst, src, "value_index")], State(buffers, {}))
    found = buffers.view(dst)
    assert found[0] == 7
    assert found[1:].view(f"u{found.itemsize}")[0] == 170


def test_310p_writes_the_value_first_or_the_index_first() -> None:
    spec = tiny_spec("2002")
    src = isa.Local("ub", SRC, FLOAT32, 64)
    dst = isa.Local("ub", DST, FLOAT32, 1)
    op = isa.WholeReduce("max", dst, src, None, "index")
    with pytest.raises(RuleError) as caught:
        check(Program("reduces", (op,)), Place(spec, "ai_core"))
    assert str(caught.value) == (
        f"reduces #0: {op}: order must be one of value, value_index, index_value on arch 2002, not "
        f"index; take the part that is wanted"
    )
