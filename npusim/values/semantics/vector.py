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
    BLOCK_BYTES,
    REPEAT_BYTES,
    Axpy,
    Binary,
    BinaryScalar,
    BlockReduce,
    Broadcast,
    Cast,
    Compare,
    CompareOp,
    CompareScalar,
    Copy,
    Duplicate,
    Fold,
    Gather,
    Local,
    MulAddDst,
    Reduce,
    Select,
    Transpose,
    Unary,
    WholeReduce,
)
from npusim.values.buffers import OutOfBufferError, WholeTile
from npusim.values.runs import FIELDS, Accumulated, Swept
from npusim.values.semantics.state import State

__all__ = [
    "accumulate",
    "axpy",
    "binary",
    "binary_scalar",
    "block_reduce",
    "broadcast",
    "compare",
    "compare_scalar",
    "convert",
    "copy",
    "duplicate",
    "fold",
    "gather",
    "mul_add_dst",
    "reduce",
    "select",
    "sweep",
    "transpose",
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
        _copy_blocks(dst, src, dst.shape)
    else:
        dst[...] = src


def _scalar_of(scalar: float | str, dtype: DType, state: State) -> Array:
    """`(1,)`: a number, or the element whose bits a register holds; lanes first if they differ."""
    if isinstance(scalar, str):
        bits = state.registers[scalar].astype(f"u{dtype.numpy.itemsize}")
        return bits.view(dtype.numpy)
    return np.array([scalar]).astype(dtype.numpy)


def binary_scalar(op: BinaryScalar, state: State) -> None:
    _compute(op.op, op.dst, op.a, _scalar_of(op.scalar, op.dst.dtype, state), state)


def duplicate(op: Duplicate, state: State) -> None:
    scalar = _scalar_of(op.scalar, op.dst.dtype, state)
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


def reduce(op: Reduce, state: State) -> None:
    extreme = np.min if op.op == "min" else np.max
    dst = state.buffers.view(op.dst)
    first = dst[..., 0, 0, :] if op.dst.is_strided else dst
    first[..., 0] = extreme(state.read(op.src), axis=-1)


def _sum(a: Array, b: Array, state: State) -> Array:
    """`a + b` of either float type, each rounded once."""
    if a.dtype == np.float32:
        return np.asarray(a + b)
    return cast(a.astype(np.float32) + b.astype(np.float32), FLOAT16, "rint", state.overflow)


def _tree(op: str, values: Array, state: State) -> Array:
    """`(..., power of two)` -> `(...)`: neighbours first, then neighbours of these, and so on."""
    if op != "sum":
        return np.asarray((np.min if op == "min" else np.max)(values, axis=-1))
    while values.shape[-1] > 1:
        values = _sum(values[..., 0::2], values[..., 1::2], state)
    return values[..., 0]


def whole_reduce(op: WholeReduce, state: State) -> None:
    repeats = state.read(op.src).reshape(*state.lead, op.dst.count, -1)[..., : op.mask]
    lanes = REPEAT_BYTES // op.src.dtype.numpy.itemsize
    if op.op == "sum" and repeats.shape[-1] < lanes:
        whole = np.zeros((*repeats.shape[:-1], lanes), repeats.dtype)
        whole[..., : repeats.shape[-1]] = repeats
        repeats = whole
    state.write(op.dst, _tree(op.op, repeats, state))


def fold(op: Fold, state: State) -> None:
    repeats = state.read(op.src).reshape(*state.lead, -1, op.dst.count)
    found = state.read(op.dst)
    if op.op == "add":
        for index in range(repeats.shape[-2]):
            found = _sum(found, repeats[..., index, :], state)
    else:
        extreme = np.minimum if op.op == "min" else np.maximum
        found = extreme(found, extreme.reduce(repeats, axis=-2))
    state.write(op.dst, found)


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
        _copy_blocks(dst, src, strided[0].shape)
    else:
        state.write(op.dst, state.read(op.src))


def _copy_blocks(dst: Array, src: Array, shape: tuple[int, ...]) -> None:
    """Copy *src* to *dst*, both seen as *shape*, `(..., elements of a block)`."""
    # Each block as one element.
    dst.reshape(shape).view(_BLOCK)[...] = src.reshape(shape).view(_BLOCK)


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
    scalar = _scalar_of(op.scalar, op.dst.dtype, state)
    _multiply_add(op.dst, state.read(op.src), scalar, state)


def mul_add_dst(op: MulAddDst, state: State) -> None:
    _multiply_add(op.dst, state.read(op.a), state.read(op.b), state)


def block_reduce(op: BlockReduce, state: State) -> None:
    values = state.read(op.src)
    blocks = values.reshape(*state.lead, -1, BLOCK_BYTES // op.src.dtype.numpy.itemsize)
    state.write(op.dst, _tree(op.op, blocks, state))


# ---- masks ----

_COMPARE: dict[str, Callable[..., Any]] = {
    "lt": np.less,
    "gt": np.greater,
    "eq": np.equal,
    "le": np.less_equal,
    "ge": np.greater_equal,
    "ne": np.not_equal,
}


def compare(op: Compare, state: State) -> None:
    holds = _holds(op.op, state.read(op.a), state.read(op.b))
    state.write(op.dst, np.packbits(holds, axis=-1, bitorder="little"))


def compare_scalar(op: CompareScalar, state: State) -> None:
    holds = _holds(op.op, state.read(op.a), _scalar_of(op.scalar, op.a.dtype, state))
    state.write(op.dst, np.packbits(holds, axis=-1, bitorder="little"))


def _holds(op: CompareOp, a: Array, b: Array) -> Array:
    if a.dtype == np.float16:
        # numpy compares numbers of fp16 one by one, whole numbers many at once.
        keys = _order(a), _order(b)
        if keys[0] is not None and keys[1] is not None:
            a, b = keys[0], keys[1]
    return np.asarray(_COMPARE[op](a, b))


_MAGNITUDE_OF_16_BITS = np.int16(0x7FFF)
_INFINITY_OF_16_BITS = 0x7C00


def _order(values: Array) -> Array | None:
    """Whole numbers in the order of fp16 *values*, both zeros 0; None where one is NaN."""
    patterns = values.view(np.int16)
    order = patterns & _MAGNITUDE_OF_16_BITS
    if order.max(initial=0) > _INFINITY_OF_16_BITS:
        return None
    signs = patterns >> 15
    order ^= signs
    order -= signs
    return np.asarray(order)


def select(op: Select, state: State) -> None:
    is_set = np.unpackbits(state.read(op.mask), axis=-1, count=op.dst.count, bitorder="little")
    a = state.read(op.a)
    b = state.read(op.b) if isinstance(op.b, Local) else np.full(1, op.b, a.dtype)
    # As bits, without a branch for each element.
    bits = f"u{a.itemsize}"
    mask = np.negative(is_set, dtype=bits, casting="unsafe")
    mask &= a.view(bits) ^ b.view(bits)
    mask ^= b.view(bits)
    state.write(op.dst, mask.view(a.dtype))


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
