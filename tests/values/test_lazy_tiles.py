"""What waits in lazy tiles gives the bytes of a core that writes all at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st

from npusim import devices, isa
from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, UINT8, Array, DType
from npusim.isa import Global, Local, MicroOp
from npusim.values.buffers import Buffers
from npusim.values.runs import Halved, with_runs
from npusim.values.semantics import Memory, State, run

SPEC = devices.load("ascend910b2")
CORE = SPEC.cores[SPEC.vector_kinds[0]]
COUNT = 2048
"""Elements of a place: as fp16 its bytes are worth a view."""
PLACE_BYTES = 4 * COUNT
PLACES = range(4)
MASK_BYTES = len(PLACES) * PLACE_BYTES
LANES = 3
NUMBERS = np.array([0, -0.0, 1, 1, -1, 0.5, 3, 2049, 6e-8, np.inf, -np.inf, np.nan], np.float16)
"""What tells signs of zeros, ties, subnormals and what has no order from the rest."""


def at(place: int, dtype: DType, count: int = COUNT, skip: int = 0) -> Local:
    return Local("ub", place * PLACE_BYTES + 32 * skip, dtype, count)


def halving(row: Local, op: Any, last: int) -> list[MicroOp]:
    """*row* down to *last* elements."""
    ops: list[MicroOp] = []
    half = row.count // 2
    while half >= last:
        ops.append(isa.Binary(op, row.at(0, half), row.at(0, half), row.at(half, half)))
        half //= 2
    return ops


@st.composite
def micro_ops(draw: st.DrawFn) -> list[MicroOp]:
    """One of those that leave lazy tiles or read them, or a row that is halved."""
    place = st.sampled_from(PLACES)
    x, y, z = draw(place), draw(place), draw(place)
    skip = draw(st.sampled_from([0, 0, 0, 1, 64]))
    dtype = draw(st.sampled_from([FLOAT16, FLOAT32]))
    count = draw(st.sampled_from([COUNT - 1024, 256]))
    mask = Local("ub", MASK_BYTES, UINT8, count // 8)
    number = draw(st.sampled_from([0.0, -0.0, 1.0, 3.0]))
    comparison: Any = draw(st.sampled_from(["lt", "eq", "ge", "ne"]))
    extreme: Any = draw(st.sampled_from(["min", "max"]))
    b: Any = draw(st.sampled_from([number, at(z, dtype, count)]))
    filled: list[MicroOp] = [
        isa.Cast(at(x, FLOAT32, count), at(z, FLOAT16, count), "none"),
        isa.Select(at(x, FLOAT32, count), mask, at(z, FLOAT32, count), number),
    ]
    before = draw(st.sampled_from([filled[:0], filled[:1], filled[1:]]))
    memory = Global("x", 64 * draw(st.integers(0, 3)), 2 * COUNT)
    return draw(
        st.sampled_from(
            [
                [isa.Load(at(x, UINT8, 2 * COUNT, skip), memory, 2 * COUNT)],
                [isa.Duplicate(at(x, dtype), number)],
                [isa.Compare(comparison, mask, at(x, dtype, count), at(y, dtype, count))],
                [isa.CompareScalar(comparison, mask, at(x, dtype, count, skip), number)],
                [isa.Select(at(x, dtype, count, skip), mask, at(y, dtype, count), b)],
                [
                    isa.Duplicate(at(x, dtype), draw(st.sampled_from([1.0, 1.0, 2.0]))),
                    isa.CompareScalar(comparison, mask, at(y, dtype, count), number),
                    isa.Select(at(z, dtype, count, skip), mask, at(x, dtype, count), number),
                ],
                [isa.Cast(at(x, UINT8, count), at(y, FLOAT16, count, skip), "rint")],
                [isa.Cast(at(x, INT32, count), at(y, FLOAT32, count), "rint")],
                [isa.Cast(at(x, FLOAT32, count), at(y, FLOAT16, count, skip), "none")],
                [isa.Copy(at(x, dtype, count), at(y, dtype, count, skip))],
                [
                    *before,
                    *halving(at(x, FLOAT32, count), extreme, 64),
                    isa.WholeReduce(extreme, at(y, FLOAT32, 1), at(x, FLOAT32, 64)),
                ],
            ]
        )
    )


def start(seed: int, lanes: int | None, byte_exact: bool) -> State:
    buffers = Buffers(CORE, byte_exact=byte_exact, lanes=lanes)
    rng = np.random.default_rng(seed)
    data = rng.choice(NUMBERS, (LANES + 1) * PLACE_BYTES).view(np.uint8)
    raw = buffers.raw("ub")
    raw[...] = rng.choice(NUMBERS, (*buffers.lead, raw.shape[-1] // 2)).view(np.uint8)
    bases = range(0, LANES * PLACE_BYTES, PLACE_BYTES)
    return State(buffers, {"x": Memory(data, 0, is_constant=True, bases=bases)})


@draws(300)
@given(parts=st.lists(micro_ops(), min_size=2, max_size=9), seed=st.integers(0, 99))
def test_what_waits_gives_the_bytes_of_what_does_not(parts: list[list[MicroOp]], seed: int) -> None:
    ops = [op for part in parts for op in part]
    for lanes in (None, LANES):
        exact, lazy = start(seed, lanes, True), start(seed, lanes, False)
        run(ops, exact)
        run(with_runs(ops), lazy)
        assert lazy.buffers.raw("ub").tobytes() == exact.buffers.raw("ub").tobytes()


ROW = np.arange(1, 1025, dtype=np.float32)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize(
    "row",
    [
        ROW,
        -ROW,
        np.where(ROW == 700, np.float32(np.nan), ROW),
        np.where(ROW == 700, -0.0, 0.0),
        np.where(ROW == 700, 0.0, -0.0),
        np.where(ROW == 1, 0.0, -0.0),
        np.where(ROW == 1, -0.0, 0.0),
    ],
    ids=["above zero", "below zero", "a NaN", *("zeros of both signs",) * 4],
)
def test_a_halved_row_has_one_extreme(op: Any, row: Array) -> None:
    """Whether somebody reads what is left of the row or not."""
    halves = halving(at(0, FLOAT32, row.size), op, 64)
    assert with_runs(halves) == [Halved(tuple(halves))]
    whole = isa.WholeReduce(op, at(1, FLOAT32, 1), at(0, FLOAT32, 64))
    found = []
    for ops in ([*halves, whole], with_runs([*halves, whole])):
        state = State(Buffers(CORE), {})
        state.write(at(0, FLOAT32, row.size), row.astype(np.float32))
        run(ops, state)
        found.append(state.read(at(1, FLOAT32, 1)).tobytes())
        found.append(state.buffers.raw("ub").tobytes())
    assert found[:2] == found[2:]


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize(
    "row",
    [
        ROW - 500,
        ROW,
        -ROW,
        np.where(ROW == 700, 3, -0.0),
        np.where(ROW == 700, -3, 0.0),
        np.where(ROW == 700, 0.0, ROW),
        np.where(ROW == 700, -0.0, -ROW),
        np.where(ROW == 700, np.inf, -np.inf),
        np.where(ROW == 700, np.nan, ROW),
        np.where(ROW == 700, -np.nan, ROW),
        np.full(ROW.size, 2.0),
    ],
)
def test_the_place_of_an_extreme_in_rows_that_wait(op: Any, row: Array) -> None:
    """A row that is still in memory, what is selected from where it is largest, and its bytes."""
    count = row.size
    places, mask = at(3, FLOAT32, count), Local("ub", MASK_BYTES, UINT8, count // 8)
    wide, work, found = at(1, FLOAT32, count), at(2, FLOAT32, count), at(0, FLOAT32, 2, 200)
    ops = [
        isa.Load(at(0, UINT8, 2 * COUNT), Global("x", 0, 2 * COUNT), 2 * COUNT),
        isa.Cast(wide, at(0, FLOAT16, count), "none"),
        isa.Copy(work, wide),
        *halving(work, op, 64),
        isa.WholeReduce(op, found.at(0, 1), work.at(0, 64)),
        isa.ScalarLoad("found", found.at(0, 1)),
        isa.CompareScalar("eq", mask, wide, "found"),
        isa.Select(work, mask, places, 9.0),
        *halving(work, "min", 64),
        isa.WholeReduce("min", found.at(1, 1), work.at(0, 64)),
    ]
    rows = np.stack([np.roll(row, lane) for lane in range(2 * LANES)]).astype(np.float16)
    states = []
    for is_exact in (True, False):
        buffers = Buffers(CORE, byte_exact=is_exact, lanes=LANES)
        bases = range(0, 4 * LANES * count, 4 * count)
        memory = Memory(rows.reshape(-1).view(np.uint8), 0, is_constant=True, bases=bases)
        state = State(buffers, {"x": memory})
        state.write(places, np.arange(count, dtype=np.float32))
        run(ops if is_exact else with_runs(ops), state)
        states.append(state.read(found).tobytes())
        states.append(buffers.raw("ub").tobytes())
    assert states[:2] == states[2:]
