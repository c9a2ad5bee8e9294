"""The vector pipe: one IEEE operation per element and micro-op."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from npusim.data.dtypes import (
    FLOAT16,
    FLOAT32,
    INT4,
    INT16,
    INT32,
    Array,
    DType,
    Overflow,
    Whole,
    cast,
    pack_int4,
)
from npusim.isa import (
    BLOCK_BYTES,
    Axpy,
    Binary,
    BinaryScalar,
    Cast,
    CastDequant,
    Local,
    MulAddDst,
    Unary,
    lanes,
)
from npusim.values.buffers import WholeTile
from npusim.values.runs import FIELDS, Accumulated, Swept
from npusim.values.semantics.half_order import FEW, extremes, single
from npusim.values.semantics.quantise import fields
from npusim.values.semantics.rearranging import copy_blocks
from npusim.values.semantics.rows import WidenedTile
from npusim.values.semantics.state import State

__all__ = [
    "ARITHMETIC",
    "accumulate",
    "axpy",
    "binary",
    "binary_scalar",
    "convert",
    "dequantise",
    "mul_add_dst",
    "sweep",
    "unary",
]


def convert(op: Cast, state: State) -> None:
    src, dst, buffers = op.src, op.dst, state.buffers
    tile = buffers.tile(src.buffer, src.offset_bytes)
    whole = None
    if dst.is_strided or dst.dtype is INT4:
        pass
    elif isinstance(tile, WholeTile) and tile.place == src:
        # The result of the last cast is still available as integers.
        whole = tile.whole.cast_to(dst.dtype)
    elif src.dtype is FLOAT16 and dst.dtype is FLOAT32 and src.count >= FEW:
        halves = buffers.seen(src)
        if halves is not None:
            buffers.add_tile(dst.buffer, WidenedTile(dst, halves))
            return
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
"""A result with at most this many bits is usually not cast further, so it is written at once."""


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def _compute(op: str, dst: Local, a: Local, b: Array, state: State) -> None:
    if dst.dtype is FLOAT32 and not (dst.is_strided or a.is_strided):
        ARITHMETIC[op](state.read(a), b, out=state.buffers.room(dst))
    else:
        state.write(dst, _rounded(op, state.read(a), b, dst.dtype, state))


def _rounded(op: str, a: Array, b: Array, dtype: DType, state: State) -> Array:
    """`a op b` of two operands of *dtype*, rounded once to it."""
    if dtype is INT16 and state.overflow == "saturate" and op in SATURATING:
        return _saturated(op, a, b)
    if dtype is FLOAT32 or not dtype.is_float:
        return np.asarray(ARITHMETIC[op](a, b))
    is_half = dtype is FLOAT16 and state.overflow == "inf_nan"
    if op in ("min", "max") and is_half and a.size > FEW:
        found = extremes(op, a, b)
        if found is not None:
            return found
    wide = ARITHMETIC[op](single(a), single(b))
    return cast(wide, dtype, "rint", state.overflow)


SATURATING = ("add", "sub", "mul")
"""Operations that saturate in int16 where fp16 does (asc-devkit,
Memory矢量计算接口边界值汇总.md, tables 9 to 16)."""


def _saturated(op: str, a: Array, b: Array) -> Array:
    """`a op b` of int16, clipped to its range."""
    limits = np.iinfo(np.int16)
    wide = ARITHMETIC[op](a.astype(np.int32), b.astype(np.int32))
    return np.asarray(np.clip(wide, limits.min, limits.max).astype(np.int16))


def _positive(values: Array) -> Array:
    """The maximum of each and 0, which becomes +0."""
    return np.where(values <= 0, values.dtype.type(0), values)


def binary(op: Binary, state: State) -> None:
    step, is_cut = _STEPS.get(op.op, op.op), op.op in _STEPS
    if not is_cut and op.a.dtype is op.dst.dtype:
        _compute(step, op.dst, op.a, state.read(op.b), state)
        return
    operands = state.read(op.a), state.read(op.b)
    if is_cut and op.a.dtype is INT16:
        # Tables 26 and 27 of the same page have it saturate on every chip.
        found = _saturated(step, *operands)
    else:
        found = _rounded(step, *operands, op.a.dtype, state)
    found = _positive(found) if is_cut else found
    if op.a.dtype is not op.dst.dtype:
        found = cast(found, op.dst.dtype, "none", state.overflow)
        if op.dst.dtype is FLOAT16:
            # By the same tables NaN becomes 0.
            found = np.where(np.isnan(found), np.float16(0), found)
    state.write(op.dst, found)


_STEPS = {"add_relu": "add", "sub_relu": "sub"}
"""The operation before negative values are cut off."""


def accumulate(op: Accumulated, state: State) -> None:
    """Rows are `(..., count, elements)`."""
    calculate: Any = ARITHMETIC[op.first.op]
    total = state.buffers.view(op.first.dst)
    rows = state.buffers.swept(op.first.b, op.count, op.step_bytes)
    # numpy starts with the first row, so the total is added to that row first.
    first = rows[..., 0, :]
    first_row = first.copy()
    calculate(total, first_row, out=first)
    calculate.reduce(rows, axis=-2, out=total)
    first[...] = first_row


def sweep(op: Swept, state: State) -> None:
    first = op.first
    operands = [getattr(first, name) for name in FIELDS[type(first)]]
    views = [
        state.buffers.swept(x, op.count, step) for x, step in zip(operands, op.steps, strict=True)
    ]
    strided = [view for x, view in zip(operands, views, strict=True) if x.is_strided]
    if strided:
        views = [view.reshape(strided[0].shape) for view in views]
    src, dst = views[0], views[-1]
    if isinstance(first, Binary) and first.dst.dtype is FLOAT32:
        ARITHMETIC[first.op](src, views[1], out=dst)
    elif isinstance(first, Binary):
        dst[...] = _rounded(first.op, src, views[1], first.dst.dtype, state)
    elif strided:
        copy_blocks(dst, src, dst.shape)
    else:
        dst[...] = src


def binary_scalar(op: BinaryScalar, state: State) -> None:
    scalar = state.scalar(op.scalar, op.dst.dtype)
    if op.op == "leaky_relu":
        values = state.read(op.a)
        scaled = _rounded("mul", values, scalar, op.dst.dtype, state)
        as_is = values if op.dst.dtype is FLOAT32 else cast(values, FLOAT16, "rint", state.overflow)
        state.write(op.dst, np.where(np.signbit(values), scaled, as_is))
    elif op.op in _SHIFT:
        wide = state.read(op.a).astype(np.int64)
        found = _SHIFT[op.op](wide, scalar.astype(np.int64), op.dst.dtype)
        state.write(op.dst, found.astype(op.dst.dtype.numpy))
    else:
        _compute(op.op, op.dst, op.a, scalar, state)


def _shift_left(values: Array, places: Array, dtype: DType) -> Array:
    if dtype.numpy.kind == "u":
        return np.asarray(values << places)
    # The sign bit is preserved.
    sign = np.int64(-(1 << (dtype.bits - 1)))
    return np.asarray((values << places) & ~sign | values & sign)


_SHIFT: dict[str, Callable[[Array, Array, DType], Array]] = {
    "shift_left": _shift_left,
    "shift_right": lambda values, places, _: values >> places,
    "shift_right_round": lambda values, places, _: (
        (values >> places) + np.where(places > 0, values >> np.maximum(places - 1, 0) & 1, 0)
    ),
}


def dequantise(op: CastDequant, state: State) -> None:
    values, dtype = state.read(op.src).astype(np.float32), op.dst.dtype
    if isinstance(op.scale, Local):
        scale, offset, _ = fields(state.read(op.scale)[..., _lanes_in_a_block(op.src)])
    elif op.src.dtype is INT32:
        factor = state.scalar(op.scale, FLOAT16).astype(np.float32)
        state.write(op.dst, cast(values * factor, FLOAT16, "rint", state.overflow))
        return
    else:
        bits = state.scalar(op.scale, FLOAT32).view(np.uint32).astype(np.uint64)
        scale, offset = fields(bits)[0], np.array(op.offset)
    product = values * scale
    whole = np.where(np.isnan(product), 0, np.rint(product)) + offset
    limits = np.iinfo(dtype.numpy)
    state.write(op.dst, np.clip(whole, limits.min, limits.max).astype(dtype.numpy))


def _lanes_in_a_block(src: Local) -> Array:
    """`(count,)`: the index of each element of *src* in its block."""
    per_block = BLOCK_BYTES * 8 // src.dtype.bits
    within = np.arange(src.repeat_elements) if src.mask is None else lanes(src.mask)
    return np.asarray(within[np.arange(src.count) % within.size] % per_block)


_EXACT: dict[str, Callable[..., Any]] = {"abs": np.abs, "sqrt": np.sqrt, "not": np.invert}
"""Operations for which numpy gives the nearest value in the type of the elements."""
_NEAREST: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "relu": lambda x: np.where(x <= 0, x.dtype.type(0), x),
    "exp": np.exp,
    "ln": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
}
"""Operations computed in float64 and rounded to the type of the elements.

