"""Forms around the cube, element by element.

asc-devkit: LoadData_2D.md, LoadDataWithTranspose.md, LoadData_3D.md, GEMV.md, Nd2NzParams of
DataCopy（GMToL1随路转换-ND2NZ搬运）.md, Fixpipe（L0C到GM数据搬运）.md, 随路ReLU.md,
随路量化与随路ReLU场景组合.md.
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
from npusim.check.uninitialized.flow import FLOW
from npusim.check.uninitialized.marks import NOBODY, Marks
from npusim.data.dtypes import (
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    INT32,
    UINT8,
    DType,
    pack_int4,
    unpack_int4,
)
from npusim.kernel.program import Program
from npusim.timing.cost import charge, cost
from npusim.values.buffers import Buffers
from npusim.values.semantics import Memory, State, run

SPEC = tiny_spec()
CORE = SPEC.cores["aic"]
C0 = {4: 64, 8: 32, 16: 16, 32: 8}


def local(buffer: str, dtype: DType, count: int, offset_bytes: int = 0) -> isa.Local:
    return isa.Local(buffer, offset_bytes, dtype, count)


def play(state: State, *ops: isa.MicroOp) -> None:
    check(Program("cube", ops), Place(SPEC, "aic"))
    run(ops, state)


def refused(op: isa.MicroOp, text: str, spec: Any = SPEC, kind: str = "aic") -> None:
    with pytest.raises(RuleError) as caught:
        check(Program("cube", (op,)), Place(spec, kind))
    assert str(caught.value) == f"cube #0: {op}: {text}"


def state_of(**memories: np.ndarray) -> State:
    found = {name: Memory(data.reshape(-1).view(np.uint8)) for name, data in memories.items()}
    return State(Buffers(CORE, byte_exact=True), found)


def numbers(dtype: DType, count: int, seed: int = 1) -> np.ndarray:
    found = np.random.default_rng(seed).integers(-8, 8, count)
    return found.astype(np.int8 if dtype is INT4 else dtype.numpy)


def put(state: State, where: isa.Local, values: np.ndarray) -> None:
    data = pack_int4(values) if where.dtype is INT4 else values
    raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    state.buffers.raw(where.buffer)[where.offset_bytes :][: raw.size] = raw


def elements(raw: np.ndarray, dtype: DType) -> np.ndarray:
    return unpack_int4(raw) if dtype is INT4 else raw.view(dtype.numpy)


# ---- fractals ----


def turned(square: list[np.ndarray], dtype: DType) -> list[np.ndarray]:
    """The fractals `(16, C0)` of a square, turned: next to each other where they are narrow."""
    axis = 1 if dtype.bits == 32 else 0
    whole = np.concatenate(square, axis=axis).T
    return np.split(whole, len(square), axis=axis)


@pytest.mark.parametrize("dtype", [INT4, INT8, FLOAT16, FLOAT32])
@pytest.mark.parametrize("transpose", [False, True])
@draws(30)
@given(
    repeats=st.integers(1, 3),
    src_stride=st.integers(0, 2),
    gap=st.integers(0, 2),
    inner_gap=st.integers(0, 2),
)
def test_fractals_are_copied_and_squares_turned(
    dtype: DType, transpose: bool, repeats: int, src_stride: int, gap: int, inner_gap: int
) -> None:
    inner = {4: 4, 8: 2, 32: 2}.get(dtype.bits, 1) if transpose else 1
    dst_stride, inner_stride = gap + 1 + (inner - 1) * (inner_gap + 1), inner_gap + 1
    width, fractal = C0[dtype.bits], 16 * C0[dtype.bits]
    src = local("l1", dtype, ((repeats - 1) * src_stride + 1) * inner * fractal, 64)
    last = (repeats - 1) * dst_stride + (inner - 1) * inner_stride
    dst = local("l0b", dtype, (last + 1) * fractal, 512)
    strides = src_stride, dst_stride, transpose, inner_stride
    op = isa.LoadFractals(dst, src, repeats, *strides)
    state = state_of()
    values = numbers(dtype, src.count)
    put(state, src, values)
    expected = state.buffers.raw("l0b").copy()
    told = set()
    for number in range(repeats):
        first = number * src_stride * inner
        square = [
            values[(first + n) * fractal :][:fractal].reshape(16, width) for n in range(inner)
        ]
        for n, piece in enumerate(turned(square, dtype) if transpose else square):
            flat = np.ascontiguousarray(piece).reshape(-1)
            raw = pack_int4(flat) if dtype is INT4 else flat.view(np.uint8)
            at = dst.offset_bytes + 512 * (number * dst_stride + n * inner_stride)
            expected[at : at + 512] = raw
            told |= set(range(at, at + 512))
    play(state, op)
    np.testing.assert_array_equal(state.buffers.raw("l0b"), expected)
    marks = Marks(CORE, np.uint8)
    for area in areas.read(op):
        marks.write(area)
    FLOW[isa.LoadFractals](op, marks)
    assert set(np.flatnonzero(marks.bytes["l0b"] != NOBODY).tolist()) == told
    (area,) = areas.written(op)
    starts, ends = areas.edges(area.shape) if area.shape else ([0], [area.end - area.start])
    touched = {area.start + x for a, b in zip(starts, ends, strict=True) for x in range(a, b)}
    assert touched == told


def test_fractals_that_the_chip_cannot_turn_are_refused() -> None:
    op = isa.LoadFractals(local("l0a", INT4, 4096), local("l1", INT4, 4096), 1, transpose=True)
    refused(op, "int4 must not be turned on its way to l0a on arch 2201; turn it before")
    twice = isa.LoadFractals(local("l0a", INT8, 512), local("l1", INT8, 1024), 2, dst_stride=0)
    refused(
        twice,
        "each fractal must have its own place, not 2 times 1 every 0 and 1; raise the strides",
    )


def test_fractals_take_as_long_as_their_bytes() -> None:
    op = isa.LoadFractals(
        local("l0b", FLOAT32, 1024), local("l1", FLOAT32, 512), 2, 0, 2, transpose=True
    )
    path = CORE.paths["l1_to_l0b"]
    assert cost(op, SPEC, CORE).body == path.startup_cycles + -(-4 * 512 // path.bytes_per_cycle)


# ---- images ----


def columns_of(op: isa.LoadImage, image: np.ndarray) -> np.ndarray:
    """The piece `(m, k)` by the words of the page: a window that slides over (c1, h, w, c0)."""
    wide = image.shape[3]
    rows = []
    for y in range(op.positions[0]):
        for x in range(op.positions[1]):
            row = []
            for block in image:
                for fh in range(op.filter_height):
                    for fw in range(op.filter_width):
                        at_y = y * op.stride_height + fh * op.dilation_height - op.pad_top
                        at_x = x * op.stride_width + fw * op.dilation_width - op.pad_left
                        is_in = 0 <= at_y < op.height and 0 <= at_x < op.width
                        row += list(block[at_y, at_x] if is_in else [op.pad_value] * wide)
            rows.append(row)
    whole = np.array(rows, image.dtype)
    return whole[op.m_start :, op.k_start :][: op.m, : op.k]


def zz(matrix: np.ndarray, height: int, width: int) -> np.ndarray:
    """Fractals of *height* x *width*, row by row, each row by row; -1 at the edges."""
    rows, columns = (-(-x // y) * y for x, y in zip(matrix.shape, (height, width), strict=True))
    whole = np.full((rows, columns), -1, matrix.dtype)
    whole[: matrix.shape[0], : matrix.shape[1]] = matrix
    return np.concatenate(
        [
            whole[y : y + height, x : x + width].reshape(-1)
            for y in range(0, rows, height)
            for x in range(0, columns, width)
        ]
    )


@pytest.mark.parametrize("buffer", ["l0a", "turned", "l0b"])
@draws(40)
@given(
    filter_size=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    data=st.data(),
)
def test_the_columns_of_an_image(
    buffer: str, filter_size: Any, stride: Any, dilation: Any, pads: Any, data: st.DataObject
) -> None:
    height, width, channels = 5, 6, 32
    src = local("l1", FLOAT16, channels * height * width)
    where = "l0b" if buffer == "l0b" else "l0a"
    image = (height, width, channels)
    probe = isa.LoadImage(
        local(where, FLOAT16, 256), src, *image, 1, 1, 0, 0, buffer == "turned",
        *filter_size, *stride, *dilation, *pads, 7.0,
    )  # fmt: skip
    most_m = probe.positions[0] * probe.positions[1]
    m_start = data.draw(st.integers(0, most_m - 1))
    m = data.draw(st.integers(1, min(40, most_m - m_start)))
    blocks = channels // 16 * filter_size[0] * filter_size[1]
    k_start = 16 * data.draw(st.integers(0, blocks - 1))
    k = data.draw(st.integers(1, min(40, 16 * blocks - k_start)))
    is_turned = buffer == "turned"
    shape = (k, m) if is_turned else (m, k)
    count = int(np.prod([-(-size // 16) * 16 for size in shape]))
    op = isa.LoadImage(
        local(where, FLOAT16, count, 512), src, *image, m, k, m_start, k_start, is_turned,
        *filter_size, *stride, *dilation, *pads, 7.0,
    )  # fmt: skip
    state = state_of()
    values = np.arange(src.count).astype(np.float16)
    put(state, src, values)
    play(state, op)
    piece = columns_of(op, values.reshape(channels // 16, height, width, 16))
    # Zn is Zz of fractals whose elements go down.
    expected = zz(piece.T, 16, 16) if is_turned else zz(piece, 16, 16)
    if buffer == "l0b":
        blocks_of = expected.reshape(-1, 16, 16).swapaxes(1, 2)
        expected = blocks_of.reshape(-1)
    found = state.buffers.raw("l0a" if where == "l0a" else "l0b")[512:][: 2 * count]
    is_real = expected >= 0
    np.testing.assert_array_equal(found.view(np.float16)[is_real], expected[is_real])


def test_an_element_of_an_image_is_in_every_window_over_it() -> None:
    src = local("l1", FLOAT16, 16 * 12)
    op = isa.LoadImage(
        local("l0a", FLOAT16, 16 * 64), src, 3, 4, 16, 6, 64, 0, 0, False, 2, 2, pad_value=1.0
    )
    marks = Marks(CORE, np.uint8)
    (area,) = areas.read(op)
    marks.write(area)
    # The pixel in the middle: row 1, column 1, channel 3.
    marks.put(src.at(16 * 5 + 3, 1), np.array([NOBODY], np.uint8))
    FLOW[isa.LoadImage](op, marks)
    found = marks.elements(op.dst).reshape(4, 16, 16)[:, :6]
    hits = [(position, point) for point, position, _ in np.argwhere(found == NOBODY).tolist()]
    assert sorted(hits) == [(0, 3), (1, 2), (3, 1), (4, 0)]


def test_a_piece_beyond_the_image_is_refused() -> None:
    src = local("l1", FLOAT16, 16 * 20)
    op = isa.LoadImage(local("l0a", FLOAT16, 512), src, 4, 5, 16, 20, 16, 1)
    refused(
        op,
        "the piece must lie within 4 x 5 positions of the window and 16 elements in it, from a "
        "multiple of 16 on as channels are one, and src be the image, not [1:+20, 0:+16] of 320 "
        "elements; cut it so",
    )


# ---- rows ----


@pytest.mark.parametrize(("dst_rows", "row_stride"), [(5, 1), (17, 3), (1, 3), (16, 1)])
def test_rows_become_nz_of_any_strides(dst_rows: int, row_stride: int) -> None:
    matrix = numbers(FLOAT16, 5 * 40).reshape(5, 40)
    last = (3 - 1) * dst_rows + 4 * row_stride
    dst = local("l1", FLOAT16, (last + 1) * 16, 32)
    op = isa.LoadNd2Nz(dst, isa.Global("x", 0, 80, 5, 80), dst_rows, row_stride)
    state = state_of(x=matrix)
    expected = state.buffers.raw("l1").copy()
    for row in range(5):
        for block in range(3):
            at = 32 + 32 * (block * dst_rows + row * row_stride)
            piece = np.zeros(16, np.float16)
            columns = matrix[row, 16 * block :][:16]
            piece[: columns.size] = columns
            expected[at : at + 32] = piece.view(np.uint8)
    play(state, op)
    np.testing.assert_array_equal(state.buffers.raw("l1"), expected)
    assert op.footprint.end_bytes == 32 + 32 * (last + 1)


def test_rows_that_meet_are_refused() -> None:
    op = isa.LoadNd2Nz(local("l1", FLOAT16, 512), isa.Global("x", 0, 64, 3, 64), 2, 2)
    refused(
        op,
        "rows must be filled and each of their blocks have its own place, not 3 rows of 64 bytes "
        "every 2 in 2; raise dst_rows",
    )


# ---- products ----


@pytest.mark.parametrize("dtype", [FLOAT16, INT8])
def test_one_row_lies_element_by_element(dtype: DType) -> None:
    k, n, width = 2 * 16 * C0[dtype.bits], 32, C0[dtype.bits]
    sums = INT32 if dtype is INT8 else FLOAT32
    a, b = numbers(dtype, k), numbers(dtype, k * n, 2).reshape(k, n)
    fractals = b.reshape(k // width, width, n // 16, 16).transpose(0, 2, 3, 1)
    ops = isa.Mmad(
        local("l0c", sums, 16 * n), local("l0a", dtype, k), local("l0b", dtype, k * n), 1, n, k,
        gemv=True,
    )  # fmt: skip
    state = state_of()
    put(state, ops.a, a)
    put(state, ops.b, fractals)
    play(state, ops)
    raw = state.buffers.raw("l0c")[: 64 * n].view(sums.numpy).reshape(n // 16, 16, 16)
    expected = a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(raw[:, 0].reshape(-1), expected)
    refused(
        isa.Mmad(local("l0c", sums, 32 * n), ops.a, ops.b, 2, n, k, gemv=True),
        "gemv must be of one row on arch 2201, not of 2 on arch 2201; take a matrix",
    )


# ---- results ----


def l0c_of(matrix: np.ndarray) -> np.ndarray:
    """*matrix* as Nz of fractals of 16 x 16."""
    rows, columns = matrix.shape
    return matrix.reshape(rows, columns // 16, 16).swapaxes(0, 1).reshape(-1)


def scale_word(scale: float, offset: int = 0, signed: bool = True) -> int:
    bits = int(np.float32(scale).view(np.uint32)) >> 13 << 13
    return bits | (offset % 512) << 37 | signed << 46


@pytest.mark.parametrize(
    ("mode", "src", "dtype", "layout"),
    [
        ("none", FLOAT32, FLOAT32, "nd"),
        ("none", FLOAT32, FLOAT32, "nz"),
        ("none", FLOAT32, FLOAT32, "split"),
        ("cast", FLOAT32, FLOAT16, "nd"),
        ("cast", FLOAT32, FLOAT16, "nz"),
        ("deqf16", INT32, FLOAT16, "nz"),
        ("req8", INT32, UINT8, "nd"),
        ("req8", INT32, UINT8, "nz"),
        ("qf322b8", FLOAT32, INT8, "nz"),
    ],
)
@pytest.mark.parametrize("relu", [False, True])
def test_results_go_out_as_rows_or_columns_of_fractals(
    mode: Any, src: DType, dtype: DType, layout: str, relu: bool
) -> None:
    m, n = 20, 64
    values = (np.random.default_rng(3).normal(0, 60, (32, n))).astype(src.numpy)
    offset = -7 if dtype is not UINT8 else 5
    scale = scale_word(-0.5, offset, dtype is INT8) if mode not in ("none", "cast") else None
    wide = 8 if layout == "split" else max(16, 32 // (dtype.bits // 8))
    size = dtype.bits // 8
    dst = isa.Global("y", 0, n * size, m, n * size + 32)
    if layout != "nd":
        dst = isa.Global("y", 0, m * wide * size, n // wide, m * wide * size + 64)
    op = isa.Fixpipe(
        dst, local("l0c", src, 32 * n), m, n, 32, dtype, mode, scale, relu=relu,
        layout="nd" if layout == "nd" else "nz", channel_split=layout == "split",
    )  # fmt: skip
    y = np.full(dst.end_bytes, 77, np.uint8)
    state = state_of(y=y)
    put(state, op.src, l0c_of(values))
    play(state, op)
    expected = np.full(dst.end_bytes, 77, np.uint8)
    for row in range(m):
        for column in range(n):
            value: Any = values[row, column]
            value = value if value > 0 or not relu else type(value)(0)
            if scale is not None:
                value = np.float32(value) * np.float32(-0.5)
            if dtype.bits == 8:
                limits = np.iinfo(dtype.numpy)
                nine = min(max(round(float(value)), -256), 255) + offset
                value = min(max(nine, limits.min), limits.max)
            at = row * dst.stride_bytes + column * size
            if layout != "nd":
                block, inside = divmod(column, wide)
                at = block * dst.stride_bytes + (row * wide + inside) * size
            data = np.array([value]).astype(dtype.numpy).view(np.uint8)
            expected[at : at + size] = data
    np.testing.assert_array_equal(y, expected)
    assert charge(op, 0, SPEC).nbytes >= m * n * size


def test_nz_of_no_whole_fractals_is_refused() -> None:
    op = isa.Fixpipe(
        isa.Global("y", 0, 512, 1, 512), local("l0c", INT32, 768), 16, 48, 16, INT8, "req8", 1,
        layout="nz",
    )  # fmt: skip
    refused(
        op,
        "Nz must go to global memory, in fractals of 32 columns that n is a multiple of, those of "
        "float32 alone split, not 48 of int8 to gm; use nd, or pad n",
    )
