"""The vector pipe: one IEEE operation an element and a micro-op."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from npusim.data.dtypes import (
    FLOAT16,
    FLOAT32,
    INT4,
    Array,
    DType,
    Overflow,
    Whole,
    cast,
    pack_int4,
)
from npusim.isa import (
    Axpy,
    Binary,
    BinaryScalar,
    Cast,
    Local,
    MulAddDst,
    Unary,
)
from npusim.values.buffers import WholeTile
from npusim.values.runs import FIELDS, Accumulated, Swept
from npusim.values.semantics.rearranging import copy_blocks
from npusim.values.semantics.state import State

__all__ = [
    "accumulate",
    "axpy",
    "binary",
    "binary_scalar",
    "convert",
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
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def _compute(op: str, dst: Local, a: Local, b: Array, state: State) -> None:
    if dst.dtype is FLOAT32 and not (dst.is_strided or a.is_strided):
        _ARITHMETIC[op](state.buffers.view(a), b, out=state.buffers.room(dst))
    else:
        state.write(dst, _rounded(op, state.read(a), b, dst.dtype, state))


def _rounded(op: str, a: Array, b: Array, dtype: DType, state: State) -> Array:
    """`a op b`, rounded once to *dtype*, of which both are."""
    if dtype is FLOAT32 or not dtype.is_float:
        return np.asarray(_ARITHMETIC[op](a, b))
    wide = _ARITHMETIC[op](a.astype(np.float32), b.astype(np.float32))
    return cast(wide, dtype, "rint", state.overflow)


def binary(op: Binary, state: State) -> None:
    _compute(op.op, op.dst, op.a, state.read(op.b), state)


def accumulate(op: Accumulated, state: State) -> None:
    """Rows come as `(..., count, elements)`."""
    calculate: Any = _ARITHMETIC[op.first.op]
    total = state.buffers.view(op.first.dst)
    rows = state.buffers.swept(op.first.b, op.count, op.step_bytes)
    # numpy begins with the first row, so the total goes there meanwhile.
    first = rows[..., 0, :]
    kept = first.copy()
    calculate(total, kept, out=first)
    calculate.reduce(rows, axis=-2, out=total)
    first[...] = kept


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
        _ARITHMETIC[first.op](src, views[1], out=dst)
    elif isinstance(first, Binary):
        dst[...] = _rounded(first.op, src, views[1], first.dst.dtype, state)
    elif strided:
        copy_blocks(dst, src, dst.shape)
    else:
        dst[...] = src


def binary_scalar(op: BinaryScalar, state: State) -> None:
    _compute(op.op, op.dst, op.a, state.scalar(op.scalar, op.dst.dtype), state)


_EXACT: dict[str, Callable[..., Any]] = {"abs": np.abs, "sqrt": np.sqrt, "not": np.invert}
"""Where numpy gives the nearest number in the type of the elements."""
_NEAREST: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "relu": lambda x: np.where(x <= 0, x.dtype.type(0), x),
    "exp": np.exp,
    "ln": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
}
"""What is rounded to the type of the elements from float64.

numpy's float64 functions are off by an ulp at most, so that fp32 comes out otherwise than correctly
rounded once in 2**28 numbers or so, and then maybe otherwise on another machine.
"""
_SPAN = 1 << 13
"""Elements at a time that are as wide as that: they stay in the first cache."""


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
    """fp32 *values*, calculated in float64 and rounded to fp32."""
    found = np.empty(values.shape, np.float32)
    flat, out = values.reshape(-1), found.reshape(-1)
    for start in range(0, flat.size, _SPAN):
        part = slice(start, start + _SPAN)
        out[part] = _NEAREST[op](flat[part].astype(np.float64))
    return found


@lru_cache
def _half_table(op: str, overflow: Overflow) -> Array:
    """`(65536,)`: *op* of each fp16 pattern. Saturating, an infinity is 65504 and NaN 0.

    The latter stands in asc-devkit, Memory矢量计算接口边界值汇总.md, for Abs; of the others it is
    assumed.
    """
    every = np.arange(1 << 16).astype(np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        nearest = _NEAREST[op](every.astype(np.float64)).astype(np.float16)
    return cast(nearest.astype(np.float32), FLOAT16, "rint", overflow)


def _multiply_add(dst: Local, a: Array, b: Array, state: State) -> None:
    """`dst = a x b + dst`, the product rounded to the type of *dst* first."""
    before = state.read(dst)
    if dst.dtype is FLOAT32:
        # Of float16 the product is exact.
        state.write(dst, np.multiply(a, b, dtype=np.float32) + before)
        return
    product = cast(a.astype(np.float32) * b.astype(np.float32), dst.dtype, "rint", state.overflow)
    total = product.astype(np.float32) + before.astype(np.float32)
    state.write(dst, cast(total, dst.dtype, "rint", state.overflow))


def axpy(op: Axpy, state: State) -> None:
    scalar = state.scalar(op.scalar, op.dst.dtype)
    _multiply_add(op.dst, state.read(op.src), scalar, state)


def mul_add_dst(op: MulAddDst, state: State) -> None:
    _multiply_add(op.dst, state.read(op.a), state.read(op.b), state)
