"""What picks, moves and turns elements, against the documents' pseudo code.

asc-devkit: GatherMask.md, Gather.md, Gatherb(ISASI).md, Scatter(ISASI).md, TransDataTo5HD.md,
Select.md, Compare（结果存入寄存器）.md, GetCmpMask(ISASI).md.
"""

from __future__ import annotations

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
from npusim.data.dtypes import (
    FLOAT16,
    FLOAT32,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    DType,
)
from npusim.kernel.program import Program
from npusim.values.buffers import Buffers, OutOfBufferError
from npusim.values.semantics import State, run

SPECS = {"aiv": tiny_spec(), "ai_core": tiny_spec("2002")}


def ub(offset_bytes: int, dtype: DType, count: int, *strides: int, mask: int | None = None) -> Any:
    return replace(isa.Local("ub", offset_bytes, dtype, count, *strides), mask=mask)


def state_of(kind: str = "aiv") -> State:
    return State(Buffers(SPECS[kind].cores[kind], byte_exact=True), {})


def play(state: State, *ops: isa.MicroOp, kind: str = "aiv") -> None:
    check(Program("moves", ops), Place(SPECS[kind], kind))
    run(ops, state)


def numbered(dtype: DType, count: int) -> np.ndarray:
    return np.arange(1, count + 1).astype(dtype.numpy)


def marked(op: isa.MicroOp, unwritten: isa.Local, dst: isa.Local) -> np.ndarray:
    """Which elements of *dst* are marked if all is written but *unwritten*."""
    marks = Marks(SPECS["aiv"].cores["aiv"], np.uint8)
    for area in areas.read(op):
        marks.write(area)
    marks.put(unwritten, np.full(unwritten.count, NOBODY, np.uint8))
    FLOW[type(op)](op, marks)
    return np.asarray(marks.elements(dst) == NOBODY)


# ---- GatherMask ----

PATTERNS = {
    "even": "01" * 32,
    "odd": "10" * 32,
    "first": "0001" * 16,
    "second": "0010" * 16,
    "third": "0100" * 16,
    "fourth": "1000" * 16,
    "all": "1" * 64,
}
"""The document's bits, the first element last."""


@pytest.mark.parametrize("places", list(PATTERNS))
@pytest.mark.parametrize("row", [64, 30])
def test_a_pattern_begins_anew_with_each_repeat(places: Any, row: int) -> None:
    mask = None if row == 64 else (1 << row) - 1
    src = ub(0, FLOAT32, 3 * row, 1, 9, mask=mask)
    picked = [n for n in range(3 * row) if PATTERNS[places][::-1][n % row] == "1"]
    op = isa.GatherMask(places, ub(4096, FLOAT32, len(picked)), src, "kept")
    state = state_of()
    state.buffers.write(src, numbered(FLOAT32, 3 * row))
    play(state, op)
    assert (state.buffers.read(op.dst) - 1).tolist() == picked
    assert state.registers["kept"].tolist() == [len(picked)]
    one = replace(src, offset_bytes=src.offset_bytes + int(isa.places(src)[row + 4]), count=1)
    one = replace(one, mask=None)
    assert np.flatnonzero(marked(op, one, op.dst)).tolist() == [
        n for n, number in enumerate(picked) if number == row + 4
    ]


