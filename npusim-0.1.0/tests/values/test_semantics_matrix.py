"""What the micro-ops around the cube compute, against bytes placed one element after the other."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from cube import UNWRITTEN, CubeBench, nd2nz, placed, stored

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, INT4, INT8, INT32, UINT8, UINT64, DType
from npusim.data.integers import align_up
from npusim.data.layout import NZ, ZN, ZZ, c0
from npusim.data.product import float_product
from npusim.devices.schema import DeviceSpec
from npusim.isa import (
    BroadcastToL0c,
    CopyL0c,
    CopyToL1,
    Fixpipe,
    Global,
    LoadData,
    LoadNd2Nz,
    LoadTable,
    Local,
    Mmad,
)
from npusim.values.buffers import OutOfBufferError

OPERANDS = (FLOAT16, BFLOAT16, INT8, INT4)
SQUARE = (16, 16)


@pytest.fixture(params=[False, True], ids=["held", "byte_exact"])
def cube(request: pytest.FixtureRequest, tiny: DeviceSpec) -> CubeBench:
    return CubeBench(tiny, request.param)


@pytest.fixture(params=[False, True], ids=["held", "byte_exact"])
def coupled(request: pytest.FixtureRequest, tiny_2002: DeviceSpec) -> CubeBench:
    return CubeBench(tiny_2002, request.param, "ai_core")


def l1(offset_bytes: int, dtype: DType, count: int = 1) -> Local:
    return Local("l1", offset_bytes, dtype, count)


def numbers(rng: np.random.Generator, dtype: DType, *shape: int) -> np.ndarray:
    """Small integers, of which every sum is exact."""
    kept = np.dtype(np.int8) if dtype is INT4 else dtype.numpy
    return rng.integers(-8, 8, shape).astype(kept)


def sums(dtype: DType) -> DType:
    return INT32 if dtype in (INT8, INT4) else FLOAT32


# ---- into L1 ----


@pytest.mark.parametrize("dtype", OPERANDS, ids=str)
def test_rows_become_nz(cube: CubeBench, dtype: DType, rng: np.random.Generator) -> None:
    matrix = numbers(rng, dtype, 20, 70)
    cube.bind("x", stored(matrix, dtype))
    cube.run(nd2nz(l1(64, dtype), "x", (20, 70), 48))
    across = -(-70 // c0(dtype))
    gm_matrix = cube.raw("l1", 64, across * 48 * 32).reshape(across, 48, 32)
    whole = placed(matrix, dtype, NZ, (16, c0(dtype)), 0).reshape(across, 32, 32)
    np.testing.assert_array_equal(gm_matrix[:, :20], whole[:, :20])
    # Columns are filled up with zeros; rows below the last one are nobody's.
    assert (gm_matrix[:, 20:] == UNWRITTEN).all()
    assert (cube.raw("l1", 0, 64) == UNWRITTEN).all()
    assert (cube.raw("l1", 64 + gm_matrix.size, 512) == UNWRITTEN).all()


def test_rows_are_picked_by_their_stride(cube: CubeBench) -> None:
    table = np.arange(120, dtype=np.float16).reshape(6, 20)
    cube.bind("x", table)
    cube.run(LoadNd2Nz(l1(0, FLOAT16), Global("x", 2 * 23, 34, 2, 80), 16))
    gm_matrix = cube.raw("l1", 0, 2 * 512).view(np.float16).reshape(2, 16, 16)
    np.testing.assert_array_equal(gm_matrix[0, :2], table[[1, 3], 3:19])
    np.testing.assert_array_equal(gm_matrix[1, :2, 0], table[[1, 3], 19])
    assert (gm_matrix[1, :2, 1:] == 0).all()


def test_rows_may_run_over_the_end_by_one_block_and_find_zeros(cube: CubeBench) -> None:
    cube.bind("x", np.full(40, 7, np.int8))
    cube.run(LoadNd2Nz(l1(0, INT8), Global("x", 0, 32, 2, 32), 16))
    assert cube.raw("l1", 0, 64).tolist() == [7] * 40 + [0] * 24


def test_a_matrix_beyond_its_buffer_is_refused(cube: CubeBench, tiny: DeviceSpec) -> None:
    size = tiny.cores["aic"].l1_bytes
    assert size is not None
    cube.bind("x", np.zeros(1024, np.int8))
    message = (
        f"buffers: bytes [{size - 512}:{size + 512}] must lie within {size} bytes of l1; "
        f"use a smaller tile"
    )
    with pytest.raises(OutOfBufferError, match=f"^{re.escape(message)}$"):
        cube.run(nd2nz(l1(size - 512, INT8), "x", (16, 64), 16))


def test_pieces_go_from_the_unified_buffer_to_l1(coupled: CubeBench) -> None:
    data = np.arange(4 * 96, dtype=np.uint16).astype(np.uint8)
    coupled.put("ub", 32, data)
    coupled.run(CopyToL1(l1(128, UINT8), Local("ub", 32, UINT8, 1), 64, 4, 96, 160))
    gm_matrix = coupled.raw("l1", 128, 4 * 160).reshape(4, 160)
    np.testing.assert_array_equal(gm_matrix[:, :64], data.reshape(4, 96)[:, :64])
    assert (gm_matrix[:, 64:] == UNWRITTEN).all()


# ---- into L0 ----


def in_l1(cube: CubeBench, matrix: np.ndarray, dtype: DType) -> None:
    """The whole *matrix* as Nz from byte 0 of L1 on."""
    cube.bind("w", stored(matrix, dtype))
    cube.run(nd2nz(l1(0, dtype), "w", matrix.shape, align_up(matrix.shape[0], 16)))  # type: ignore[arg-type]


@pytest.mark.parametrize("known", ["matrix", "bytes"])
@pytest.mark.parametrize("turn", [False, True], ids=["straight", "turned"])
@pytest.mark.parametrize("buffer", ["l0a", "l0b"])
@pytest.mark.parametrize("dtype", OPERANDS, ids=str)
def test_a_piece_becomes_the_fractals_of_its_side(
    cube: CubeBench, dtype: DType, buffer: str, turn: bool, known: str, rng: np.random.Generator
) -> None:
    width = c0(dtype)
    matrix = numbers(rng, dtype, 128, 3 * width)
    in_l1(cube, matrix, dtype)
    if known == "bytes":
        cube.raw("l1")
    row, column, rows, columns = 64, width, 40, width + 6
    dst = Local(buffer, 512, dtype, 1)
    cube.run(LoadData(dst, l1(0, dtype), 128, row, column, rows, columns, turn))
    piece = matrix[row : row + rows, column : column + columns]
    if buffer == "l0a":
        # (m, k) as Zz, turned from (k, m).
        expected = placed(piece.T if turn else piece, dtype, ZZ, (16, width), UNWRITTEN)
    else:
        # (k, n) as Zn: its columns lie in L1 as rows unless it is turned.
        expected = placed(piece if turn else piece.T, dtype, ZN, (width, 16), UNWRITTEN)
    np.testing.assert_array_equal(cube.raw(buffer, 512, expected.size), expected)
    assert (cube.raw(buffer, 0, 512) == UNWRITTEN).all()
    assert (cube.raw(buffer, 512 + expected.size, 512) == UNWRITTEN).all()


def test_what_lies_beside_a_piece_is_not_taken_along(cube: CubeBench) -> None:
    matrix = np.ones((32, 32), np.float16)
    in_l1(cube, matrix, FLOAT16)
    cube.put("l0a", 0, np.zeros(512, np.float16))
    cube.run(LoadData(Local("l0a", 0, FLOAT16, 256), l1(0, FLOAT16), 32, 0, 0, 5, 7))
    fractal = cube.raw("l0a", 0, 512).view(np.float16).reshape(16, 16)
    assert (fractal[:5, :7] == 1).all()
    edges = np.concatenate([fractal[5:].reshape(-1), fractal[:5, 7:].reshape(-1)])
    assert (edges.view(np.uint8) == UNWRITTEN).all()
    assert (cube.raw("l0a", 512, 512) == 0).all()


@pytest.mark.parametrize(("rows", "columns"), [(16, 20), (10, 48)], ids=["below", "beside"])
def test_a_piece_takes_what_lies_behind(cube: CubeBench, rows: int, columns: int) -> None:
    cube.put("l1", 0, np.full(1024, 5, np.float16))
    matrix = np.arange(10 * 20, dtype=np.float16).reshape(10, 20)
    cube.bind("w", matrix)
    cube.run(nd2nz(l1(0, FLOAT16), "w", (10, 20), 16))
    cube.run(LoadData(Local("l0a", 0, FLOAT16, 1024), l1(0, FLOAT16), 16, 0, 0, rows, columns))
    expected = np.full((16, 48), 5, np.float16)
    expected[:10, :32] = 0
    expected[:10, :20] = matrix
    side = placed(expected[:rows, :columns], FLOAT16, ZZ, SQUARE, UNWRITTEN)
    np.testing.assert_array_equal(cube.raw("l0a", 0, side.size), side)


@pytest.mark.parametrize(
    ("src", "dst"), [(FLOAT16, FLOAT32), (FLOAT32, FLOAT32), (INT32, INT32)], ids=str
)
def test_a_bias_is_as_wide_as_the_sums(cube: CubeBench, src: DType, dst: DType) -> None:
    values = (np.arange(24) - 5).astype(src.numpy)
    cube.put("l1", 32, values)
    cube.run(LoadTable(Local("bt", 64, dst, 24), l1(32, src, 24)))
    expected = values.astype(dst.numpy).view(np.uint8)
    np.testing.assert_array_equal(cube.raw("bt", 64, 96), expected)
    assert (cube.raw("bt", 0, 64) == UNWRITTEN).all()
    assert (cube.raw("bt", 160, 64) == UNWRITTEN).all()


def test_parameters_come_to_the_fixpipe_as_they_are(cube: CubeBench) -> None:
    values = np.arange(16, dtype=np.uint64) << 40
    cube.put("l1", 0, values)
    cube.run(LoadTable(Local("fb", 128, UINT64, 16), l1(0, UINT64, 16)))
    np.testing.assert_array_equal(cube.raw("fb", 128, 128).view(np.uint64), values)


# ---- the product ----

PRODUCTS = [
    (16, 16, 64, "zero"), (1, 1, 1, "zero"), (20, 40, 70, "bias"), (33, 15, 100, "bias"),
    (1, 1, 1, "accumulate"), (33, 15, 100, "accumulate"),
]  # fmt: skip
"""m, n, k and how the sum begins: whole fractals, one element, and tails everywhere."""


def fill_l0(cube: CubeBench, a: np.ndarray, b: np.ndarray, dtype: DType) -> tuple[Local, Local]:
    """*a* `(m, k)` in L0A and *b* `(k, n)` in L0B, both by way of L1."""
    k = a.shape[1]
    places = []
    for buffer, rows in (("l0a", a), ("l0b", np.ascontiguousarray(b.T))):
        even = np.zeros((rows.shape[0], align_up(k, 2)), rows.dtype)
        even[:, :k] = rows
        in_l1(cube, even, dtype)
        place = Local(buffer, 1024, dtype, align_up(rows.shape[0], 16) * align_up(k, c0(dtype)))
        cube.run(LoadData(place, l1(0, dtype), align_up(len(rows), 16), 0, 0, len(rows), k))
        places.append(place)
    return places[0], places[1]


@pytest.mark.parametrize(("m", "n", "k", "init"), PRODUCTS)
@pytest.mark.parametrize("dtype", OPERANDS, ids=str)
def test_the_product_lies_in_l0c_as_nz(
    cube: CubeBench, dtype: DType, m: int, n: int, k: int, init: Any, rng: np.random.Generator
) -> None:
    a, b = numbers(rng, dtype, m, k), numbers(rng, dtype, k, n)
    left, right = fill_l0(cube, a, b, dtype)
    total = sums(dtype)
    dst = Local("l0c", 1024, total, align_up(m, 16) * align_up(n, 16))
    start = np.zeros((m, n))
    bias = None
    if init == "bias":
        # The table may be longer than n.
        row = rng.integers(-99, 99, n + 8).astype(total.numpy)
        cube.put("bt", 64, row)
        bias, start = Local("bt", 64, total, n + 8), row[:n].astype(np.float64)
    if init == "accumulate":
        start = rng.integers(-99, 99, (m, n)).astype(np.float64)
        cube.put("l0c", 1024, placed(start.astype(total.numpy), total, NZ, SQUARE, UNWRITTEN))
    cube.run(Mmad(dst, left, right, m, n, k, init, bias))
    exact = start + a.astype(np.float64) @ b.astype(np.float64)
    expected = placed(exact.astype(total.numpy), total, NZ, SQUARE, 0)
    np.testing.assert_array_equal(cube.raw("l0c", 1024, expected.size), expected)
    assert (cube.raw("l0c", 0, 1024) == UNWRITTEN).all()
    assert (cube.raw("l0c", 1024 + expected.size, 1024) == UNWRITTEN).all()


@pytest.mark.parametrize("earlier", [(20, 32), (25, 16)])
def test_a_product_is_added_to_a_tile_of_another_size(
    cube: CubeBench, earlier: tuple[int, int], rng: np.random.Generator
) -> None:
    """Bytes of L0C are what it is added to, not the matrix that they were."""
    dst = Local("l0c", 0, INT32, 32 * 32)
    total = np.zeros((32, 32), np.int32)
    for (m, n), init in ((earlier, "zero"), ((20, 16), "accumulate")):
        a, b = numbers(rng, INT8, m, 64), numbers(rng, INT8, 64, n)
        cube.run(Mmad(dst, *fill_l0(cube, a, b, INT8), m, n, 64, init))
        total[:m, :n] += a.astype(np.int32) @ b.astype(np.int32)
    found = cube.elements(dst).reshape(2, 32, 16).transpose(1, 0, 2).reshape(32, 32)
    np.testing.assert_array_equal(found[:20, :16], total[:20, :16])


def test_products_of_one_sum_round_once(cube: CubeBench, rng: np.random.Generator) -> None:
    a, b = (rng.normal(size=shape).astype(np.float16) for shape in ((16, 64), (64, 16)))
    dst = Local("l0c", 0, FLOAT32, 256)
    for step in range(2):
        ks = slice(32 * step, 32 * step + 32)
        left, right = fill_l0(cube, a[:, ks], b[ks], FLOAT16)
        cube.run(Mmad(dst, left, right, 16, 16, 32, "accumulate" if step else "zero"))
    expected = float_product(a, b, np.zeros((), np.float32))
    np.testing.assert_array_equal(cube.elements(dst).reshape(16, 16), expected)


@pytest.mark.parametrize("order", ["k16", "k4"])
def test_the_order_of_the_cube_is_that_of_the_model(cube: CubeBench, order: Any) -> None:
    # 2^24, and twice four quarters: a block of 16 keeps both ones, blocks of 4 lose them.
    a = np.zeros((16, 16), np.float16)
    b = np.ones((16, 16), np.float16)
    a[0, 0], b[0, 0] = 4096, 4096
    a[0, 4:12] = 0.25
    cube.state.cube_order = order
    left, right = fill_l0(cube, a, b, FLOAT16)
    dst = Local("l0c", 0, FLOAT32, 256)
    cube.run(Mmad(dst, left, right, 16, 16, 16))
    expected = {"k16": 2.0**24 + 2, "k4": 2.0**24}[order]
    assert cube.elements(dst)[0] == expected


def test_k_beyond_what_was_loaded_finds_no_zeros(cube: CubeBench) -> None:
    ones = np.ones((16, 16), np.float16)
    fill_l0(cube, ones, ones, FLOAT16)
    left, right = (Local(buffer, 1024, FLOAT16, 512) for buffer in ("l0a", "l0b"))
    dst = Local("l0c", 0, FLOAT32, 256)
    cube.run(Mmad(dst, left, right, 16, 16, 32))
    nobody = np.full(2, UNWRITTEN, np.uint8).view(np.float16).astype(np.float64)
    assert set(cube.elements(dst).tolist()) == set((16 + 16 * nobody**2).astype(np.float32))


def test_k_beyond_a_piece_finds_no_zeros_in_its_last_fractal(cube: CubeBench) -> None:
    # In L1 lie zeros beside the piece, but nobody may count on them.
    ones = np.ones((16, 24), np.int8)
    fill_l0(cube, ones, ones.T, INT8)
    left, right = (Local(buffer, 1024, INT8, 512) for buffer in ("l0a", "l0b"))
    dst = Local("l0c", 0, INT32, 256)
    cube.run(Mmad(dst, left, right, 16, 16, 32))
    nobody = int(np.uint8(UNWRITTEN).astype(np.int8))
    assert set(cube.elements(dst).tolist()) == {24 + 8 * nobody**2}


def test_a_part_can_be_multiplied(cube: CubeBench, rng: np.random.Generator) -> None:
    a, b = numbers(rng, INT8, 40, 96), numbers(rng, INT8, 96, 48)
    left, right = fill_l0(cube, a, b, INT8)
    dst = Local("l0c", 0, INT32, 32 * 48)
    cube.run(Mmad(dst, left, right, 20, 40, 70))
    expected = a[:20, :70].astype(np.int32) @ b[:70, :40].astype(np.int32)
    found = cube.raw("l0c", 0, 32 * 48 * 4)
    np.testing.assert_array_equal(found, placed(expected, INT32, NZ, SQUARE, 0))


def test_another_width_than_what_was_loaded_mixes_fractals(cube: CubeBench) -> None:
    a = np.arange(32 * 32).reshape(32, 32).astype(np.float16) % 7
    eye = np.eye(16, dtype=np.float16)
    left, _ = fill_l0(cube, a, np.zeros((32, 16), np.float16), FLOAT16)
    cube.put("l0b", 0, eye)
    dst = Local("l0c", 0, FLOAT32, 512)
    cube.run(Mmad(dst, left, Local("l0b", 0, FLOAT16, 256), 32, 16, 16))
    # The second row of one fractal each is the second fractal of the first row.
    expected = np.concatenate([a[:16, :16], a[:16, 16:]]).astype(np.float32)
    np.testing.assert_array_equal(cube.elements(dst).reshape(32, 16), expected)


def test_fewer_columns_than_were_loaded_mix_fractals_too(cube: CubeBench) -> None:
    b = (np.arange(64 * 32).reshape(64, 32) % 5).astype(np.int8)
    left, _ = fill_l0(cube, np.eye(64, dtype=np.int8), b, INT8)
    dst = Local("l0c", 0, INT32, 64 * 16)
    cube.run(Mmad(dst, left, Local("l0b", 1024, INT8, 64 * 16), 64, 16, 64))
    # The second fractal of the first 32 rows comes in place of the first of the rows below.
    expected = np.concatenate([b[:32, :16], b[:32, 16:]]).astype(np.int32)
    np.testing.assert_array_equal(cube.elements(dst).reshape(64, 16), expected)


# ---- a wrong order of fractals ----


def product_of(cube: CubeBench, shape: tuple[int, int, int]) -> np.ndarray:
    m, n, k = shape
    dst = Local("l0c", 0, FLOAT32, m * n)
    left, right = Local("l0a", 0, FLOAT16, m * k), Local("l0b", 0, FLOAT16, k * n)
    cube.run(Mmad(dst, left, right, m, n, k))
    return cube.elements(dst).reshape(n // 16, m, 16).swapaxes(0, 1).reshape(m, n).copy()


@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
def test_wrong_rows_are_wrong(cube: CubeBench, right: bool, rng: np.random.Generator) -> None:
    a, b = numbers(rng, FLOAT16, 32, 32), numbers(rng, FLOAT16, 32, 32)
    cube.bind("a", a)
    cube.bind("b", b)
    cube.run(
        nd2nz(l1(0, FLOAT16), "a", (32, 32), 32),
        nd2nz(l1(4096, FLOAT16), "b", (32, 32), 32),
        LoadData(Local("l0b", 0, FLOAT16, 1024), l1(4096, FLOAT16), 32, 0, 0, 32, 32, True),
        LoadData(Local("l0a", 0, FLOAT16, 512), l1(0, FLOAT16), 32 if right else 16, 0, 0, 16, 32),
    )
    # With 16 rows the second column of fractals would begin where row 16 does.
    taken = a[:16] if right else np.concatenate([a[:16, :16], a[16:, :16]], 1)
    expected = taken.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(product_of(cube, (16, 32, 32)), expected)
    assert right is bool((expected == a[:16].astype(np.float32) @ b.astype(np.float32)).all())


# ---- out of L0C ----


def parameter(scale: float, offset: int = 0, is_signed: bool = True) -> int:
    bits = int(np.float32(scale).view(np.uint32))
    return bits | (offset & 0x1FF) << 37 | int(is_signed) << 46


def in_l0c(cube: CubeBench, matrix: np.ndarray, dtype: DType, known: str) -> Local:
    """*matrix* in L0C, put there as bytes or multiplied by one."""
    m, n = matrix.shape
    dst = Local("l0c", 0, dtype, align_up(m, 16) * align_up(n, 16))
    if known == "bytes":
        cube.put("l0c", 0, placed(matrix, dtype, NZ, SQUARE, UNWRITTEN))
        return dst
    factor = INT8 if dtype is INT32 else FLOAT16
    eye = np.eye(n, dtype=factor.numpy)
    left, right = fill_l0(cube, matrix.astype(factor.numpy), eye, factor)
    cube.run(Mmad(dst, left, right, m, n, n))
    return dst


KNOWN = pytest.mark.parametrize("known", ["sum", "bytes"])
MODES: list[tuple[DType, DType, Any, int | None]] = [
    (FLOAT32, FLOAT32, "none", None),
    (INT32, INT32, "none", None),
    (FLOAT32, FLOAT16, "cast", None),
    (FLOAT32, BFLOAT16, "cast", None),
    (INT32, FLOAT16, "deqf16", parameter(0.75)),
    (INT32, INT8, "req8", parameter(0.5, -3)),
    (FLOAT32, INT8, "qf322b8", parameter(0.5, 7)),
]


def converted(matrix: np.ndarray, mode: str, dtype: DType) -> np.ndarray:
    """The rules of MODES in float64, where nothing rounds."""
    wide = matrix.astype(np.float64)
    if mode == "deqf16":
        wide *= 0.75
    if mode in ("req8", "qf322b8"):
        wide = np.clip(np.rint(wide * 0.5) + (-3 if mode == "req8" else 7), -128, 127)
    return wide.astype(dtype.numpy)


@KNOWN
@pytest.mark.parametrize(("src", "out", "mode", "scale"), MODES, ids=str)
def test_l0c_goes_out_as_rows(
    *,
    cube: CubeBench,
    src: DType,
    out: DType,
    mode: Any,
    scale: int | None,
    known: str,
    rng: np.random.Generator,
) -> None:
    matrix = rng.integers(-128, 128, (36, 40)).astype(src.numpy)
    l0c = in_l0c(cube, matrix, src, known)
    y = np.full((36, 50), 9, np.uint8).astype(out.numpy)
    cube.bind("y", y, is_constant=False)
    # A part of it: the first rows and columns.
    size = out.nbytes(1)
    place = Global("y", 3 * size, 37 * size, 33, 50 * size)
    cube.run(Fixpipe(place, l0c, 33, 37, 48, out, mode, scale))
    expected = np.full((36, 50), 9, np.uint8).astype(out.numpy)
    expected[:33, 3:40] = converted(matrix[:33, :37], mode, out)
    np.testing.assert_array_equal(y, expected)


@KNOWN
@pytest.mark.parametrize(("src", "out", "mode", "scale"), MODES[2:], ids=str)
def test_l0c_goes_to_l1_as_nz(
    *,
    cube: CubeBench,
    src: DType,
    out: DType,
    mode: Any,
    scale: int | None,
    known: str,
    rng: np.random.Generator,
) -> None:
    matrix = rng.integers(-128, 128, (20, 40)).astype(src.numpy)
    l0c = in_l0c(cube, matrix, src, known)
    cube.put("l1", 0, np.full(1 << 14, UNWRITTEN, np.uint8))
    cube.run(Fixpipe(l1(512, out), l0c, 20, 40, 32, out, mode, scale, 48))
    across = -(-40 // c0(out))
    gm_matrix = cube.raw("l1", 512, across * 48 * 32).reshape(across, 48, 32)
    whole = placed(converted(matrix, mode, out), out, NZ, (16, c0(out)), 0)
    np.testing.assert_array_equal(gm_matrix[:, :20], whole.reshape(across, 32, 32)[:, :20])
    assert (gm_matrix[:, 20:] == UNWRITTEN).all()
    # And from there it is an operand like any other.
    cube.run(LoadData(Local("l0a", 0, out, 1), l1(512, out), 48, 0, 0, 20, 40))
    side = placed(converted(matrix, mode, out), out, ZZ, (16, c0(out)), UNWRITTEN)
    np.testing.assert_array_equal(cube.raw("l0a", 0, side.size), side)


@KNOWN
def test_each_column_has_its_own_parameter(cube: CubeBench, known: str) -> None:
    matrix = np.tile(np.int32([[10], [-4]]), (1, 20))
    l0c = in_l0c(cube, matrix, INT32, known)
    scales = np.uint64([parameter(2.0**-column, column) for column in range(20)])
    cube.put("fb", 64, scales)
    y = np.zeros((2, 20), np.int8)
    cube.bind("y", y, is_constant=False)
    table = Local("fb", 64, UINT64, 20)
    cube.run(Fixpipe(Global("y", 0, 20, 2, 20), l0c, 2, 20, 16, INT8, "req8", table))
    columns = np.arange(20)
    np.testing.assert_array_equal(y, np.rint(matrix * 2.0**-columns) + columns)


@KNOWN
@pytest.mark.parametrize(
    ("src", "out", "mode", "scale"), [MODES[0], MODES[1], MODES[2], MODES[3], MODES[4]], ids=str
)
def test_atomic_results_are_added_in_their_own_type(
    *, cube: CubeBench, src: DType, out: DType, mode: Any, scale: int | None, known: str
) -> None:
    matrix = np.arange(-64, 64).reshape(4, 32).astype(src.numpy)
    l0c = in_l0c(cube, matrix, src, known)
    before = (np.arange(128).reshape(4, 32) * 33).astype(out.numpy)
    y = before.copy()
    cube.bind("y", y, is_constant=False)
    size = out.nbytes(1)
    place = Global("y", 0, 32 * size, 4, 32 * size)
    cube.run(Fixpipe(place, l0c, 4, 32, 16, out, mode, scale, atomic=True))
    exact = before.astype(np.float64) + converted(matrix, mode, out).astype(np.float64)
    np.testing.assert_array_equal(y, exact.astype(out.numpy))


# ---- coupled cores ----

COPIES: list[tuple[DType, DType, Any, int | None]] = [
    MODES[0],
    MODES[1],
    MODES[2],
    MODES[4],
    MODES[5],
]


@pytest.mark.parametrize("columns", [32, 48])
@KNOWN
@pytest.mark.parametrize(("src", "out", "mode", "scale"), COPIES, ids=str)
def test_l0c_goes_to_the_unified_buffer_as_nz(
    *,
    coupled: CubeBench,
    src: DType,
    out: DType,
    mode: Any,
    scale: int | None,
    known: str,
    columns: int,
    rng: np.random.Generator,
) -> None:
    matrix = rng.integers(-128, 128, (32, columns)).astype(src.numpy)
    l0c = in_l0c(coupled, matrix, src, known)
    width = 32 if out is INT8 else 16
    expected = placed(converted(matrix, mode, out), out, NZ, (16, width), 0)
    count = expected.size // out.nbytes(1)
    coupled.run(CopyL0c(Local("ub", 64, out, count), l0c, mode, scale, 32))
    np.testing.assert_array_equal(coupled.raw("ub", 64, expected.size), expected)
    assert (coupled.raw("ub", 64 + expected.size, 64) == UNWRITTEN).all()


def test_each_column_of_a_copy_has_its_own_parameter(coupled: CubeBench) -> None:
    matrix = np.tile(np.int32([[10], [-4]]), (8, 32))
    l0c = in_l0c(coupled, matrix, INT32, "bytes")
    coupled.put("ub", 8192, np.uint64([parameter(2.0**-column) for column in range(32)]))
    dst = Local("ub", 0, FLOAT16, 512)
    coupled.run(CopyL0c(dst, l0c, "deqf16", Local("ub", 8192, UINT64, 32), 16))
    expected = (matrix * 2.0 ** -np.arange(32)).astype(np.float16)
    found = coupled.raw("ub", 0, 1024)
    np.testing.assert_array_equal(found, placed(expected, FLOAT16, NZ, SQUARE, 0))


@pytest.mark.parametrize("dtype", [FLOAT32, INT32], ids=str)
def test_a_vector_fills_every_row_of_l0c(coupled: CubeBench, dtype: DType) -> None:
    row = (np.arange(48) * 3 - 50).astype(dtype.numpy)
    coupled.put("ub", 32, row)
    dst = Local("l0c", 1024, dtype, 32 * 48)
    coupled.run(BroadcastToL0c(dst, Local("ub", 32, dtype, 48), 32))
    expected = placed(np.tile(row, (32, 1)), dtype, NZ, SQUARE, 0)
    np.testing.assert_array_equal(coupled.raw("l0c", 1024, expected.size), expected)
    assert (coupled.raw("l0c", 0, 1024) == UNWRITTEN).all()
