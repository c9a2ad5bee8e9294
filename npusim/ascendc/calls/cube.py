"""Calls of the cube: loads to L1, L0A and L0B, products, and copies out of L0C."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Literal

from npusim.ascendc.calls.copies import ATOMICS
from npusim.ascendc.calls.table import Chip, Table, buffer_of, local, place
from npusim.ascendc.errors import AscendCError
from npusim.ascendc.recording import GlobalOperand, LocalOperand, Number
from npusim.data.dtypes import INT4, INT8, UINT64, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_BYTES, FRACTAL_ROWS, c0
from npusim.isa import (
    BLOCK_BYTES,
    Barrier,
    CopyL0c,
    Fixpipe,
    Global,
    Load,
    LoadData,
    LoadFractals,
    LoadImage,
    LoadNd2Nz,
    LoadTable,
    Local,
    MicroOp,
    Mmad,
    QuantMode,
    SetFlag,
    WaitFlag,
)

__all__ = ["CALLS"]

STARTS: tuple[Literal["zero", "bias", "accumulate"], ...] = ("zero", "bias", "accumulate")
"""By the number of Start in cube.h."""
MODES: tuple[tuple[QuantMode, bool], ...] = (
    *(("none", False), ("cast", False), ("cast", False)),
    *(("deqf16", False), ("deqf16", True)),
    *(("qf322b8", False), ("qf322b8", True)),
    *(("req8", False), ("req8", True)),
)
"""By the number of QuantMode_t: the mode, and whether each column has a scale."""
SCALED = ("deqf16", "qf322b8", "req8")
FIRST, LAST = 7, 6
"""Events for unit flags, which need none on the chip: assumed to be unused in such kernels."""
MATRIX_BLOCKS = 1
"""BLOCK_MODE_MATRIX."""
L0C_MODES: tuple[QuantMode | None, ...] = ("none", "deqf16", None, "req8", None, "deqf16", None)
"""By the number of DeqScale, as far as npusim simulates them."""


def _nd2nz(
    _: Chip,
    dst: LocalOperand,
    _src: GlobalOperand,
    count: int,
    rows: int,
    columns: int,
    src_matrix_stride: int,
    src_row: int,
    dst_rows: int,
    row_stride: int,
    dst_matrix_stride: int,
) -> Iterator[MicroOp]:
    # Pairs of int4 count as one element here.
    dtype = INT8 if dst.dtype is INT4 else dst.dtype
    blocks = ceil_div(dtype.nbytes(columns), BLOCK_BYTES)
    nbytes = ((blocks - 1) * dst_rows + (rows - 1) * row_stride + 1) * BLOCK_BYTES
    for index in range(count):
        own = local(dst, nbytes * 8 // dtype.bits, dtype)
        own = replace(own, offset_bytes=own.offset_bytes + dtype.nbytes(index * dst_matrix_stride))
        burst = place(dtype.nbytes(columns), rows, dtype.nbytes(src_row))
        src = replace(burst, offset_bytes=dtype.nbytes(index * src_matrix_stride))
        yield LoadNd2Nz(own, src, dst_rows, row_stride)


def _load_fractals(
    _: Chip,
    dst: LocalOperand,
    src: LocalOperand | GlobalOperand,
    first: int,
    repeats: int,
    src_stride: int,
    dst_gap: int,
    is_turned: int,
    inner_gap: int,
) -> Iterator[MicroOp]:
    width = FRACTAL_BYTES * 8 // dst.dtype.bits
    reach = (repeats - 1) * (dst_gap + 1) + 1
    if isinstance(src, GlobalOperand):
        apart = src_stride * FRACTAL_BYTES
        gm = replace(place(FRACTAL_BYTES, repeats, apart), offset_bytes=first * FRACTAL_BYTES)
        pitch = (dst_gap + 1) * FRACTAL_BYTES if repeats > 1 else 0
        yield Load(local(dst, reach * width), gm, pitch)
        return
    strides = repeats, src_stride, dst_gap + 1, bool(is_turned), inner_gap + 1
    bare = LoadFractals(local(dst, width), local(src, width), *strides)
    start = src.address_bytes + first * bare.inner * FRACTAL_BYTES
    at = Local(buffer_of(src), start, src.dtype, bare.read.nbytes * 8 // src.dtype.bits)
    own = local(dst, bare.written.nbytes * 8 // dst.dtype.bits)
    yield LoadFractals(own, at, *strides)


def _load_matrix(
    _: Chip,
    dst: LocalOperand,
    src: LocalOperand,
    src_rows: int,
    row: int,
    column: int,
    rows: int,
    columns: int,
    is_turned: int,
) -> Iterator[MicroOp]:
    """A part of an Nz matrix that a Matmul loads to L0."""
    width = c0(src.dtype)
    high, wide = (width, FRACTAL_ROWS) if is_turned else (FRACTAL_ROWS, width)
    own = local(dst, align_up(rows, high) * align_up(columns, wide))
    matrix = local(src, src_rows * align_up(column + columns, width))
    yield LoadData(own, matrix, src_rows, row, column, rows, columns, bool(is_turned))


def _load_image(
    _: Chip,
    dst: LocalOperand,
    src: LocalOperand,
    height: int,
    width: int,
    channels: int,
    m: int,
    k: int,
    m_start: int,
    k_start: int,
    is_turned: int,
    filter_height: int,
    filter_width: int,
    stride_height: int,
    stride_width: int,
    dilation_height: int,
    dilation_width: int,
    left: int,
    right: int,
    top: int,
    bottom: int,
    value: Number,
) -> Iterator[MicroOp]:
    transpose = bool(is_turned) and buffer_of(dst) == "l0a"
    high, wide = FRACTAL_ROWS, c0(dst.dtype)
    rows, columns = (k, m) if transpose else (m, k)
    if buffer_of(dst) == "l0b":
        high, wide = wide, high
    own = local(dst, align_up(rows, high) * align_up(columns, wide))
    image = local(src, channels * height * width)
    piece = height, width, channels, m, k, m_start, k_start, transpose
    window = filter_height, filter_width, stride_height, stride_width
    yield LoadImage(
        own,
        image,
        *piece,
        *window,
        *(dilation_height, dilation_width),
        *(left, right, top, bottom),
        value.value,
    )


def _mmad(
    _: Chip,
    dst: LocalOperand,
    a: LocalOperand,
    b: LocalOperand,
    m: int,
    n: int,
    k: int,
    start: int,
    unit_flag: int,
    is_row: int,
    bias: LocalOperand | None = None,
) -> Iterator[MicroOp]:
    rows, columns = align_up(m, FRACTAL_ROWS), align_up(n, FRACTAL_ROWS)
    depth = align_up(k, c0(a.dtype))
    if unit_flag:
        # Without unit flags the cube would wait by a flag of this pair until L0C is copied out.
        yield SetFlag("fixpipe", "cube", FIRST)
        yield WaitFlag("fixpipe", "cube", FIRST)
    if unit_flag == 3:
        yield SetFlag("cube", "fixpipe", FIRST)
    yield Mmad(
        local(dst, rows * columns),
        local(a, depth if is_row else rows * depth),
        local(b, depth * columns),
        *(m, n, k),
        STARTS[start],
        None if bias is None else local(bias, n),
        unit_flag == 3,
        bool(is_row),
    )


def _fixpipe(
    _: Chip,
    dst: LocalOperand | GlobalOperand,
    src: LocalOperand,
    scales: LocalOperand | int,
    n: int,
    m: int,
    src_rows: int,
    dst_stride: int,
    mode_number: int,
    scale: int,
    relu: int,
    split: int,
    is_nd: int,
    unit_flag: int,
    is_handed_over: int,
    count: int,
    src_stride: int,
    nd_stride: int,
    atomic: int,
    _atomic_type: int,
) -> Iterator[MicroOp]:
    if mode_number >= len(MODES):
        raise AscendCError(
            f"Fixpipe: quantPre must be a mode of this chip, 0 to {len(MODES) - 1}, not "
            f"{mode_number}; use one of these"
        )
    mode, has_scales = MODES[mode_number]
    parameters: Local | int | None = scale % 2**64 if mode in SCALED else None
    if has_scales:
        parameters = yield from _scales(scales, n)
    first = bool(unit_flag and is_handed_over)
    if first:
        yield WaitFlag("cube", "fixpipe", FIRST)
    dtype = dst.dtype
    bare = Fixpipe(
        place(dtype.nbytes(n), m, dtype.nbytes(dst_stride)),
        local(src, src_rows * align_up(n, FRACTAL_ROWS)),
        *(m, n, src_rows, dtype, mode, parameters),
        atomic=bool(atomic),
        unit_flag=first,
        atomic_op=ATOMICS[max(atomic - 1, 0)],
        relu=bool(relu),
        layout="nd" if is_nd or isinstance(dst, LocalOperand) else "nz",
        channel_split=bool(split),
    )
    for index in range(count):
        offset = index * src_stride * FRACTAL_ROWS * FRACTAL_ROWS * src.dtype.bits // 8
        own = replace(bare.src, offset_bytes=bare.src.offset_bytes + offset)
        if isinstance(dst, LocalOperand):
            there = Local(buffer_of(dst), dst.address_bytes, dtype, _nz(dtype, m, n, dst_stride))
            yield replace(bare, src=own, dst=there, dst_rows=dst_stride)
        else:
            gm = replace(_bursts(bare, dst_stride), offset_bytes=dtype.nbytes(index * nd_stride))
            yield replace(bare, src=own, dst=gm)
    if first:
        yield SetFlag("cube", "fixpipe", LAST)
        yield WaitFlag("cube", "fixpipe", LAST)


def _scales(scales: LocalOperand | int, n: int) -> Generator[MicroOp, None, Local]:
    """The scales of *n* columns in the fixpipe buffer, and the copy that loads them from L1."""
    if not isinstance(scales, LocalOperand):
        raise AscendCError("Fixpipe: a scale a column must come in a tensor; pass one")
    table = local(scales, n, UINT64)
    if table.buffer != "l1":
        return table
    there = Local("fb", 0, UINT64, n)
    yield Barrier("fixpipe")
    yield LoadTable(there, table)
    yield Barrier("fixpipe")
    return there


def _nz(dtype: DType, m: int, n: int, rows: int) -> int:
    """The elements from the first to the last of `(m, n)` in L1, stored as Nz of *rows* rows."""
    return ((ceil_div(n, c0(dtype)) - 1) * rows + m) * c0(dtype)


def _bursts(op: Fixpipe, dst_stride: int) -> Global:
    if op.layout == "nd":
        return place(op.dtype.nbytes(op.n), op.m, op.dtype.nbytes(dst_stride))
    burst = op.dtype.nbytes(op.m * op.fractal_columns)
    return place(burst, ceil_div(op.n, op.fractal_columns), dst_stride * BLOCK_BYTES)


def _copy_l0c(
    _: Chip,
    dst: LocalOperand,
    src: LocalOperand,
    blocks: int,
    length: int,
    src_gap: int,
    dst_gap: int,
    block_mode: int,
    scaling: int,
    value: int,
    is_relu: int,
) -> Iterator[MicroOp]:
    mode = L0C_MODES[scaling]
    if block_mode != MATRIX_BLOCKS or mode is None or is_relu:
        raise AscendCError(
            "DataCopy: what leaves L0C must be of BLOCK_MODE_MATRIX, with one scale and without "
            "ReLU; compute the rest in the unified buffer"
        )
    if mode == "none" and src.dtype is not dst.dtype:
        mode = "cast"
    scale = value % 2**64 if mode in SCALED else None
    elements = length * FRACTAL_ROWS * FRACTAL_ROWS
    src_pitch = src.dtype.nbytes((length + src_gap) * FRACTAL_ROWS * FRACTAL_ROWS)
    dst_pitch = dst.dtype.nbytes(elements) + dst_gap * BLOCK_BYTES
    for index in range(blocks):
        own, there = local(src, elements), local(dst, elements)
        yield CopyL0c(
            replace(there, offset_bytes=there.offset_bytes + index * dst_pitch),
            replace(own, offset_bytes=own.offset_bytes + index * src_pitch),
            mode,
            scale,
            length * FRACTAL_ROWS,
        )


CALLS: Table = {
    "CopyL0c": _copy_l0c,
    "DataCopyNd2Nz": _nd2nz,
    "Fixpipe": _fixpipe,
    "LoadFractals": _load_fractals,
    "LoadImage": _load_image,
    "LoadMatrix": _load_matrix,
    "Mmad": _mmad,
}
