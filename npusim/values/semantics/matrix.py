"""Micro-ops around the cube: loads into L1 and L0, the product, and the way out."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.lib.stride_tricks import as_strided

from npusim.data.dtypes import INT4, INT8, Array, Overflow, cast, unpack_int4
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import ZN, ZZ, c0
from npusim.data.tensor import SLACK_BYTES
from npusim.isa import (
    BLOCK_BYTES,
    BroadcastToL0c,
    CopyL0c,
    Fixpipe,
    Global,
    LoadData,
    LoadNd2Nz,
    LoadTable,
    Local,
    Mmad,
)
from npusim.values.late import Place
from npusim.values.matrices import (
    Accumulator,
    Factor,
    L0Tile,
    L1Tile,
    address_of,
    l0_matrix,
    l0c_matrix,
    l1_matrix,
)
from npusim.values.semantics.copies import combine, window, window_of
from npusim.values.semantics.quantise import convert
from npusim.values.semantics.state import Bytes, State

__all__ = [
    "broadcast_to_l0c",
    "copy_l0c",
    "fixpipe",
    "load_data",
    "load_nd2nz",
    "load_table",
    "mmad",
]


def load_nd2nz(op: LoadNd2Nz, state: State) -> None:
    rows = window(op.src, state, SLACK_BYTES)
    if op.row_stride > 1:
        _spread_rows(op, rows, state)
        return
    address = 0
    if op.dst.dtype is INT4:
        matrix: Array = unpack_int4(rows)
    else:
        memory = state.memories[op.src.name]
        # If a row runs past the end, the window is a temporary copy.
        is_constant = memory.is_constant and np.may_share_memory(rows, memory.data)
        matrix = (rows if is_constant else rows.copy()).view(op.dst.dtype.numpy)
        if is_constant:
            address = address_of(matrix)
    tile = L1Tile(op.dst.offset_bytes, op.dst.dtype, op.dst_rows, matrix, address)
    state.buffers.add_tile(op.dst.buffer, tile)


def _spread_rows(op: LoadNd2Nz, rows: Bytes, state: State) -> None:
    """Write *rows* as Nz with rows that are not adjacent."""
    blocks = ceil_div(op.src.burst_bytes, BLOCK_BYTES)
    whole = np.zeros((op.src.bursts, blocks * BLOCK_BYTES), np.uint8)
    whole[:, : op.src.burst_bytes] = rows
    split = whole.reshape(op.src.bursts, blocks, BLOCK_BYTES)
    raw = state.buffers.window(op.footprint)
    steps = (op.row_stride * BLOCK_BYTES, op.dst_rows * BLOCK_BYTES, 1)
    as_strided(raw, split.shape, steps)[...] = split


def load_data(op: LoadData, state: State) -> None:
    buffers, src = state.buffers, op.src
    tile = buffers.tile(src.buffer, src.offset_bytes)
    bottom, right = op.row + op.rows, op.column + op.columns
    if (
        isinstance(tile, L1Tile)
        and tile.dtype is src.dtype
        and tile.nz_rows == op.src_rows
        and bottom <= tile.matrix.shape[0]
        and right <= tile.matrix.shape[1]
    ):
        piece, address = tile.matrix[op.row : bottom, op.column : right], tile.address
        if address:
            down, across = tile.matrix.strides
            address += op.row * down + op.column * across
    else:
        address = 0
        raw = buffers.window(op.footprint)
        piece = l1_matrix(raw, src.dtype, op.src_rows, op.rows, op.columns)
    is_left = op.dst.buffer == "l0a"
    matrix = piece.T if op.transpose is is_left else piece
    layout = ZZ if is_left else ZN
    where = op.dst.offset_bytes, op.dst.dtype, op.dst.buffer, layout
    buffers.add_tile(op.dst.buffer, L0Tile(*where, matrix, address))


def load_table(op: LoadTable, state: State) -> None:
    values = state.read(op.src)
    state.write(op.dst, values if op.src.dtype is op.dst.dtype else cast(values, op.dst.dtype))


def _operand(local: Local, shape: tuple[int, int], state: State) -> Factor:
    """The matrix of *shape* at the start of *local*, in L0A or L0B."""
    tile = state.buffers.tile(local.buffer, local.offset_bytes)
    if isinstance(tile, L0Tile) and tile.dtype is local.dtype:
        if tile.matrix.shape == shape:
            return Factor(tile.matrix, tile.address)
        rows, columns = tile.matrix.shape
        # Fractals beyond the edge of the tile belong to other tiles: read those from the bytes.
        if shape[0] <= rows and shape[1] <= columns and _same_fractals(tile, shape):
            return Factor(tile.matrix[: shape[0], : shape[1]], tile.address)
    layout = ZZ if local.buffer == "l0a" else ZN
    raw = state.buffers.window(local)
    return Factor(l0_matrix(raw, local.dtype, local.buffer, layout, shape).copy())


def _same_fractals(tile: L0Tile, shape: tuple[int, int]) -> bool:
    """Whether a row of a matrix of *shape* has as many fractals as one of *tile*."""
    width = c0(tile.dtype) if tile.buffer == "l0a" else 16
    return ceil_div(shape[1], width) == ceil_div(int(tile.matrix.shape[1]), width)


def _row(local: Local, k: int, state: State) -> Factor:
    """The first *k* elements of *local* in L0A, as one row."""
    raw = state.buffers.window(local)[: local.dtype.nbytes(k)]
    elements = unpack_int4(raw)[:k] if local.dtype is INT4 else raw.view(local.dtype.numpy)
    return Factor(elements.reshape(1, k).copy())


def mmad(op: Mmad, state: State) -> None:
    a = _row(op.a, op.k, state) if op.gemv else _operand(op.a, (op.m, op.k), state)
    b = _operand(op.b, (op.k, op.n), state)
    tile = state.buffers.tile("l0c", op.dst.offset_bytes)
    if op.init == "accumulate":
        if (
            isinstance(tile, Accumulator)
            and tile.dtype is op.dst.dtype
            and (tile.m, tile.n) == (op.m, op.n)
        ):
            tile.terms.append((a, b))
            return
        nz_rows = align_up(op.m, 16)
        raw = state.buffers.window(op.dst)
        start: Array = l0c_matrix(raw, op.dst.dtype, nz_rows, (op.m, op.n)).copy()
    elif op.bias is not None:
        start = state.read(op.bias)[: op.n].copy()
    else:
        start = np.zeros((), op.dst.dtype.numpy)
    total = Accumulator(
        op.dst.offset_bytes,
        op.dst.dtype,
        op.m,
        op.n,
        state.cube_order,
        state.panels,
        start,
        [(a, b)],
    )
    state.buffers.add_tile("l0c", total)


def _parameters(scale: Local | int | None, count: int, state: State) -> Array | None:
    if scale is None:
        return None
    if isinstance(scale, Local):
        return state.read(scale)[:count]
    return np.array([scale], np.uint64)


def fixpipe(op: Fixpipe, state: State) -> None:
    tile = _accumulator(op, state)
    if tile is None:
        raw = state.buffers.window(op.footprint)
        values = l0c_matrix(raw, op.src.dtype, op.src_rows, (op.m, op.n))
    elif _waits(op, tile, state):
        return
    else:
        values = tile.value()[: op.m, : op.n]
    scale = _parameters(op.scale, op.n, state)
    if isinstance(op.dst, Global) and not op.atomic:
        _put(op, window(op.dst, state), scale, state.overflow, values)
        return
    result = _converted(op, values, scale, state.overflow)
    if isinstance(op.dst, Global):
        combine(op, _as_bursts(op, result), op.dtype, state)
    else:
        drained = L1Tile(op.dst.offset_bytes, op.dtype, op.dst_rows, result)
        state.buffers.add_tile(op.dst.buffer, drained)


def _accumulator(op: Fixpipe, state: State) -> Accumulator | None:
    """The sum of which *op* takes all or a part, if it is stored as an Accumulator."""
    tile = state.buffers.tile("l0c", op.src.offset_bytes)
    if (
        isinstance(tile, Accumulator)
        and tile.dtype is op.src.dtype
        and align_up(tile.m, 16) == op.src_rows
        and (tile.m >= op.m and tile.n >= op.n)
    ):
        return tile
    return None


def _put(op: Fixpipe, there: Bytes, scale: Array | None, overflow: Overflow, values: Array) -> None:
    """Write *values* of L0C to *there* in global memory."""
    result = _as_bursts(op, _converted(op, values, scale, overflow))
    there[:] = np.ascontiguousarray(result).view(np.uint8)


def _converted(op: Fixpipe, values: Array, scale: Array | None, overflow: Overflow) -> Array:
    """*values* of L0C in the output type."""
    if op.relu:
        values = np.where(values <= 0, values.dtype.type(0), values)
    return convert(values, op.mode, scale, op.dtype, overflow)


def _as_bursts(op: Fixpipe, result: Array) -> Array:
    """*result* `(m, n)` as bursts for global memory."""
    if op.layout == "nd":
        return result
    blocks = result.reshape(op.m, -1, op.fractal_columns)
    return blocks.swapaxes(0, 1).reshape(blocks.shape[1], -1)


def _waits(op: Fixpipe, tile: Accumulator, state: State) -> bool:
    """Defer *op* if possible, see ``values/late``; return whether it is."""
    if state.late is None or op.atomic or op.layout == "nz" or not isinstance(op.dst, Global):
        return False
    memory = state.memories[op.dst.name]
    place = Place.of(op.dst, memory.data, memory.base_bytes)
    if not memory.is_late or place is None or (tile.m, tile.n) != (op.m, op.n):
        return False
    factors = tile.constant_product()
    if factors is None:
        return False
    scale = _parameters(op.scale, op.n, state)
    # The contents of the buffers may be overwritten by then.
    scale_copy = None if scale is None else scale.copy()
    there = window_of(memory.data, op.dst, memory.base_bytes)
    state.late.add(place, *factors, partial(_put, op, there, scale_copy, state.overflow))
    return True


def copy_l0c(op: CopyL0c, state: State) -> None:
    # Blocks of 16 columns, one after the other: (blocks, rows, 16).
    values = state.read(op.src).reshape(-1, op.rows, 16)
    scale = _parameters(op.scale, values.shape[0] * 16, state)
    if scale is not None and scale.size > 1:
        scale = scale.reshape(-1, 1, 16)
    result = convert(values, op.mode, scale, op.dst.dtype, state.overflow)
    if op.dst.dtype is INT8:
        # Two blocks of 16 columns form one of 32; the last one may lack its second half.
        if result.shape[0] % 2:
            result = np.concatenate([result, np.zeros_like(result[:1])])
        pairs = result.reshape(-1, 2, op.rows, 16)
        result = pairs.swapaxes(1, 2)
    state.write(op.dst, result.reshape(-1))


def broadcast_to_l0c(op: BroadcastToL0c, state: State) -> None:
    # Blocks of 16 columns, one after the other: (blocks, rows, 16).
    row = state.read(op.src).reshape(-1, 1, 16)
    state.write(op.dst, np.repeat(row, op.rows, axis=1).reshape(-1))
