"""The vector pipe: micro-ops that move and fill elements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npusim.data.dtypes import Array
from npusim.isa import (
    BLOCK_BYTES,
    Broadcast,
    Copy,
    Duplicate,
    Gather,
    GatherBlocks,
    Local,
    Scatter,
    TransDataTo5HD,
    Transpose,
)
from npusim.values.buffers import OutOfBufferError
from npusim.values.semantics.rows import WidenedTile
from npusim.values.semantics.state import State

__all__ = [
    "broadcast",
    "copy",
    "copy_blocks",
    "duplicate",
    "gather",
    "gather_blocks",
    "scatter",
    "trans_data",
    "transpose",
]


def duplicate(op: Duplicate, state: State) -> None:
    scalar = state.scalar(op.scalar, op.dst.dtype)
    if op.dst.is_ragged:
        state.write(op.dst, scalar)
        return
    dst = state.buffers.view(op.dst)
    if scalar.ndim > 1:
        scalar = scalar.reshape(*state.lead, *(1,) * (dst.ndim - 1))
    dst[...] = scalar


def broadcast(op: Broadcast, state: State) -> None:
    per_block = BLOCK_BYTES // op.dst.dtype.numpy.itemsize
    state.write(op.dst, np.repeat(state.read(op.src), per_block, axis=-1))


SQUARE_ROWS = 16
"""Rows and columns of a matrix of Transpose."""
_BLOCK = np.dtype(f"V{BLOCK_BYTES}")
_TILE_BLOCKS = 32
"""Blocks filled before they are copied in bulk: numpy is slow with runs of one block."""


def copy(op: Copy, state: State) -> None:
    if op.src.is_ragged or op.dst.is_ragged:
        state.write(op.dst, state.read(op.src))
        return
    waiting = state.buffers.tile(op.src.buffer, op.src.offset_bytes)
    if isinstance(waiting, WidenedTile) and waiting.place == op.src == _moved(op.dst, op.src):
        state.buffers.add_tile(op.dst.buffer, WidenedTile(op.dst, waiting.halves))
        return
    src, dst = state.buffers.view(op.src), state.buffers.room(op.dst)
    is_one_block = op.src.block_stride == op.src.repeat_stride == 0
    if is_one_block and not op.dst.is_strided and src.size == dst.size:
        block = src[..., :1, 0, :].copy()
        elements = _TILE_BLOCKS * block.shape[-1]
        whole = dst.shape[-1] // elements * elements
        tile = np.broadcast_to(block, (*state.lead, _TILE_BLOCKS, block.shape[-1]))
        tile = tile.reshape(*state.lead, 1, elements)
        dst[..., :whole].reshape(*state.lead, -1, elements)[...] = tile
        dst[..., whole:] = tile[..., 0, : dst.shape[-1] - whole]
        return
    strided = [x for x, local in ((src, op.src), (dst, op.dst)) if local.is_strided]
    if strided and src.size == dst.size and strided[0].shape == strided[-1].shape:
        copy_blocks(dst, src, strided[0].shape)
    else:
        state.write(op.dst, state.read(op.src))


def _moved(local: Local, to: Local) -> Local:
    """*local* at the offset of *to*."""
    return replace(local, buffer=to.buffer, offset_bytes=to.offset_bytes)


def copy_blocks(dst: Array, src: Array, shape: tuple[int, ...]) -> None:
    """Copy *src* to *dst*, both reshaped to *shape*, `(..., elements of a block)`."""
    # Each block as one element.
    dst.reshape(shape).view(_BLOCK)[...] = src.reshape(shape).view(_BLOCK)


def gather(op: Gather, state: State) -> None:
    src = state.read(op.src)
    places = _looked_up(op, op.offsets, op.src, src.itemsize, state)
    state.write(op.dst, np.take_along_axis(src, places, axis=-1))


def _looked_up(
    op: Gather | GatherBlocks | Scatter, offsets: Local, table: Local, size: int, state: State
) -> Array:
    """The indices of the pieces of *size* bytes of *table* at *offsets*.

    Raises OutOfBufferError if an offset is not that of a piece.
    """
    found = state.read(offsets).astype(np.int64)
    bad = (found < 0) | (found > table.nbytes - size) | (found % size != 0)
    if bad.any():
        name = "dst" if table is op.dst else "src"
        raise OutOfBufferError(
            f"semantics: {op}: offsets must be those of {_pieces(op)} of {name}, multiples of "
            f"{size} in [0, {table.nbytes}), not {found[bad][0]}; fix what fills them"
        )
    return np.asarray(found // size)


def _pieces(op: Gather | GatherBlocks | Scatter) -> str:
    return "blocks" if isinstance(op, GatherBlocks) else "elements"


def gather_blocks(op: GatherBlocks, state: State) -> None:
    places = _looked_up(op, op.offsets, op.src, BLOCK_BYTES, state)
    src = state.read(op.src)
    blocks = src.reshape(*state.lead, -1, BLOCK_BYTES // src.itemsize)
    found = np.take_along_axis(blocks, places[..., None], axis=-2)
    state.write(op.dst, found.reshape(*state.lead, -1))


def scatter(op: Scatter, state: State) -> None:
    found = state.read(op.dst).copy()
    places = _looked_up(op, op.offsets, op.dst, found.itemsize, state)
    np.put_along_axis(found, places, state.read(op.src), axis=-1)
    state.write(op.dst, found)


def transpose(op: Transpose, state: State) -> None:
    columns = BLOCK_BYTES * 8 // op.src.dtype.bits
    matrices = state.read(op.src).reshape(*state.lead, -1, SQUARE_ROWS, columns)
    turned = matrices.swapaxes(-1, -2).reshape(*state.lead, op.dst.count)
    state.write(op.dst, turned)


def trans_data(op: TransDataTo5HD, state: State) -> None:
    rows = np.stack([state.read(row) for row in op.src], axis=-2)
    # (..., elements of a row, repeats, rows)
    elements = rows.shape[-1] // op.src[0].repeats
    each = rows.reshape(*rows.shape[:-1], -1, elements)
    turned = np.moveaxis(each, -1, -3).swapaxes(-1, -2)
    if elements < SQUARE_ROWS:
        # For 32 bits a column fills two blocks.
        halves = turned.reshape(*turned.shape[:-1], SQUARE_ROWS // elements, elements)
        turned = np.moveaxis(halves, -2, -3)
        turned = turned.reshape(*state.lead, SQUARE_ROWS, *turned.shape[-2:])
    for index, row in enumerate(op.dst):
        state.write(row, turned[..., index, :, :].reshape(*state.lead, -1))
