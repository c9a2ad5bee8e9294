"""Operands with masks and strides, against the rule of the documents, element by element.

asc-devkit, SIMD计算说明/掩码.md and 高维切分.md: in repeat r lane l of an operand lies in block
l // (32 / size) of the repeat; a lane takes part if its bit of the mask is set. Where the chip
counts elements (Counter mode), repeats go on until so many have taken part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_spec

from npusim import isa
from npusim.check.hazards import areas
from npusim.check.rules import Place, check
from npusim.check.uninitialized.flow import FLOW
from npusim.check.uninitialized.marks import NOBODY, Marks
from npusim.data.dtypes import FLOAT16, FLOAT32, INT16, INT32, DType, cast
from npusim.kernel.program import Program
from npusim.timing.cost import cost
from npusim.values.buffers import Buffers
from npusim.values.semantics import State, run

SPEC = tiny_spec()
CORE = SPEC.cores["aiv"]
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 65504.0, 3e38, 1e-40, 1.5)


def lanes_of(local: isa.Local) -> Iterator[int]:
    """The first byte of each element that takes part, in the order of the instruction."""
    size = local.dtype.bits // 8
    per_block, width = 32 // size, local.repeat_blocks * 32 // size
    left, repeat = local.count, 0
    while left:
        for lane in range(width if local.mask is None else 256 // size):
            if left and (local.mask is None or local.mask >> lane & 1):
                block, inside = divmod(lane, per_block)
                blocks = repeat * local.repeat_stride + block * local.block_stride
                yield local.offset_bytes + 32 * blocks + inside * size
                left -= 1
        repeat += 1


def values_of(ub: np.ndarray, local: isa.Local) -> list[Any]:
    size = local.dtype.bits // 8
    return [ub[at : at + size].copy().view(local.dtype.numpy)[0] for at in lanes_of(local)]


def buffers(rng: np.random.Generator) -> Buffers:
    """A unified buffer with numbers of every kind in it."""
    found = Buffers(CORE, byte_exact=True)
    ub = found.raw("ub")
    numbers = rng.normal(0, 30, ub.size // 4).astype(np.float32)
    numbers[::7] = rng.choice(np.array(SPECIAL, np.float32), numbers[::7].size)
    ub[:] = numbers.view(np.uint8)
    return found


Bits = Callable[..., Any]
KINDS: dict[str, tuple[Callable[..., isa.MicroOp], tuple[DType, ...], Bits]] = {
    "add": (
        lambda dst, a, b: isa.Binary("add", dst, a, b),
        (FLOAT32, FLOAT32, FLOAT32),
        lambda a, b: a + b,
    ),
    "max": (
        lambda dst, a, b: isa.Binary("max", dst, a, b),
        (INT32, INT32, INT32),
        lambda a, b: max(a, b),
    ),
    "muls": (
        lambda dst, a: isa.BinaryScalar("mul", dst, a, 3.0),
        (FLOAT16, FLOAT16),
        lambda a: np.float16(np.float32(a) * np.float32(3)),
    ),
    "abs": (lambda dst, a: isa.Unary("abs", dst, a), (FLOAT16, FLOAT16), lambda a: abs(a)),
    "not": (lambda dst, a: isa.Unary("not", dst, a), (INT16, INT16), lambda a: ~a),
    "copy": (lambda dst, a: isa.Copy(dst, a), (FLOAT32, FLOAT32), lambda a: a),
    "widen": (lambda dst, a: isa.Cast(dst, a), (FLOAT32, FLOAT16), lambda a: np.float32(a)),
    "narrow": (
        lambda dst, a: isa.Cast(dst, a, "rint"),
        (FLOAT16, FLOAT32),
        lambda a: cast(np.array([a], np.float32), FLOAT16, "rint")[0],
    ),
    "duplicate": (lambda dst: isa.Duplicate(dst, 2.5), (FLOAT16,), lambda: np.float16(2.5)),
}


@st.composite
def operands(draw: st.DrawFn) -> tuple[str, isa.MicroOp]:
    """A micro-op on operands that lie apart, all with one mask or all with a count."""
    name = draw(st.sampled_from(sorted(KINDS)))
    make, dtypes, _ = KINDS[name]
    widest = max(dtype.bits for dtype in dtypes)
    lanes = 256 * 8 // widest
    mask = draw(st.none() | st.integers(1, 2**lanes - 1))
    repeats = draw(st.integers(1, 3))
    count = repeats * (mask or 0).bit_count() or draw(st.integers(1, 3 * lanes))
    found = []
    for index, dtype in enumerate(dtypes):
        blocks = 8 * dtype.bits // widest
        block_stride = draw(st.integers(1, 2))
        repeat_stride = block_stride * blocks + draw(st.integers(0, 3))
        if draw(st.booleans()):
            # The blocks of one repeat lie between those of the others.
            block_stride, repeat_stride = 3, 1
        local = isa.Local("ub", 4096 * index, dtype, count, block_stride, repeat_stride)
        found.append(replace(local, repeat_blocks=8 if mask else blocks, mask=mask))
    return name, make(*found)


@draws(300)
@given(drawn=operands(), seed=st.integers(0, 99))
def test_the_lanes_that_take_part_and_no_other(drawn: tuple[str, Any], seed: int) -> None:
    name, op = drawn
    rule = KINDS[name][2]
    check(Program("masked", (op,)), Place(SPEC, "aiv"))
    found = buffers(np.random.default_rng(seed))
    ub = found.raw("ub")
    expected, dst = ub.copy(), isa.writes(op)[0]
    with np.errstate(all="ignore"):
        sources = [values_of(ub, local) for local in isa.reads(op)]
        rows = zip(*sources, strict=True) if sources else [()] * dst.count
        for at, row in zip(lanes_of(dst), rows, strict=True):
            bits = np.array([rule(*row)]).astype(dst.dtype.numpy).view(np.uint8)
            expected[at : at + bits.size] = bits
    run([op], State(found, {}))
    view = dst.dtype.numpy
    np.testing.assert_array_equal(ub.view(view), expected.view(view))
    same = ~np.isnan(ub.view(view)) if dst.dtype.is_float else np.ones(ub.view(view).size, bool)
    assert (ub.view(view).view(f"u{view.itemsize}") == expected.view(f"u{view.itemsize}"))[
        same
    ].all()


@draws(100)
@given(drawn=operands())
def test_what_is_touched_is_known_to_the_byte(drawn: tuple[str, Any]) -> None:
    _, op = drawn
    for local, area in zip(
        (*isa.reads(op), *isa.writes(op)), (*areas.read(op), *areas.written(op)), strict=True
    ):
        size = local.dtype.bits // 8
        touched = {at + byte for at in lanes_of(local) for byte in range(size)}
        edges = [(0, area.end - area.start)]
        if area.shape is not None:
            starts, ends = areas.edges(area.shape)
            edges = [(a - starts[0], b - starts[0]) for a, b in zip(starts, ends, strict=True)]
        runs = [range(area.start + a, area.start + b) for a, b in edges]
        assert touched == {byte for run in runs for byte in run}
        assert (area.start, area.end) == (min(touched), max(touched) + 1)
        assert local.end_bytes == max(touched) + 1


def test_lanes_that_take_no_part_stay_unwritten() -> None:
    marks = Marks(CORE, np.uint8)
    dst = isa.Local("ub", 0, FLOAT32, 6, 2, 16, mask=0b1000_0000_0011)
    op = isa.Duplicate(dst, 0.0)
    FLOW[isa.Duplicate](op, marks)
    written = np.flatnonzero(marks.bytes["ub"] != NOBODY)
    expected = [at + byte for at in lanes_of(dst) for byte in range(4)]
    assert written.tolist() == sorted(expected)


@pytest.mark.parametrize(
    ("count", "mask", "repeats"), [(100, None, 2), (30, 0x3FF << 10, 3), (64, None, 1)]
)
def test_a_repeat_costs_a_repeat_however_few_lanes_it_has(
    count: int, mask: int | None, repeats: int
) -> None:
    dst = isa.Local("ub", 0, FLOAT32, count, 1, 8, mask=mask)
    whole = isa.Local("ub", 0, FLOAT32, 64 * repeats)
    found, expected = (cost(isa.Duplicate(x, 0.0), SPEC, CORE) for x in (dst, whole))
    assert found == expected
