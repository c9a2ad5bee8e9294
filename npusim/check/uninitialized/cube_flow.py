"""How marks pass through the micro-ops around the cube, see ``flow``.

Usually all elements involved are written. Then the result is too, and its bytes in the buffer are
known for its shape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from npusim.check.uninitialized.marks import NOBODY, WRITTEN, Array, Marks, Sink
from npusim.data.dtypes import INT4, INT8, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import (
    FRACTAL_BYTES,
    FRACTAL_ROWS,
    NZ,
    ZN,
    ZZ,
    c0,
    from_fractals,
    to_fractals,
)
from npusim.isa import (
    BLOCK_BYTES,
    BroadcastToL0c,
    CopyL0c,
    Fixpipe,
    Global,
    LoadData,
    LoadFractals,
    LoadImage,
    Local,
    Mmad,
    turned_squares,
)

__all__ = [
    "SQUARE",
    "broadcast_to_l0c",
    "copy_l0c",
    "fixpipe",
    "load_data",
    "load_fractals",
    "load_image",
    "mmad",
]

SQUARE = (FRACTAL_ROWS, FRACTAL_ROWS)


def _elements_of(raw: Array, dtype: DType) -> Array:
    """`(..., bytes)` as `(..., elements)`."""
    if dtype is INT4:
        return np.repeat(raw, 2, axis=-1)
    width = dtype.bits // 8
    # Byte by byte: numpy takes ten times as long for the maximum of two in a row.
    found = raw[..., ::width].copy()
    for byte in range(1, width):
        found = np.maximum(found, raw[..., byte::width])
    return found


def _bytes_of(marks: Array, dtype: DType) -> Array:
    """The reverse, for one axis."""
    if dtype is INT4:
        found: Array = marks.reshape(-1, 2).max(axis=1)
        return found
    return np.repeat(marks, dtype.bits // 8)


def _padded(matrix: Array, fractal: tuple[int, int]) -> Array:
    """*matrix* padded to whole fractals, with unwritten edges."""
    rows, columns = matrix.shape
    whole = align_up(rows, fractal[0]), align_up(columns, fractal[1])
    if whole == matrix.shape:
        return matrix
    padded = np.full(whole, NOBODY, matrix.dtype)
    padded[:rows, :columns] = matrix
    return padded


def _put_raw(local: Local, raw: Array, marks: Marks) -> None:
    """Store *raw* as the marks of the first bytes of *local*."""
    start = local.offset_bytes
    view = marks.bytes[local.buffer][start : start + raw.size]
    marks.put_bytes(local.buffer, view, raw)


def _put_written(
    local: Local, raw: Callable[..., Array], shaped: tuple[Any, ...], marks: Marks
) -> None:
    """Store `raw(*shaped)` as the marks of the first bytes of *local*, unless they are there."""
    known, fact = marks.known[local.buffer], (raw, shaped, local.offset_bytes)
    if fact not in known:
        _put_raw(local, raw(*shaped), marks)
        known.add(fact)


def _nz(local: Local, first_block: int, nz_rows: int, size: tuple[int, int], marks: Marks) -> Array:
    """A matrix of *size* in Nz of *nz_rows* rows, its blocks 32 bytes (in L0C 16 elements) wide."""
    rows, columns = size
    width = FRACTAL_ROWS if local.buffer == "l0c" else c0(local.dtype)
    row_bytes = local.dtype.nbytes(width)
    blocks = ceil_div(columns, width)
    offset = local.offset_bytes + first_block * row_bytes
    where = local.buffer, offset, rows * row_bytes, blocks, nz_rows * row_bytes
    # (blocks, rows, bytes) -> (rows, blocks x elements)
    raw = marks.rows(*where).reshape(blocks, rows, row_bytes)
    elements = _elements_of(raw, local.dtype).swapaxes(0, 1)
    return elements.reshape(rows, -1)[:, :columns]


def _nz_is_written(
    local: Local, first_block: int, nz_rows: int, size: tuple[int, int], marks: Marks
) -> bool:
    """Whether all elements of such a matrix are WRITTEN."""
    known = marks.known[local.buffer]
    fact = local.offset_bytes, local.dtype, first_block, nz_rows, size
    if fact not in known and _has_no_marks(local, first_block, nz_rows, size, marks):
        known.add(fact)
    return fact in known


def _has_no_marks(
    local: Local, first_block: int, nz_rows: int, size: tuple[int, int], marks: Marks
) -> bool:
    rows, columns = size
    width = FRACTAL_ROWS if local.buffer == "l0c" else c0(local.dtype)
    row_bytes = local.dtype.nbytes(width)
    blocks, left = divmod(columns, width)
    offset = local.offset_bytes + first_block * row_bytes
    block_bytes = nz_rows * row_bytes
    whole = marks.rows(local.buffer, offset, rows * row_bytes, blocks, block_bytes)
    if not left:
        return not whole.any()
    where = local.buffer, offset + blocks * block_bytes, local.dtype.nbytes(left), rows, row_bytes
    return not whole.any() and not marks.rows(*where).any()


def load_data(op: LoadData, marks: Marks) -> Sink:
    """Loads a tile, transposed or not."""
    first = op.column // c0(op.src.dtype) * op.src_rows + op.row
    where = op.src, first, op.src_rows, (op.rows, op.columns), marks
    is_turned = op.transpose is (op.dst.buffer == "l0a")
    if _nz_is_written(*where):
        shape = (op.columns, op.rows) if is_turned else (op.rows, op.columns)
        _put_written(op.dst, _raw_l0, (op.dst.buffer, op.dst.dtype, shape), marks)
        return None
    piece = _nz(*where)
    _put_raw(op.dst, _as_l0(op.dst.buffer, op.dst.dtype, piece.T if is_turned else piece), marks)
    return None


def load_fractals(op: LoadFractals, marks: Marks) -> Sink:
    """Loads fractals, transposed or not."""
    nbytes = op.inner * FRACTAL_BYTES
    where = op.src.buffer, op.src.offset_bytes, nbytes, op.repeats
    found = marks.rows(*where, op.src_stride * nbytes).copy()
    if op.transpose:
        squares = _elements_of(found, op.src.dtype)
        turned = turned_squares(squares.reshape(op.repeats, op.inner, FRACTAL_ROWS, -1))
        found = _bytes_of(turned.reshape(-1), op.src.dtype).reshape(found.shape)
    for number in range(op.inner):
        first = op.dst.offset_bytes + number * op.inner_stride * FRACTAL_BYTES
        size = FRACTAL_BYTES, op.repeats, op.dst_stride * FRACTAL_BYTES
        part = found[:, number * FRACTAL_BYTES :][:, :FRACTAL_BYTES]
        marks.put_bytes(op.dst.buffer, marks.rows(op.dst.buffer, first, *size), part)
    return None


def load_image(op: LoadImage, marks: Marks) -> Sink:
    """Loads the elements in the window; padding counts as written."""
    found = np.append(marks.elements(op.src), WRITTEN)[op.elements]
    turned = found.T if op.dst.buffer == "l0a" and op.transpose else found
    _put_raw(op.dst, _as_l0(op.dst.buffer, op.dst.dtype, turned), marks)
    return None


def _as_l0(buffer: str, dtype: DType, matrix: Array) -> Array:
    """*matrix* as bytes in L0A or L0B."""
    fractal, layout = _l0(buffer, dtype)
    return _bytes_of(to_fractals(_padded(matrix, fractal), layout, fractal).reshape(-1), dtype)


@lru_cache(maxsize=1024)
def _raw_l0(buffer: str, dtype: DType, shape: tuple[int, int]) -> Array:
    """The bytes of a matrix of *shape* that is WRITTEN."""
    return _as_l0(buffer, dtype, np.full(shape, WRITTEN, np.uint8))


def _l0(buffer: str, dtype: DType) -> tuple[tuple[int, int], Any]:
    width = c0(dtype)
    if buffer == "l0a":
        return (FRACTAL_ROWS, width), ZZ
    return (width, FRACTAL_ROWS), ZN


def _factor(local: Local, shape: tuple[int, int], marks: Marks) -> Array:
    """The matrix of *shape* at the start of *local*, in L0A or L0B."""
    fractal, layout = _l0(local.buffer, local.dtype)
    fractals = layout.array_shape(*shape, fractal)
    nbytes = local.dtype.nbytes(int(np.prod(fractals)))
    raw = marks.bytes[local.buffer][local.offset_bytes : local.offset_bytes + nbytes]
    return from_fractals(_elements_of(raw, local.dtype).reshape(fractals), layout, shape)


def _factor_is_written(local: Local, shape: tuple[int, int], marks: Marks) -> bool:
    """Whether all elements of that matrix are WRITTEN."""
    known, fact = marks.known[local.buffer], (local.offset_bytes, local.dtype, shape)
    if fact not in known and _is_no_more(local, shape, marks):
        known.add(fact)
    return fact in known


def _is_no_more(local: Local, shape: tuple[int, int], marks: Marks) -> bool:
    padding = _raw_l0(local.buffer, local.dtype, shape)
    raw = marks.bytes[local.buffer][local.offset_bytes : local.offset_bytes + padding.size]
    # Marks that exceed those of a written matrix.
    return not np.greater(raw, padding).any() if raw.dtype == np.uint8 else False


def mmad(op: Mmad, marks: Marks) -> Sink:
    """An element of a product depends on a row, a column, and the element it is added to."""
    size = op.m, op.n
    before = op.dst, 0, align_up(op.m, FRACTAL_ROWS), size, marks
    if (
        not op.gemv
        and _factor_is_written(op.a, (op.m, op.k), marks)
        and _factor_is_written(op.b, (op.k, op.n), marks)
        and (op.init != "accumulate" or _nz_is_written(*before))
        and (op.init == "accumulate" or op.bias is None or not _bias(op, marks).any())
    ):
        _put_written(op.dst, _raw_product, (op.dst.dtype, size), marks)
        return None
    if op.gemv:
        rows = marks.elements(op.a.at(0, op.k)).max().reshape(1, 1)
    else:
        rows = _factor(op.a, (op.m, op.k), marks).max(axis=1, keepdims=True)
    columns = _factor(op.b, (op.k, op.n), marks).max(axis=0, keepdims=True)
    total = np.maximum(rows, columns)
    if op.init == "accumulate":
        total = np.maximum(total, _nz(*before))
    elif op.bias is not None:
        total = np.maximum(total, _bias(op, marks))
    _put_raw(op.dst, _as_product(op.dst.dtype, total), marks)
    return None


def _bias(op: Mmad, marks: Marks) -> Array:
    assert op.bias is not None
    return marks.elements(op.bias)[: op.n]


def _as_product(dtype: DType, total: Array) -> Array:
    """*total* as bytes in L0C."""
    return _bytes_of(to_fractals(_padded(total, SQUARE), NZ, SQUARE).reshape(-1), dtype)


@lru_cache(maxsize=1024)
def _raw_product(dtype: DType, shape: tuple[int, int]) -> Array:
    """The bytes of a product of *shape* that is WRITTEN."""
    return _as_product(dtype, np.full(shape, WRITTEN, np.uint8))


def _of_scale(scale: Local | int | None, count: int, marks: Marks) -> Array | int:
    if not isinstance(scale, Local):
        return WRITTEN
    return marks.elements(scale)[:count]


def fixpipe(op: Fixpipe, marks: Marks) -> Sink:
    """The product without the padding of its fractals."""
    product = op.src, 0, op.src_rows, (op.m, op.n), marks
    scale = _of_scale(op.scale, op.n, marks)
    if isinstance(op.dst, Global) and not np.any(scale) and _nz_is_written(*product):
        return None
    values = np.maximum(_nz(*product), scale)
    if isinstance(op.dst, Global):
        if op.layout == "nd":
            return values
        columns = values.reshape(op.m, -1, op.fractal_columns)
        return np.asarray(columns.swapaxes(0, 1).reshape(columns.shape[1], -1))
    width = c0(op.dtype)
    blocks = ceil_div(op.n, width)
    # Columns are padded with zeros: (m, blocks x width) -> (blocks, m, width) -> bytes
    whole = np.zeros((op.m, blocks * width), values.dtype)
    whole[:, : op.n] = values
    raw = _bytes_of(whole.reshape(op.m, blocks, width).swapaxes(0, 1).reshape(-1), op.dtype)
    where = op.dst.buffer, op.dst.offset_bytes, op.m * BLOCK_BYTES, blocks
    view = marks.rows(*where, op.dst_rows * BLOCK_BYTES)
    marks.put_bytes(op.dst.buffer, view, raw.reshape(view.shape))
    return None


def copy_l0c(op: CopyL0c, marks: Marks) -> Sink:
    """The same on chips without a fixpipe for L0C."""
    # Blocks of 16 columns, one after the other: (blocks, rows, 16).
    values = marks.elements(op.src).reshape(-1, op.rows, FRACTAL_ROWS)
    scale = _of_scale(op.scale, values.shape[0] * FRACTAL_ROWS, marks)
    if isinstance(scale, np.ndarray) and scale.size > 1:
        scale = scale.reshape(-1, 1, FRACTAL_ROWS)
    values = np.maximum(values, scale)
    if op.dst.dtype is INT8:
        # Two blocks of 16 columns form one of 32; the last one may lack its second half.
        if values.shape[0] % 2:
            values = np.concatenate([values, np.zeros_like(values[:1])])
        marks.put(op.dst, values.reshape(-1, 2, op.rows, FRACTAL_ROWS).swapaxes(1, 2).reshape(-1))
        return None
    marks.put(op.dst, values.reshape(-1))
    return None


def broadcast_to_l0c(op: BroadcastToL0c, marks: Marks) -> Sink:
    """Copies a row to all rows."""
    row = marks.elements(op.src).reshape(-1, 1, FRACTAL_ROWS)
    marks.put(op.dst, np.repeat(row, op.rows, axis=1).reshape(-1))
    return None