@draws(60)
@given(dtype=st.sampled_from((FLOAT16, FLOAT32)), seed=st.integers(0, 99), rows=st.integers(1, 3))
def test_a_tensor_picks_the_elements(dtype: DType, seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    row = 2048 // dtype.bits
    words = rng.integers(0, 2**32, rows * row // 32, np.uint32).view(f"u{dtype.bits // 8}")
    unsigned = {16: UINT16, 32: UINT32}[dtype.bits]
    each = words.size // rows
    places = ub(8192, unsigned, words.size)
    if rows > 1:
        places = replace(places, repeat_stride=2, mask=(1 << each) - 1)
    src, dst = ub(0, dtype, rows * row), ub(4096, dtype, rows * row)
    if rows > 1:
        src = replace(src, repeat_stride=9)
    state = state_of()
    state.buffers.write(src, numbered(dtype, src.count))
    state.buffers.write(places, words)
    before = state.buffers.read(dst).copy()
    play(state, isa.GatherMask(places, dst, src, "kept"))
    bits = "".join(f"{word:0{dtype.bits}b}"[::-1] for word in words.tolist())
    picked = [n + 1 for n, bit in enumerate(bits) if bit == "1"]
    found = state.buffers.read(dst)
    assert found[: len(picked)].tolist() == picked
    assert (found[len(picked) :] == before[len(picked) :]).all()
    assert state.registers["kept"].tolist() == [len(picked)]


# ---- offsets ----


@pytest.mark.parametrize("dtype", [FLOAT16, INT32])
def test_lanes_that_a_mask_picks_are_looked_up(dtype: DType) -> None:
    mask = 0b1001_0110
    src, dst = ub(0, dtype, 100), ub(4096, dtype, 8, 1, 9, mask=mask)
    offsets = ub(8192, UINT32, 8, 1, 8, mask=mask)
    chosen = np.array([5, 0, 99, 7, 7, 50, 1, 2])
    state = state_of()
    state.buffers.write(src, numbered(dtype, 100))
    state.buffers.write(offsets, (chosen * dtype.bits // 8).astype(np.uint32))
    play(state, isa.Gather(dst, src, offsets))
    assert (state.buffers.read(dst) - 1).tolist() == chosen.tolist()


def test_blocks_are_looked_up() -> None:
    src, dst, offsets = ub(0, UINT16, 160), ub(4096, UINT16, 256, 2, 17), ub(8192, UINT32, 16)
    chosen = np.array([9, 0, 3, 3, 1, 8, 2, 5, 0, 1, 2, 3, 4, 5, 6, 7])
    state = state_of()
    state.buffers.write(src, numbered(UINT16, 160))
    state.buffers.write(offsets, (32 * chosen).astype(np.uint32))
    op = isa.GatherBlocks(dst, src, offsets)
    play(state, op)
    expected = [16 * block + lane + 1 for block in chosen for lane in range(16)]
    assert state.buffers.read(dst).tolist() == expected
    assert np.flatnonzero(marked(op, offsets.at(1, 1), dst)).tolist() == list(range(16, 32))


@pytest.mark.parametrize("offset", [-32, 320, 16])
def test_an_offset_of_no_block_is_refused(offset: int) -> None:
    op = isa.GatherBlocks(ub(4096, UINT16, 16), ub(0, UINT16, 160), ub(8192, INT32, 1))
    state = state_of()
    state.buffers.write(op.offsets, np.array([offset], np.int32))
    with pytest.raises(OutOfBufferError) as caught:
        play(state, op)
    assert str(caught.value) == (
        f"semantics: {op}: offsets must be those of blocks of src, multiples of 32 in [0, 320), "
        f"not {offset}; fix what fills them"
    )


def test_elements_are_put_where_their_offsets_say() -> None:
    mask = 0b0110
    src, offsets = ub(0, FLOAT32, 4, 1, 8, mask=mask), ub(8192, UINT32, 4, 1, 8, mask=mask)
    dst = ub(4096, FLOAT32, 10)
    state = state_of("ai_core")
    state.buffers.write(dst, np.zeros(10, np.float32))
    state.buffers.write(src, numbered(FLOAT32, 4))
    state.buffers.write(offsets, np.array([36, 0, 8, 4], np.uint32))
    play(state, isa.Scatter(dst, src, offsets), kind="ai_core")
    assert state.buffers.read(dst).tolist() == [2, 4, 3, 0, 0, 0, 0, 0, 0, 1]


# ---- TransDataTo5HD ----


def row_of(start: int, dtype: DType, repeats: int, stride: int, high: bool) -> isa.Local:
    count = repeats * (16 if dtype.bits == 8 else 256 // dtype.bits)
    if dtype.bits == 8:
        return ub(start, dtype, count, 1, stride, mask=0xFFFF_0000 if high else 0xFFFF)
    return ub(start, dtype, count, 1, stride, 1)


@pytest.mark.parametrize("dtype", [INT8, UINT8, FLOAT16, INT16, FLOAT32, INT32])
@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize(("src_high", "dst_high"), [(False, True), (True, False)])
def test_rows_that_lie_anywhere_become_columns(
    dtype: DType, repeats: int, src_high: bool, dst_high: bool
) -> None:
    rng = np.random.default_rng(5)
    starts = 32 * rng.permutation(16)
    sources = [row_of(int(at), dtype, repeats, 16, src_high) for at in starts]
    results = [row_of(4096 + int(at), dtype, repeats, 17, dst_high) for at in starts]
    op = isa.TransDataTo5HD(tuple(results), tuple(sources))
    state = state_of()
    values = rng.integers(0, 100, (16, sources[0].count)).astype(dtype.numpy)
    for row, of_row in zip(sources, values, strict=True):
        state.buffers.write(row, of_row)
    play(state, op)
    width = 16 if dtype.bits == 8 else 256 // dtype.bits
    found = [state.buffers.read(row).tolist() for row in results]
    for repeat in range(repeats):
        block = values[:, repeat * width :][:, :width].tolist()
        for i in range(width):
            column = [block[j][i] for j in range(16)]
            if dtype.bits == 32:
                pieces = [found[2 * i + half][8 * repeat :][:8] for half in (0, 1)]
                assert pieces[0] + pieces[1] == column
            else:
                assert found[i][16 * repeat :][:16] == column


def test_an_element_of_a_column_comes_of_one_of_a_row() -> None:
    rows = [
        tuple(row_of(at + 32 * n, FLOAT32, 2, 16, False) for n in range(16)) for at in (0, 4096)
    ]
    op = isa.TransDataTo5HD(rows[1], rows[0])
    unwritten = rows[0][5].at(2, 1)
    hits = [np.flatnonzero(marked(op, unwritten, row)).tolist() for row in rows[1]]
    # Element 2 of row 5 is element 5 of the first half of column 2.
    assert hits == [[5] if n == 4 else [] for n in range(16)]


# ---- selection ----


def selected(op: isa.Select, bits: list[int], a: np.ndarray, b: np.ndarray) -> list[Any]:
    """Select.md: repeat by repeat, a bit for each of its lanes, taken or not."""
    lanes, out, repeat, number = op.repeat_lanes, [], 0, 0
    while number < op.dst.count:
        for lane in range(lanes):
            is_in = op.dst.mask is None or op.dst.mask >> lane & 1
            if number < op.dst.count and is_in:
                bit = bits[lane if op.is_repeated else repeat * lanes + lane]
                out.append(a[number] if bit else b[number])
                number += 1
        repeat += 1
    return out


@draws(80)
@given(
    dtype=st.sampled_from((FLOAT16, FLOAT32)),
    way=st.sampled_from(("tensor", "whole", "repeated", "register")),
    data=st.data(),
)
def test_each_lane_has_its_bit(dtype: DType, way: str, data: st.DataObject) -> None:
    lanes = 2048 // dtype.bits
    mask = data.draw(st.none() | st.integers(1, 2**lanes - 1))
    repeats = data.draw(st.integers(1, 3))
    count = repeats * (mask.bit_count() if mask else lanes)
    dst, a, b = (ub(at, dtype, count, 1, 9, mask=mask) for at in (0, 4096, 8192))
    if mask is None:
        dst, a, b = (replace(x, repeat_stride=8) for x in (dst, a, b))
    whole = isa.Select(dst, "cmp_mask", a, b)
    nbytes = {"tensor": whole.mask_bytes, "whole": whole.whole_mask_bytes}.get(way, lanes // 8)
    bits = ub(12288, UINT8, nbytes)
    op = replace(whole, mask="cmp_mask" if way == "register" else bits)
    packed = np.random.default_rng(count).integers(0, 256, max(16, nbytes)).astype(np.uint8)
    state = state_of()
    state.buffers.write(replace(bits, count=packed.size), packed)
    values = [np.random.default_rng(n).normal(size=count).astype(dtype.numpy) for n in (1, 2)]
    state.buffers.write(a, values[0])
    state.buffers.write(b, values[1])
    play(state, isa.SetCmpMask(ub(12288, UINT8, 16)), op)
    each = [byte >> bit & 1 for byte in packed.tolist() for bit in range(8)]
    assert state.buffers.read(dst).tolist() == selected(op, each, *values)


def test_a_comparison_leaves_its_bits_in_the_register() -> None:
    mask = 0b11011 << 60
    a, b = (ub(at, FLOAT16, 4, mask=mask) for at in (0, 4096))
    state = state_of()
    state.buffers.write(a, np.array([1, 2, np.nan, 4], np.float16))
    state.buffers.write(b, np.array([2, 2, 2, 5], np.float16))
    got = ub(8208, UINT8, 16)
    play(state, isa.Compare("lt", "cmp_mask", a, b), isa.GetCmpMask(got))
    bits = int.from_bytes(state.buffers.read(got).tobytes(), "little")
    assert bits == 1 << 60 | 1 << 64


def test_an_unwritten_bit_is_seen_in_what_it_decides() -> None:
    dst, a, b = (ub(at, FLOAT32, 128) for at in (0, 4096, 8192))
    mask = ub(12288, UINT8, 8)
    op = isa.Select(dst, mask, a, b)
    expected = [n for n in range(128) if n % 64 // 8 == 3]
    assert np.flatnonzero(marked(op, mask.at(3, 1), dst)).tolist() == expected


# ---- copies ----


@pytest.mark.parametrize("dtype", [INT8, INT64])
def test_blocks_of_any_type_are_copied(dtype: DType) -> None:
    count = 3 * 9 * 256 // dtype.bits
    src, dst = ub(0, dtype, count, 1, 11, 9), ub(4096, dtype, count, 2, 18, 9)
    state = state_of()
    values = np.arange(count).astype(dtype.numpy)
    state.buffers.write(src, values)
    play(state, isa.Copy(dst, src))
    np.testing.assert_array_equal(state.buffers.read(dst), values)
    ends = {int(place) for place in isa.places(replace(src, mask=None, count=count - 1))}
    assert max(ends) < 2 * 11 * 32 + 9 * 32