numpy's float64 functions are off by at most one ulp, so about one fp32 result in 2**28 is not
correctly rounded, and it may differ between machines.
"""
_SPAN = 1 << 13
"""float64 elements processed at a time: they stay in the first-level cache."""


def unary(op: Unary, state: State) -> None:
    if op.dst.dtype is FLOAT16:
        patterns = state.read(op.src).view(np.uint16)
        state.write(op.dst, _half_table(op.op, state.overflow).take(patterns, mode="wrap"))
    elif op.op in _EXACT and not (op.src.is_strided or op.dst.is_strided):
        _EXACT[op.op](state.buffers.view(op.src), out=state.buffers.room(op.dst))
    elif op.op in _EXACT:
        state.write(op.dst, _EXACT[op.op](state.read(op.src)))
    elif op.op == "relu":
        state.write(op.dst, _NEAREST["relu"](state.read(op.src)))
    else:
        state.write(op.dst, _from_float64(op.op, state.read(op.src)))


def _from_float64(op: str, values: Array) -> Array:
    """fp32 *values*, computed in float64 and rounded to fp32."""
    found = np.empty(values.shape, np.float32)
    flat, out = values.reshape(-1), found.reshape(-1)
    for start in range(0, flat.size, _SPAN):
        part = slice(start, start + _SPAN)
        out[part] = _NEAREST[op](flat[part].astype(np.float64))
    return found


@lru_cache
def _half_table(op: str, overflow: Overflow) -> Array:
    """`(65536,)`: *op* of each fp16 pattern. If it saturates, infinity is 65504 and NaN 0.

    The latter is documented for Abs (asc-devkit, Memory矢量计算接口边界值汇总.md) and assumed for
    the others.
    """
    every = np.arange(1 << 16).astype(np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        nearest = _NEAREST[op](every.astype(np.float64)).astype(np.float16)
    return cast(nearest.astype(np.float32), FLOAT16, "rint", overflow)


def _multiply_add(a: Array, b: Array, c: Array, dtype: DType, state: State) -> Array:
    """`a x b + c`, with the product rounded first to *dtype*, the type of *c*."""
    if dtype is FLOAT32:
        # The product of two float16 is exact.
        return np.asarray(np.multiply(a, b, dtype=np.float32) + c)
    product = _rounded("mul", a, b, dtype, state)
    return _rounded("add", product, c, dtype, state)


def axpy(op: Axpy, state: State) -> None:
    scalar = state.scalar(op.scalar, op.src.dtype)
    operands = state.read(op.src), scalar, state.read(op.dst)
    state.write(op.dst, _multiply_add(*operands, op.dst.dtype, state))


def mul_add_dst(op: MulAddDst, state: State) -> None:
    is_plain = op.form == "mul_add_dst" and op.dst.dtype is FLOAT32
    if is_plain and not any(x.is_ragged for x in (op.a, op.b, op.dst)):
        # The product of two float16 is exact.
        product = _wide(op.a, state)
        product *= _wide(op.b, state)
        total = state.buffers.view(op.dst)
        total += product.reshape(total.shape)
        return
    a, b, dst = state.read(op.a), state.read(op.b), state.read(op.dst)
    second, third = (b, dst) if op.form == "mul_add_dst" else (dst, b)
    found = _multiply_add(a, second, third, op.dst.dtype, state)
    state.write(op.dst, _positive(found) if op.form == "mul_add_relu" else found)


def _wide(local: Local, state: State) -> Array:
    """The elements of *local* in order as fp32, as a new array."""
    view = state.buffers.view(local)
    if not local.is_strided:
        return view.copy() if local.dtype is FLOAT32 else cast(view, FLOAT32)
    # Blocks that are read repeatedly are widened once.
    once = view[..., :1, :, :] if local.repeat_stride == 0 else view
    once = once[..., :1, :] if local.block_stride == 0 else once
    blocks = np.empty(once.shape, view.dtype)
    copy_blocks(blocks, once, once.shape)
    wide = blocks if local.dtype is FLOAT32 else cast(blocks, FLOAT32)
    if once.size < view.size:
        block = np.dtype(f"V{wide.itemsize * wide.shape[-1]}")
        wide = np.broadcast_to(wide.view(block), (*view.shape[:-1], 1)).copy().view(np.float32)
    return wide.reshape(*state.lead, -1)
