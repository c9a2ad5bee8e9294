"""Copies that pad, and copies that combine, against the documents' rules byte by byte.

asc-devkit, DataCopyPad（GMToUB非对齐数据搬运）.md, SetPadValue(ISASI).md, SetAtomicMax(ISASI).md,
原子操作类接口边界值汇总.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_spec

from npusim import isa
from npusim.check.hazards import areas
from npusim.check.rules import Place, RuleError, check
from npusim.check.uninitialized.flow import FLOW, fills
from npusim.check.uninitialized.marks import NOBODY, Marks
from npusim.data.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    DType,
)
from npusim.kernel.program import Program
from npusim.values.buffers import UNWRITTEN, Buffers
from npusim.values.semantics import Memory, State, run

SPEC = tiny_spec()
CORE = SPEC.cores["aiv"]


@st.composite
def loads(draw: st.DrawFn) -> isa.Load:
    dtype = draw(st.sampled_from((UINT8, FLOAT16, BFLOAT16, INT32, FLOAT32, INT64)))
    size = dtype.bits // 8
    side = st.integers(0, min(4, 32 // size))
    values = (None, 0) if size == 8 else (None, 0, 1, 7)
    padding = draw(st.none() | st.builds(isa.Padding, side, side, st.sampled_from(values)))
    burst, bursts = size * draw(st.integers(1, 20)), draw(st.integers(1, 4))
    src = isa.Global("x", 3, burst, bursts, burst + draw(st.integers(0, 5)))
    left, right = (padding.left, padding.right) if padding else (0, 0)
    row = -(-(burst + size * (left + right)) // 32) * 32
    pitch = row + 32 * draw(st.integers(0, 2)) if bursts > 1 else 0
    dst = isa.Local("ub", 64, dtype, ((bursts - 1) * pitch + row) // size)
    return isa.Load(dst, src, pitch, padding)


def expected_rows(op: isa.Load, data: np.ndarray) -> dict[int, bytes]:
    """Where each burst goes, and the bytes of it and its padding."""
    size = op.dst.dtype.bits // 8
    rows = {}
    for number in range(op.src.bursts):
        first = op.src.offset_bytes + number * op.src.stride_bytes
        burst = data[first : first + op.src.burst_bytes].tobytes()
        left = op.padding.left * size if op.padding else 0
        right = op.padding.right * size if op.padding else 0
        total = -(-(left + len(burst) + right) // 32) * 32
        if op.padding is None:
            element = bytes(size)
        elif not op.padding.left and not op.padding.right:
            element = burst[:size]
        elif op.padding.value is None:
            element = bytes([UNWRITTEN]) * size
        else:
            element = np.array([op.padding.value], op.dst.dtype.numpy).tobytes()
        behind = (total - left - len(burst)) // size
        rows[number * op.pitch_bytes] = left // size * element + burst + behind * element
    return rows


@draws(200)
@given(op=loads(), seed=st.integers(0, 9))
def test_a_burst_is_padded_to_both_sides(op: isa.Load, seed: int) -> None:
    check(Program("pads", (op,)), Place(SPEC, "aiv"))
    data = np.random.default_rng(seed).integers(0, 256, 4096).astype(np.uint8)
    buffers = Buffers(CORE, byte_exact=True)
    expected = buffers.raw("ub").copy()
    for at, row in expected_rows(op, data).items():
        expected[op.dst.offset_bytes + at :][: len(row)] = np.frombuffer(row, np.uint8)
    run([op], State(buffers, {"x": Memory(data)}))
    np.testing.assert_array_equal(buffers.raw("ub"), expected)


@draws(60)
@given(op=loads())
def test_a_load_writes_its_padding_and_knows_whether_anybody_wrote_it(op: isa.Load) -> None:
    rows = expected_rows(op, np.zeros(4096, np.uint8))
    told = {op.dst.offset_bytes + at + byte for at, row in rows.items() for byte in range(len(row))}
    marks = Marks(CORE, np.uint8)
    if fills(op):
        for area in areas.written(op):
            marks.write(area)
    else:
        FLOW[isa.Load](op, marks)
        told = {
            op.dst.offset_bytes + at + op.left_bytes + byte
            for at in rows
            for byte in range(op.src.burst_bytes)
        }
    assert set(np.flatnonzero(marks.bytes["ub"] != NOBODY).tolist()) == told


@pytest.mark.parametrize(
    ("padding", "dtype", "shown"),
    [
        (isa.Padding(17, 0, 0), FLOAT16, "padded with 17 and 0 of 0"),
        (isa.Padding(0, 1, 1), INT64, "padded with 0 and 1 of 1"),
        (isa.Padding(0, 1, 300), UINT8, "padded with 0 and 1 of 300"),
    ],
)
def test_padding_that_the_chip_lacks_is_refused(
    padding: isa.Padding, dtype: DType, shown: str
) -> None:
    op = isa.Load(
        isa.Local("ub", 0, dtype, 256 // dtype.bits * 4), isa.Global("x", 0, 32), 0, padding
    )
    with pytest.raises(RuleError) as caught:
        check(Program("pads", (op,)), Place(SPEC, "aiv"))
    assert str(caught.value) == (
        f"pads #0: {op}: padding must be at most 32 bytes to each side of whole elements of "
        f"{dtype.name}, of a number that it has, or of 0 where it has 64 bits, not {shown}, of "
        f"bursts of 32 bytes; change it"
    )


def test_310p_pads_nothing() -> None:
    op = isa.Load(isa.Local("ub", 0, FLOAT32, 16), isa.Global("x", 0, 32), 0, isa.Padding(1, 0, 0))
    with pytest.raises(RuleError) as caught:
        check(Program("pads", (op,)), Place(tiny_spec("2002"), "ai_core"))
    assert str(caught.value) == (
        f"pads #0: {op}: bursts must have no padding on arch 2002, not be padded with 1 and 0 of "
        f"0; fill it in with Duplicate"
    )


# ---- atomics ----


def combined(op: str, a: Any, b: Any) -> Any:
    """What stays of *a* and *b*: NaN before all, and of two zeros the one that is further."""
    if a != a or b != b:
        return a if a != a else b
    if a == b:
        is_below = bool(np.signbit(float(a)))
        return a if is_below is (op == "min") else b
    return max(a, b) if op == "max" else min(a, b)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16, INT32, INT16, INT8])
@pytest.mark.parametrize("op", ["max", "min"])
def test_the_larger_or_smaller_one_stays(op: Any, dtype: DType) -> None:
    rng = np.random.default_rng(7)
    if dtype.is_float:
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -3]
        there, values = (rng.choice(special, 160).astype(dtype.numpy) for _ in range(2))
    else:
        limits = np.iinfo(dtype.numpy)
        there, values = (
            rng.integers(limits.min, limits.max, 160, dtype.numpy, endpoint=True) for _ in range(2)
        )
    expected = np.array([combined(op, a, b) for a, b in zip(there, values, strict=True)])
    store = isa.Store(
        isa.Global("y", 0, there.nbytes), isa.Local("ub", 0, dtype, 160), 0, dtype, op
    )
    check(Program("keeps", (store,)), Place(SPEC, "aiv"))
    state = State(Buffers(CORE, byte_exact=True), {"y": Memory(there.view(np.uint8))})
    state.buffers.view(store.src)[:] = values
    run([store], state)
    found, expected = (x.astype(dtype.numpy).astype(np.float64) for x in (there, expected))
    np.testing.assert_array_equal(found, expected)
    nan = np.isnan(found)
    np.testing.assert_array_equal(np.signbit(found)[~nan], np.signbit(expected)[~nan])
