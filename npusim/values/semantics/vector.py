"""The vector pipe: one IEEE operation an element and a micro-op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, Array, DType, Whole, cast, pack_int4
from npusim.isa import (
    BLOCK_BYTES,
    Axpy,
    Binary,
    BinaryScalar,
    BlockReduce,
    Broadcast,
    Cast,
    Copy,
    Duplicate,
    Fold,
    Local,
    MulAddDst,
    Reduce,
    Unary,
    WholeReduce,
)
from npusim.values.buffers import WholeTile
from npusim.values.semantics.state import State

__all__ = [
    "axpy",
    "binary",
    "binary_scalar",
    "block_reduce",
    "broadcast",
    "convert",
    "copy",
    "duplicate",
    "fold",
    "mul_add_dst",
    "reduce",
    "unary",
    "whole_reduce",
]


def convert(op: Cast, state: State) -> None:
    src, dst, buffers = op.src, op.dst, state.buffers
    tile = buffers.tile(src.buffer, src.offset_bytes)
    whole = None
    if dst.is_strided or dst.dtype is INT4:
        pass
    elif isinstance(tile, WholeTile) and tile.place == src:
        # The last cast still has in hand what it has put there.
        whole = tile.whole.cast_to(dst.dtype)
    elif src.dtype is FLOAT32:
        whole = Whole.rounded(state.read(src), dst.dtype, op.mode)
    if whole is not None:
        if dst.dtype.bits == BITS_THAT_LEAVE:
            whole.put(dst.dtype, buffers.room(dst))
        else:
            buffers.add_tile(dst.buffer, WholeTile(dst, whole))
    elif dst.is_strided or dst.dtype is INT4:
        values = cast(state.read(src), dst.dtype, op.mode, state.overflow)
        state.write(dst, pack_int4(values) if dst.dtype is INT4 else values)
    else:
        cast(state.read(src), dst.dtype, op.mode, state.overflow, buffers.room(dst))


BITS_THAT_LEAVE = 8
"""What has so few bits is cast no further as a rule: it is written while the cache holds it."""


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
}


def _compute(op: str, dst: Local, a: Local, b: Array, state: State) -> None:
    if dst.dtype is FLOAT32 and not (dst.is_strided or a.is_strided):
        _ARITHMETIC[op](state.buffers.view(a), b, out=state.buffers.room(dst))
    elif dst.dtype.is_float:
        wide = _ARITHMETIC[op](state.read(a).astype(np.float32), b.astype(np.float32))
        narrow = wide if dst.dtype is FLOAT32 else cast(wide, dst.dtype, "rint", state.overflow)
        state.write(dst, narrow)
    else:
        state.write(dst, _ARITHMETIC[op](state.read(a), b))


def binary(op: Binary, state: State) -> None:
    _compute(op.op, op.dst, op.a, state.read(op.b), state)


def _scalar_of(scalar: float | str, dtype: DType, state: State) -> Array:
    """`(1,)`: a number, or the element whose bits a register holds; lanes first if they differ."""
    if isinstance(scalar, str):
        bits = state.registers[scalar].astype(f"u{dtype.numpy.itemsize}")
        return bits.view(dtype.numpy)
    return np.array([scalar]).astype(dtype.numpy)


def binary_scalar(op: BinaryScalar, state: State) -> None:
    _compute(op.op, op.dst, op.a, _scalar_of(op.scalar, op.dst.dtype, state), state)


def duplicate(op: Duplicate, state: State) -> None:
    dst, scalar = state.buffers.view(op.dst), _scalar_of(op.scalar, op.dst.dtype, state)
    if scalar.ndim > 1:
        scalar = scalar.reshape(*state.lead, *(1,) * (dst.ndim - 1))
    dst[...] = scalar


def broadcast(op: Broadcast, state: State) -> None:
    per_block = BLOCK_BYTES // op.dst.dtype.numpy.itemsize
    state.write(op.dst, np.repeat(state.read(op.src), per_block, axis=-1))


def reduce(op: Reduce, state: State) -> None:
    extreme = np.min if op.op == "min" else np.max
    dst = state.buffers.view(op.dst)
    first = dst[..., 0, 0, :] if op.dst.is_strided else dst
    first[..., 0] = extreme(state.read(op.src), axis=-1)


def whole_reduce(op: WholeReduce, state: State) -> None:
    extreme = np.min if op.op == "min" else np.max
    repeats = state.read(op.src).reshape(*state.lead, op.dst.count, -1)
    state.write(op.dst, extreme(repeats, axis=-1))


def fold(op: Fold, state: State) -> None:
    extreme = np.minimum if op.op == "min" else np.maximum
    repeats = state.read(op.src).reshape(*state.lead, -1, op.dst.count)
    state.write(op.dst, extreme(state.read(op.dst), extreme.reduce(repeats, axis=-2)))


def unary(op: Unary, state: State) -> None:
    if op.dst.dtype is FLOAT32 and not (op.src.is_strided or op.dst.is_strided):
        np.abs(state.buffers.view(op.src), out=state.buffers.room(op.dst))
        return
    magnitudes = np.abs(state.read(op.src))
    if op.dst.dtype is FLOAT16 and state.overflow == "saturate":
        # 65504 of an infinity, 0 of NaN (asc-devkit, Memory矢量计算接口边界值汇总.md).
        magnitudes = cast(magnitudes.astype(np.float32), FLOAT16, "rint", state.overflow)
    state.write(op.dst, magnitudes)


_TILE_BLOCKS = 32
"""Blocks that are filled before they are copied on: numpy is slow with runs of one block."""


def copy(op: Copy, state: State) -> None:
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
    state.write(op.dst, state.read(op.src))


def _multiply_add(dst: Local, a: Array, b: Array, state: State) -> None:
    """`dst = a x b + dst`, the product rounded to the type of *dst* first."""
    before = state.read(dst)
    if dst.dtype is FLOAT32:
        state.write(dst, a * b + before)
        return
    product = cast(a.astype(np.float32) * b.astype(np.float32), dst.dtype, "rint", state.overflow)
    total = product.astype(np.float32) + before.astype(np.float32)
    state.write(dst, cast(total, dst.dtype, "rint", state.overflow))


def axpy(op: Axpy, state: State) -> None:
    scalar = _scalar_of(op.scalar, op.dst.dtype, state)
    _multiply_add(op.dst, state.read(op.src), scalar, state)


def mul_add_dst(op: MulAddDst, state: State) -> None:
    _multiply_add(op.dst, state.read(op.a), state.read(op.b), state)


def block_reduce(op: BlockReduce, state: State) -> None:
    values = state.read(op.src)
    values = values.reshape(*state.lead, -1, BLOCK_BYTES // op.src.dtype.numpy.itemsize)
    while values.shape[-1] > 1:
        left, right = values[..., 0::2], values[..., 1::2]
        if op.op == "max":
            values = np.maximum(left, right)
        elif op.src.dtype is FLOAT32:
            values = left + right
        else:
            wide = left.astype(np.float32) + right.astype(np.float32)
            values = cast(wide, op.src.dtype, "rint", state.overflow)
    state.write(op.dst, values[..., 0])
