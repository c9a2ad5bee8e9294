"""The vector pipe: what moves and fills elements."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.isa import BLOCK_BYTES, Broadcast, Copy, Duplicate, Gather, Transpose
from npusim.values.buffers import OutOfBufferError
from npusim.values.semantics.state import State

__all__ = ["broadcast", "copy", "copy_blocks", "duplicate", "gather", "transpose"]


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
"""Rows, and columns, of what Transpose turns."""
_BLOCK = np.dtype(f"V{BLOCK_BYTES}")
_TILE_BLOCKS = 32
"""Blocks that are filled before they are copied on: numpy is slow with runs of one block."""


def copy(op: Copy, state: State) -> None:
    if op.src.is_ragged or op.dst.is_ragged:
        state.write(op.dst, state.read(op.src))
        return
    src, dst = state.buffers.view(op.src), state.buffers.view(op.dst)
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


def copy_blocks(dst: Array, src: Array, shape: tuple[int, ...]) -> None:
    """Copy *src* to *dst*, both seen as *shape*, `(..., elements of a block)`."""
    # Each block as one element.
    dst.reshape(shape).view(_BLOCK)[...] = src.reshape(shape).view(_BLOCK)


def gather(op: Gather, state: State) -> None:
    src, offsets = state.read(op.src), state.read(op.offsets)
    size = src.itemsize
    bad = (offsets < 0) | (offsets > op.src.nbytes - size) | (offsets % size != 0)
    if bad.any():
        raise OutOfBufferError(
            f"semantics: {op}: offsets must be those of elements of src, multiples of {size} in "
            f"[0, {op.src.nbytes}), not {offsets[bad][0]}; fix what fills them"
        )
    state.write(op.dst, np.take_along_axis(src, offsets // size, axis=-1))


def transpose(op: Transpose, state: State) -> None:
    columns = BLOCK_BYTES * 8 // op.src.dtype.bits
    matrices = state.read(op.src).reshape(*state.lead, -1, SQUARE_ROWS, columns)
    turned = matrices.swapaxes(-1, -2).reshape(*state.lead, op.dst.count)
    state.write(op.dst, turned)
