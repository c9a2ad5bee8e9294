"""How marks pass through each micro-op: which bytes of its result come of which it reads.

An element that comes of several takes the largest of their marks. Elements that take no part in a
result leave no mark in it: rows, columns and depths beyond those of a product, and what fills
fractals up. What a piece in L0A and L0B, or a product in L0C, does not fill of its fractals is as
if nobody had written it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from npusim.check.hazards import areas
from npusim.check.unwritten.marks import NOBODY, WRITTEN, Array, Marks
from npusim.data.dtypes import INT4, INT8, UINT8, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, NZ, ZN, ZZ, c0, from_fractals, to_fractals
from npusim.isa import (
    BLOCK_BYTES,
    MICRO_OPS,
    ORDERING,
    SORTED_AT_ONCE,
    Axpy,
    Binary,
    BinaryScalar,
    BlockReduce,
    Broadcast,
    BroadcastToL0c,
    Cast,
    Compare,
    CompareScalar,
    Copy,
    CopyL0c,
    CopyToL1,
    Duplicate,
    Fixpipe,
    Fold,
    Gather,
    GatherMask,
    Global,
    Load,
    LoadData,
    LoadNd2Nz,
    LoadTable,
    Local,
    MicroOp,
    Mmad,
    MrgSort,
    MulAddDst,
    Reduce,
    ScalarAlu,
    ScalarLoad,
    ScalarLoadGlobal,
    ScalarLoop,
    ScalarOp,
    ScalarStore,
    Select,
    Sort32,
    Store,
    Table,
    Transpose,
    Trap,
    Unary,
    WholeReduce,
)

__all__ = ["FLOW", "Sink", "fills"]

Sink = Array | None
"""The marks of what a micro-op lets out of its core; None if it lets nothing out."""
SQUARE = (FRACTAL_ROWS, FRACTAL_ROWS)


def fills(op: MicroOp) -> bool:
    """Whether *op* writes all of what it writes with what it reads, and nothing else."""
    match op:
        case LoadData():
            # Edges of fractals come from beyond the piece.
            return op.dst.count == op.rows * op.columns
        case Mmad():
            return op.m % FRACTAL_ROWS == 0 == op.n % FRACTAL_ROWS
        case Reduce():
            return op.dst.count == 1
        case _:
            return True


def _of_scalar(scalar: float | str, marks: Marks) -> int:
    return marks.registers.get(scalar, WRITTEN) if isinstance(scalar, str) else WRITTEN


# ---- copies ----


def _store(op: Store, marks: Marks) -> Sink:
    where = op.src.buffer, op.src.offset_bytes
    return marks.rows(*where, op.dst.burst_bytes, op.dst.bursts, op.pitch_bytes)


def _copy_to_l1(op: CopyToL1, marks: Marks) -> Sink:
    size = op.burst_bytes, op.bursts
    src = marks.rows(op.src.buffer, op.src.offset_bytes, *size, op.src_pitch_bytes)
    dst = marks.rows(op.dst.buffer, op.dst.offset_bytes, *size, op.dst_pitch_bytes)
    marks.put_bytes(op.dst.buffer, dst, src)
    return None


def _from_outside(op: Load | LoadNd2Nz, marks: Marks) -> Sink:
    for area in areas.written(op):
        marks.write(area)
    return None


# ---- the vector pipe ----


def _each(op: Cast | Unary | LoadTable, marks: Marks) -> Sink:
    marks.put(op.dst, marks.elements(op.src))
    return None


def _copy(op: Copy, marks: Marks) -> Sink:
    # Bytes, whatever type they are moved as.
    src, dst = (replace(x, dtype=UINT8, count=x.nbytes) for x in (op.src, op.dst))
    marks.put(dst, marks.elements(src))
    return None


def _binary(op: Binary, marks: Marks) -> Sink:
    marks.put(op.dst, np.maximum(marks.elements(op.a), marks.elements(op.b)))
    return None


def _binary_scalar(op: BinaryScalar, marks: Marks) -> Sink:
    marks.put(op.dst, np.maximum(marks.elements(op.a), _of_scalar(op.scalar, marks)))
    return None


def _axpy(op: Axpy, marks: Marks) -> Sink:
    product = np.maximum(marks.elements(op.src), _of_scalar(op.scalar, marks))
    marks.put(op.dst, np.maximum(product, marks.elements(op.dst)))
    return None


def _mul_add_dst(op: MulAddDst, marks: Marks) -> Sink:
    product = np.maximum(marks.elements(op.a), marks.elements(op.b))
    marks.put(op.dst, np.maximum(product, marks.elements(op.dst)))
    return None


def _duplicate(op: Duplicate, marks: Marks) -> Sink:
    mark = _of_scalar(op.scalar, marks)
    marks.put(op.dst, np.full(op.dst.count, mark, marks.bytes[op.dst.buffer].dtype))
    return None


def _broadcast(op: Broadcast, marks: Marks) -> Sink:
    marks.put(op.dst, np.repeat(marks.elements(op.src), c0(op.dst.dtype)))
    return None


def _reduce(op: Reduce, marks: Marks) -> Sink:
    marks.put(op.dst.at(0, 1), marks.elements(op.src).max(keepdims=True))
    return None


def _block_reduce(op: BlockReduce, marks: Marks) -> Sink:
    marks.put(op.dst, marks.elements(op.src).reshape(-1, c0(op.src.dtype)).max(axis=1))
    return None


def _compare(op: Compare, marks: Marks) -> Sink:
    either = np.maximum(marks.elements(op.a), marks.elements(op.b))
    marks.put(op.dst, either.reshape(-1, 8).max(axis=1))
    return None


def _compare_scalar(op: CompareScalar, marks: Marks) -> Sink:
    either = np.maximum(marks.elements(op.a), _of_scalar(op.scalar, marks))
    marks.put(op.dst, either.reshape(-1, 8).max(axis=1))
    return None


def _select(op: Select, marks: Marks) -> Sink:
    found = np.repeat(marks.elements(op.mask), 8)[: op.dst.count]
    for local in (op.a, op.b):
        if isinstance(local, Local):
            found = np.maximum(found, marks.elements(local))
    marks.put(op.dst, found)
    return None


def _gather(op: Gather, marks: Marks) -> Sink:
    # Which element an offset names is not known here, so any may be meant.
    marks.put(op.dst, np.maximum(marks.elements(op.offsets), marks.elements(op.src).max()))
    return None


def _transpose(op: Transpose, marks: Marks) -> Sink:
    matrices = marks.elements(op.src).reshape(-1, *SQUARE)
    marks.put(op.dst, matrices.swapaxes(1, 2).reshape(-1))
    return None


def _sort(op: Sort32, marks: Marks) -> Sink:
    # Any of a list may come of any of its elements.
    found = np.maximum(marks.elements(op.keys), marks.elements(op.indices))
    largest = found.reshape(-1, SORTED_AT_ONCE).max(axis=1)
    marks.put(op.dst, np.repeat(largest, SORTED_AT_ONCE))
    return None


def _merge(op: MrgSort, marks: Marks) -> Sink:
    pairs, found = marks.elements(op.src), []
    for start, count in zip(op.starts, op.counts, strict=False):
        # Where a register lets a list begin is not known here.
        known = pairs if isinstance(start, str) else pairs[start : start + count]
        found.append(max(int(known.max(initial=WRITTEN)), _of_scalar(start, marks)))
    marks.put(op.dst, np.full(op.dst.count, max(found), pairs.dtype))
    return None


def _gather_mask(op: GatherMask, marks: Marks) -> Sink:
    marks.put(op.dst, marks.elements(op.src)[op.places == "odd" :: 2])
    return None


def _whole_reduce(op: WholeReduce, marks: Marks) -> Sink:
    repeats = marks.elements(op.src).reshape(op.dst.count, -1)
    marks.put(op.dst, repeats[:, : op.mask].max(axis=1))
    return None


def _fold(op: Fold, marks: Marks) -> Sink:
    repeats = marks.elements(op.src).reshape(-1, op.dst.count)
    marks.put(op.dst, np.maximum(marks.elements(op.dst), repeats.max(axis=0)))
    return None


# ---- the scalar pipe ----

Rounds = dict[str, Array]
"""Register -> its mark in each round of a loop, `(rounds,)`."""


def _one(op: ScalarLoad | ScalarStore | ScalarAlu | Trap, marks: Marks) -> Sink:
    return _all_rounds((op,), marks, 1)


def _load_global(op: ScalarLoadGlobal, marks: Marks) -> Sink:
    marks.registers.pop(op.dst, None)
    return None


def _scalar_loop(op: ScalarLoop, marks: Marks) -> Sink:
    return _all_rounds(op.body, marks, op.count)


def _all_rounds(body: tuple[ScalarOp, ...], marks: Marks, count: int) -> Sink:
    # Rounds are independent of each other, so all of them run at once, part by part.
    rounds = {name: np.full(count, mark) for name, mark in marks.registers.items()}
    stopped: list[Array] = []
    for op in body:
        match op:
            case ScalarLoad():
                rounds[op.dst] = _steps(op.src, op.step_bytes, marks, count).max(axis=1)
            case ScalarStore():
                view = _steps(op.dst, op.step_bytes, marks, count)
                mark = _of_rounds((op.src,), rounds, count)
                marks.put_bytes(op.dst.buffer, view, mark[:, None])
            case ScalarAlu():
                rounds[op.dst] = _of_rounds((op.a, op.b, op.c), rounds, count)
            case Trap():
                stopped.append(_of_rounds((op.when,), rounds, count))
    # After the loop a register holds what the last round left.
    marks.registers = {name: int(mark[-1]) for name, mark in rounds.items() if mark[-1]}
    return np.concatenate(stopped) if stopped else None


def _of_rounds(operands: tuple[int | str, ...], rounds: Rounds, count: int) -> Array:
    """The largest mark of *operands* in each round."""
    used = [rounds[x] for x in operands if isinstance(x, str) and x in rounds]
    found: Array = np.maximum.reduce([np.zeros(count, int), *used])
    return found


def _steps(local: Local, step_bytes: int, marks: Marks, count: int) -> Array:
    return marks.rows(local.buffer, local.offset_bytes, local.nbytes, count, step_bytes)


# ---- around the cube ----


def _elements_of(raw: Array, dtype: DType) -> Array:
    """`(..., bytes)` as `(..., elements)`."""
    if dtype is INT4:
        return np.repeat(raw, 2, axis=-1)
    width = dtype.bits // 8
    # Byte by byte: numpy takes ten times as long for the largest of two in a row.
    found = raw[..., ::width].copy()
    for byte in range(1, width):
        found = np.maximum(found, raw[..., byte::width])
    return found


def _bytes_of(marks: Array, dtype: DType) -> Array:
    """The other way round, of one axis."""
    if dtype is INT4:
        found: Array = marks.reshape(-1, 2).max(axis=1)
        return found
    return np.repeat(marks, dtype.bits // 8)


def _padded(matrix: Array, fractal: tuple[int, int]) -> Array:
    """*matrix* with whole fractals, whose edges nobody has written."""
    rows, columns = matrix.shape
    whole = align_up(rows, fractal[0]), align_up(columns, fractal[1])
    if whole == matrix.shape:
        return matrix
    padded = np.full(whole, NOBODY, matrix.dtype)
    padded[:rows, :columns] = matrix
    return padded


def _put_raw(local: Local, raw: Array, marks: Marks) -> None:
    """Make *raw* the marks of the bytes that *local* begins with."""
    start = local.offset_bytes
    view = marks.bytes[local.buffer][start : start + raw.size]
    marks.put_bytes(local.buffer, view, raw)


def _nz(local: Local, first_block: int, nz_rows: int, size: tuple[int, int], marks: Marks) -> Array:
    """A matrix of *size* in Nz of *nz_rows* rows, its blocks 32 bytes (in L0C 16 numbers) wide."""
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


def _load_data(op: LoadData, marks: Marks) -> Sink:
    first = op.column // c0(op.src.dtype) * op.src_rows + op.row
    where = op.src, first, op.src_rows, (op.rows, op.columns), marks
    is_turned = op.transpose is (op.dst.buffer == "l0a")
    if _nz_is_written(*where):
        shape = (op.columns, op.rows) if is_turned else (op.rows, op.columns)
        _put_raw(op.dst, _raw_l0(op.dst.buffer, op.dst.dtype, shape), marks)
        return None
    piece = _nz(*where)
    _put_raw(op.dst, _as_l0(op.dst.buffer, op.dst.dtype, piece.T if is_turned else piece), marks)
    return None


def _as_l0(buffer: str, dtype: DType, matrix: Array) -> Array:
    """The bytes of *matrix* in L0A or L0B."""
    fractal, layout = _l0(buffer, dtype)
    return _bytes_of(to_fractals(_padded(matrix, fractal), layout, fractal).reshape(-1), dtype)


@lru_cache(maxsize=1024)
def _raw_l0(buffer: str, dtype: DType, shape: tuple[int, int]) -> Array:
    """Those of a matrix of *shape* that is WRITTEN."""
    return _as_l0(buffer, dtype, np.full(shape, WRITTEN, np.uint8))


def _l0(buffer: str, dtype: DType) -> tuple[tuple[int, int], Any]:
    width = c0(dtype)
    if buffer == "l0a":
        return (FRACTAL_ROWS, width), ZZ
    return (width, FRACTAL_ROWS), ZN


def _factor(local: Local, shape: tuple[int, int], marks: Marks) -> Array:
    """The matrix of *shape* that *local* begins with, in L0A or L0B."""
    fractal, layout = _l0(local.buffer, local.dtype)
    fractals = layout.array_shape(*shape, fractal)
    nbytes = local.dtype.nbytes(int(np.prod(fractals)))
    raw = marks.bytes[local.buffer][local.offset_bytes : local.offset_bytes + nbytes]
    return from_fractals(_elements_of(raw, local.dtype).reshape(fractals), layout, shape)


def _factor_is_written(local: Local, shape: tuple[int, int], marks: Marks) -> bool:
    """Whether all elements of that matrix are WRITTEN."""
    padding = _raw_l0(local.buffer, local.dtype, shape)
    raw = marks.bytes[local.buffer][local.offset_bytes : local.offset_bytes + padding.size]
    # Marks that are larger than those of a matrix that is.
    return not np.greater(raw, padding).any() if raw.dtype == np.uint8 else False


def _mmad(op: Mmad, marks: Marks) -> Sink:
    size = op.m, op.n
    before = op.dst, 0, align_up(op.m, FRACTAL_ROWS), size, marks
    if (
        _factor_is_written(op.a, (op.m, op.k), marks)
        and _factor_is_written(op.b, (op.k, op.n), marks)
        and (op.init != "accumulate" or _nz_is_written(*before))
        and (op.init == "accumulate" or op.bias is None or not _bias(op, marks).any())
    ):
        _put_raw(op.dst, _raw_product(op.dst.dtype, size), marks)
        return None
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
    """The bytes of *total* in L0C."""
    return _bytes_of(to_fractals(_padded(total, SQUARE), NZ, SQUARE).reshape(-1), dtype)


@lru_cache(maxsize=1024)
def _raw_product(dtype: DType, shape: tuple[int, int]) -> Array:
    """Those of a product of *shape* that is WRITTEN."""
    return _as_product(dtype, np.full(shape, WRITTEN, np.uint8))


def _of_scale(scale: Local | int | None, count: int, marks: Marks) -> Array | int:
    if not isinstance(scale, Local):
        return WRITTEN
    return marks.elements(scale)[:count]


def _fixpipe(op: Fixpipe, marks: Marks) -> Sink:
    product = op.src, 0, op.src_rows, (op.m, op.n), marks
    scale = _of_scale(op.scale, op.n, marks)
    if isinstance(op.dst, Global) and not np.any(scale) and _nz_is_written(*product):
        return None
    values = np.maximum(_nz(*product), scale)
    if isinstance(op.dst, Global):
        return values
    width = c0(op.dtype)
    blocks = ceil_div(op.n, width)
    # Columns are filled up with zeros: (m, blocks x width) -> (blocks, m, width) -> bytes
    whole = np.zeros((op.m, blocks * width), values.dtype)
    whole[:, : op.n] = values
    raw = _bytes_of(whole.reshape(op.m, blocks, width).swapaxes(0, 1).reshape(-1), op.dtype)
    where = op.dst.buffer, op.dst.offset_bytes, op.m * BLOCK_BYTES, blocks
    view = marks.rows(*where, op.dst_rows * BLOCK_BYTES)
    marks.put_bytes(op.dst.buffer, view, raw.reshape(view.shape))
    return None


def _copy_l0c(op: CopyL0c, marks: Marks) -> Sink:
    # Blocks of 16 columns, one after the other: (blocks, rows, 16).
    values = marks.elements(op.src).reshape(-1, op.rows, FRACTAL_ROWS)
    scale = _of_scale(op.scale, values.shape[0] * FRACTAL_ROWS, marks)
    if isinstance(scale, np.ndarray) and scale.size > 1:
        scale = scale.reshape(-1, 1, FRACTAL_ROWS)
    values = np.maximum(values, scale)
    if op.dst.dtype is INT8:
        # Two blocks of 16 columns make one of 32; the last one may lack its second half.
        if values.shape[0] % 2:
            values = np.concatenate([values, np.zeros_like(values[:1])])
        marks.put(op.dst, values.reshape(-1, 2, op.rows, FRACTAL_ROWS).swapaxes(1, 2).reshape(-1))
        return None
    marks.put(op.dst, values.reshape(-1))
    return None


def _broadcast_to_l0c(op: BroadcastToL0c, marks: Marks) -> Sink:
    row = marks.elements(op.src).reshape(-1, 1, FRACTAL_ROWS)
    marks.put(op.dst, np.repeat(row, op.rows, axis=1).reshape(-1))
    return None


def _nothing(_: MicroOp, __: Marks) -> Sink:
    return None


FLOW: Table[Callable[[Any, Marks], Sink]] = Table(
    "unwritten.FLOW",
    "how marks pass through it",
    MICRO_OPS,
    {
        Load: _from_outside,
        LoadNd2Nz: _from_outside,
        Store: _store,
        CopyToL1: _copy_to_l1,
        LoadData: _load_data,
        LoadTable: _each,
        Mmad: _mmad,
        Fixpipe: _fixpipe,
        CopyL0c: _copy_l0c,
        BroadcastToL0c: _broadcast_to_l0c,
        Cast: _each,
        Unary: _each,
        Copy: _copy,
        Binary: _binary,
        BinaryScalar: _binary_scalar,
        Axpy: _axpy,
        MulAddDst: _mul_add_dst,
        Duplicate: _duplicate,
        Compare: _compare,
        CompareScalar: _compare_scalar,
        Select: _select,
        Gather: _gather,
        Transpose: _transpose,
        Sort32: _sort,
        MrgSort: _merge,
        GatherMask: _gather_mask,
        Broadcast: _broadcast,
        Reduce: _reduce,
        BlockReduce: _block_reduce,
        WholeReduce: _whole_reduce,
        Fold: _fold,
        ScalarLoad: _one,
        ScalarLoadGlobal: _load_global,
        ScalarStore: _one,
        ScalarAlu: _one,
        ScalarLoop: _scalar_loop,
        Trap: _one,
        **dict.fromkeys(ORDERING, _nothing),
    },
)
