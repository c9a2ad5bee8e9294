"""Holding matrices is invisible: the bytes are those of a core that never holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cube import CubeBench, nd2nz
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_spec

from npusim import isa
from npusim.check.rules import Place, check
from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, INT32, UINT8, DType
from npusim.data.integers import align_up
from npusim.data.layout import c0
from npusim.kernel.program import Program
from npusim.values import matrices

SPEC = tiny_spec()
OPERANDS = (FLOAT16, BFLOAT16, INT8, INT4)
X_BYTES, Y_BYTES = 4096, 8192
BUFFERS = ("l1", "l0a", "l0b", "l0c", "bt")


def sums(dtype: DType) -> DType:
    return INT32 if dtype in (INT8, INT4) else FLOAT32


# ---- micro-ops that are right, on places that overlap ----

EXTENTS = st.sampled_from([16, 16, 32, 7, 17, 40])
OFFSETS = st.sampled_from([0, 0, 0, 512, 1024])
ROOM = st.sampled_from([0, 0, 16])
NAMES = st.sampled_from(["x", "y"])
Types = tuple[DType, ...]


@st.composite
def loads(draw: st.DrawFn, dtypes: Types) -> isa.MicroOp:
    burst, bursts = 2 * draw(EXTENTS), draw(EXTENTS)
    stride = burst + draw(st.sampled_from([0, 2, 16]))
    src = isa.Global(draw(NAMES), 16 * draw(st.integers(0, 8)), burst, bursts, stride)
    offset = draw(OFFSETS)
    if draw(st.sampled_from([True, False, False, False])):
        return isa.Load(isa.Local("l1", offset, UINT8, burst), src, align_up(burst, 32))
    rows = align_up(bursts, 16) + draw(ROOM)
    return isa.LoadNd2Nz(isa.Local("l1", offset, draw(st.sampled_from(dtypes)), 1), src, rows)


@st.composite
def pieces(draw: st.DrawFn, dtypes: Types) -> isa.MicroOp:
    dtype = draw(st.sampled_from(dtypes))
    width, turn = c0(dtype), draw(st.booleans())
    step = max(width, 16) if turn else 16
    row, column = step * draw(st.integers(0, 1)), width * draw(st.integers(0, 1))
    rows, columns = draw(EXTENTS), draw(EXTENTS)
    src_rows = align_up(row + rows, 16) + draw(ROOM)
    src = isa.Local("l1", draw(OFFSETS), dtype, 1)
    count = (
        align_up(rows, width) * align_up(columns, 16)
        if turn
        else align_up(rows, 16) * align_up(columns, width)
    )
    buffer = draw(st.sampled_from(["l0a", "l0b"]))
    dst = isa.Local(buffer, draw(OFFSETS), dtype, count)
    return isa.LoadData(dst, src, src_rows, row, column, rows, columns, turn)


@st.composite
def products(draw: st.DrawFn, dtypes: Types) -> isa.MicroOp:
    dtype = draw(st.sampled_from(dtypes))
    m, n, k = draw(EXTENTS), draw(EXTENTS), draw(EXTENTS)
    deep = align_up(k, c0(dtype))
    a = isa.Local("l0a", draw(OFFSETS), dtype, align_up(m, 16) * deep)
    b = isa.Local("l0b", draw(OFFSETS), dtype, deep * align_up(n, 16))
    total = sums(dtype)
    dst = isa.Local(
        "l0c", 1024 * draw(st.sampled_from([0, 0, 1])), total, align_up(m, 16) * align_up(n, 16)
    )
    init = draw(st.sampled_from(["zero", "bias", "accumulate", "accumulate"]))
    bias = isa.Local("bt", 0, total, n) if init == "bias" else None
    return isa.Mmad(dst, a, b, m, n, k, init, bias)  # type: ignore[arg-type]


@st.composite
def drains(draw: st.DrawFn, dtypes: Types) -> isa.MicroOp:
    m, n = draw(EXTENTS), draw(EXTENTS)
    src_rows = align_up(m, 16) + draw(ROOM)
    total = sums(draw(st.sampled_from(dtypes)))
    modes = {FLOAT32: ["none", "cast", "qf322b8"], INT32: ["none", "deqf16", "req8"]}
    mode = draw(st.sampled_from(modes[total]))
    out = {"none": total, "cast": BFLOAT16, "deqf16": FLOAT16}.get(mode, INT8)
    scale = 0x4000_3F80_0000 if mode in ("deqf16", "req8", "qf322b8") else None
    src = isa.Local("l0c", 1024 * draw(st.sampled_from([0, 0, 1])), total, 1)
    if out is not total and draw(st.booleans()):
        dst = isa.Local("l1", draw(OFFSETS), out, 1)
        return isa.Fixpipe(dst, src, m, n, src_rows, out, mode, scale, align_up(m, 16))  # type: ignore[arg-type]
    burst = out.nbytes(n)
    place = isa.Global("y", 8 * draw(st.integers(0, 8)), burst, m, burst)
    return isa.Fixpipe(place, src, m, n, src_rows, out, mode, scale)  # type: ignore[arg-type]


@st.composite
def tables(draw: st.DrawFn) -> isa.MicroOp:
    dtype = draw(st.sampled_from([FLOAT16, FLOAT32, INT32]))
    wide = FLOAT32 if dtype is FLOAT16 else dtype
    return isa.LoadTable(isa.Local("bt", 0, wide, 64), isa.Local("l1", draw(OFFSETS), dtype, 64))


def naming_all(op: isa.MicroOp) -> isa.MicroOp:
    """*op* with operands that name all that it touches."""
    for role in op.roles:
        operand = getattr(op, role.operand)
        if role.touched is not None and isinstance(operand, isa.Local):
            touched = getattr(op, role.touched)
            if isinstance(touched, isa.Local):
                count = (touched.end_bytes - operand.offset_bytes) * 8 // operand.dtype.bits
                named = replace(operand, count=max(operand.count, count))
                op = replace(op, **{role.operand: named})  # type: ignore[type-var]
    return op


def sequences(dtypes: Types) -> st.SearchStrategy[list[isa.MicroOp]]:
    kinds = [make(dtypes) for make in (loads, pieces, pieces, products, products, drains)]
    return st.lists(st.one_of(*kinds, tables()).map(naming_all), max_size=14)


TYPES: list[Types] = [*((dtype,) for dtype in OPERANDS), OPERANDS]
OPS = st.sampled_from(TYPES).flatmap(sequences)


def noise(rng: np.random.Generator, nbytes: int, is_tame: bool) -> np.ndarray:
    """Random bytes; tame ones are no inf, no NaN and nothing large as fp16, bf16 or fp32."""
    data = rng.integers(0, 256, nbytes, np.uint8)
    data[1::2] &= 0xBF if is_tame else 0xFF
    return data


def bench(byte_exact: bool, seed: int, is_tame: bool) -> CubeBench:
    """Memory and buffers full of noise, the same for the same *seed*."""
    rng = np.random.default_rng(seed)
    made = CubeBench(SPEC, byte_exact, x=noise(rng, X_BYTES, is_tame))
    made.bind("y", noise(rng, Y_BYTES, is_tame), is_constant=False)
    for buffer in BUFFERS:
        made.raw(buffer)[:] = noise(rng, made.raw(buffer).size, is_tame)
    return made


def same(held: CubeBench, byte_exact: CubeBench) -> None:
    for buffer in BUFFERS:
        np.testing.assert_array_equal(held.raw(buffer), byte_exact.raw(buffer), buffer)
    for name in ("x", "y"):
        data = (made.state.memories[name].data for made in (held, byte_exact))
        np.testing.assert_array_equal(*data, name)


@draws(200)
@given(ops=OPS, seed=st.integers(0, 3), is_tame=st.booleans())
def test_holding_is_invisible(ops: list[isa.MicroOp], seed: int, is_tame: bool) -> None:
    check(Program("any", tuple(ops)), Place(SPEC, "aic"))
    held, byte_exact = bench(False, seed, is_tame), bench(True, seed, is_tame)
    held.run(*ops)
    byte_exact.run(*ops)
    same(held, byte_exact)


def both(*ops: isa.MicroOp, **tensors: np.ndarray) -> list[CubeBench]:
    """The same on a core that holds and on one that does not, found to be the same."""
    made = [bench(byte_exact, 1, is_tame=True) for byte_exact in (False, True)]
    for one in made:
        for name, data in tensors.items():
            one.bind(name, data)
        one.run(*ops)
    same(*made)
    return made


# ---- what may replace what without being written first ----

TABLE = np.arange(1, 1 + 16 * 64, dtype=np.float16).reshape(16, 64)
L1 = isa.Local("l1", 0, FLOAT16, 1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Taller, wider, and of other rows than what comes after it.
        (((16, 32), 16), ((8, 32), 16)),
        (((16, 48), 16), ((16, 32), 16)),
        (((16, 16), 16), ((8, 32), 16)),
        (((16, 32), 48), ((16, 32), 16)),
        (((16, 32), 16), ((16, 32), 48)),
        (((8, 20), 16), ((16, 40), 16)),
    ],
)
def test_what_a_new_matrix_leaves_of_an_old_one_stays(
    before: tuple[tuple[int, int], int], after: tuple[tuple[int, int], int]
) -> None:
    both(nd2nz(L1, "t", *before), nd2nz(L1, "u", *after), t=TABLE, u=-TABLE)


def test_rows_below_a_new_matrix_are_those_of_the_old_one() -> None:
    for made in both(nd2nz(L1, "t", (16, 16), 16), nd2nz(L1, "u", (8, 16), 16), t=TABLE, u=-TABLE):
        gm_matrix = made.raw("l1", 0, 512).view(np.float16)
        expected = np.concatenate([-TABLE.reshape(-1)[:128], TABLE.reshape(-1)[128:256]])
        np.testing.assert_array_equal(gm_matrix, expected)


def test_small_matrices_stay_where_a_large_one_does_not_reach() -> None:
    piece = isa.LoadData(isa.Local("l0a", 0, FLOAT16, 256), L1, 16, 0, 0, 16, 16)
    other = isa.Local("l0a", 512, FLOAT16, 256)
    both(
        nd2nz(L1, "t", (16, 64), 16),
        *(
            piece,
            isa.LoadData(other, L1, 16, 0, 16, 16, 16),
            isa.LoadData(other, L1, 16, 0, 32, 8, 16),
        ),
        isa.LoadData(isa.Local("l0a", 0, FLOAT16, 512), L1, 16, 0, 16, 8, 32),
        t=TABLE,
    )


def test_what_a_small_matrix_leaves_of_a_large_one_stays() -> None:
    a, b, c = operands(FLOAT16)
    both(
        nd2nz(L1, "t", (16, 64), 16),
        *(isa.LoadData(dst, L1, 16, 0, 0, 16, 32) for dst in (a, b)),
        isa.Mmad(c, a, b, 16, 16, 32),
        isa.Mmad(isa.Local("l0c", 0, FLOAT32, 512), a, b, 16, 32, 16),
        isa.Mmad(c, a, b, 16, 16, 16),
        *(isa.LoadData(dst, L1, 16, 0, 0, 16, 16) for dst in (a, b)),
        t=TABLE,
    )


# ---- sums ----


def operands(dtype: DType) -> tuple[isa.Local, isa.Local, isa.Local]:
    return (
        isa.Local("l0a", 0, dtype, 512),
        isa.Local("l0b", 0, dtype, 512),
        isa.Local("l0c", 0, sums(dtype), 256),
    )


def filled(a: int, b: int) -> tuple[isa.MicroOp, ...]:
    """L0A and L0B full of one int8 each."""
    left, right, _ = operands(INT8)
    return (
        nd2nz(isa.Local("l1", 0, INT8, 1), f"i{a}", (16, 32), 16),
        nd2nz(isa.Local("l1", 512, INT8, 1), f"i{b}", (16, 32), 16),
        isa.LoadData(left, isa.Local("l1", 0, INT8, 1), 16, 0, 0, 16, 32),
        isa.LoadData(right, isa.Local("l1", 512, INT8, 1), 16, 0, 0, 16, 32),
    )


def test_every_micro_op_saturates_on_its_own() -> None:
    a, b, c = operands(INT8)
    bias = isa.Local("bt", 0, INT32, 16)
    steps = (
        isa.LoadTable(bias, isa.Local("l1", 4096, INT32, 16)),
        *filled(127, 127),
        isa.Mmad(c, a, b, 16, 16, 32, "bias", bias),
        *filled(-127, 127),
        isa.Mmad(c, a, b, 16, 16, 32, "accumulate"),
    )
    start = np.full(16, 2**31 - 1000, np.int32)
    tensors = {f"i{x}": np.full((16, 32), x, np.int8) for x in (127, -127)}
    load = isa.Load(isa.Local("l1", 4096, UINT8, 64), isa.Global("bias", 0, 64))
    held, byte_exact = both(load, *steps, bias=start, **tensors)
    # Not 2^31 - 1000: what went beyond the range is lost.
    expected = 2**31 - 1 - 32 * 127 * 127
    for made in (held, byte_exact):
        assert set(made.elements(c).tolist()) == {expected}


def test_sums_far_from_the_range_are_those_of_one_product() -> None:
    a, b, c = operands(INT8)
    mmads = (isa.Mmad(c, a, b, 16, 16, 32, "accumulate") for _ in range(3))
    tensors = {f"i{x}": np.full((16, 32), x, np.int8) for x in (127, -128)}
    held, _ = both(*filled(-128, 127), isa.Mmad(c, a, b, 16, 16, 32), *mmads, **tensors)
    assert set(held.elements(c).tolist()) == {4 * 32 * -128 * 127}


def test_a_sum_is_taken_up_again_as_another_type() -> None:
    halves, bytes_ = operands(FLOAT16), operands(INT8)
    load = nd2nz(L1, "t", (16, 64), 16)
    both(
        load,
        isa.LoadData(halves[0], L1, 16, 0, 0, 16, 16),
        isa.LoadData(halves[1], L1, 16, 0, 0, 16, 16),
        isa.Mmad(halves[2], halves[0], halves[1], 16, 16, 16),
        isa.Mmad(bytes_[2], bytes_[0], bytes_[1], 16, 16, 16, "accumulate"),
        isa.Fixpipe(isa.Global("y", 0, 64, 16, 64), halves[2], 16, 16, 16, FLOAT32),
        t=TABLE,
    )


# ---- panels ----


@pytest.mark.parametrize("limit", [0, 5000, matrices.PANEL_BYTES])
def test_panels_may_be_forgotten_at_any_time(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Both operands are used again and again, a piece at a time.
    monkeypatch.setattr(matrices, "PANEL_BYTES", limit)
    rng = np.random.default_rng(5)
    x, w = rng.integers(-128, 128, (2, 48, 64), np.int8)
    made = CubeBench(SPEC, False, x=x, w=w)
    made.bind("y", np.zeros((48, 48), np.int32), is_constant=False)
    a, b, c = operands(INT8)
    for row, column in np.ndindex(3, 3):
        for step in range(2):
            for dst, name, place in ((a, "x", row), (b, "w", column)):
                src = isa.Global(name, 16 * place * 64 + 32 * step, 32, 16, 64)
                l1 = isa.Local("l1", 1024 if dst is b else 0, INT8, 1)
                made.run(isa.LoadNd2Nz(l1, src, 16), isa.LoadData(dst, l1, 16, 0, 0, 16, 32))
            made.run(isa.Mmad(c, a, b, 16, 16, 32, "accumulate" if step else "zero"))
        out = isa.Global("y", (16 * row * 48 + 16 * column) * 4, 64, 16, 192)
        made.run(isa.Fixpipe(out, c, 16, 16, 16, INT32))
    expected = x.astype(np.int64) @ w.T.astype(np.int64)
    found = made.state.memories["y"].data.view(np.int32).reshape(48, 48)
    np.testing.assert_array_equal(found, expected)


def test_a_panel_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    panels = matrices.Panels()
    data = np.arange(64, dtype=np.int8).reshape(2, 4, 8)
    first, second = (matrices.Factor(matrix, matrices.address_of(matrix)) for matrix in data)
    kept = panels.single(first)
    np.testing.assert_array_equal(kept, data[0].astype(np.float32), strict=True)
    assert panels.single(first) is kept
    assert panels.single(matrices.Factor(data[0])) is not kept
    monkeypatch.setattr(matrices, "PANEL_BYTES", 2 * kept.nbytes - 1)
    panels.single(second)
    assert panels.single(first) is not kept


def test_what_ran_over_the_end_of_memory_is_no_panel() -> None:
    # Its window is a copy, and the next one may lie where it lay.
    for byte_exact in (False, True):
        x = np.full(504, 3, np.int8)
        made = CubeBench(SPEC, byte_exact, x=x)
        made.run(nd2nz(isa.Local("l1", 0, INT8, 1), "x", (16, 32), 16))
        tile = made.state.buffers.tile("l1", 0)
        assert byte_exact or (isinstance(tile, matrices.L1Tile) and not tile.address)
        made.bind("whole", np.zeros(512, np.int8))
        made.run(nd2nz(isa.Local("l1", 0, INT8, 1), "whole", (16, 32), 16))
        tile = made.state.buffers.tile("l1", 0)
        assert byte_exact or (isinstance(tile, matrices.L1Tile) and tile.address)
