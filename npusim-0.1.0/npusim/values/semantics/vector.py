"""The vector pipe: one IEEE operation an element and a micro-op."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from npusim.values.buffers import Elements, MaskTile, OutOfBufferError, WholeTile
from npusim.values.runs import FIELDS, Accumulated, Halved, Swept
from npusim.values.semantics.state import Bytes, State

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
    "halve",
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
        _ARITHMETIC[op](state.read(a), b, out=state.buffers.room(dst))
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


class _HalvedTile(Elements):
    """A row that is halved when somebody reads it, but for its extreme."""

    def __init__(self, halved: Halved, row: Array) -> None:
        super().__init__(halved.row)
        self.ops, self.row = halved.ops, row

    def write(self, raw: Bytes) -> None:
        for op in self.ops:
            a, b = (raw[..., x.offset_bytes : x.end_bytes].view(np.float32) for x in (op.a, op.b))
            _ARITHMETIC[op.op](a, b, out=a)

    def extreme(self, op: WholeReduce) -> Array | None:
        """What *op* finds in what is left, `(..., 1)`; None where that depends on the order."""
        last = self.ops[-1]
        if (op.op, op.src, op.dst.count, op.mask) != (last.op, last.dst, 1, None):
            return None
        found = (np.min if op.op == "min" else np.max)(self.row, axis=-1, keepdims=True)
        # Two zeros differ in their signs, and two NaN in their bits.
        return None if (found == 0).any() or np.isnan(found).any() else np.asarray(found)


def halve(op: Halved, state: State) -> None:
    state.buffers.add_tile(op.row.buffer, _HalvedTile(op, state.buffers.view(op.row)))


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
    tile = state.buffers.tile(op.src.buffer, op.src.offset_bytes)
    extreme = tile.extreme(op) if isinstance(tile, _HalvedTile) else None
    if extreme is not None:
        state.write(op.dst, extreme)
        return
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
        state.write(dst, a * b + before)
    else:
        product = _rounded("mul", a, b, dst.dtype, state)
        state.write(dst, _rounded("add", product, before, dst.dtype, state))


def axpy(op: Axpy, state: State) -> None:
    scalar = _scalar_of(op.scalar, op.dst.dtype, state)
    _multiply_add(op.dst, state.read(op.src), scalar, state)


def mul_add_dst(op: MulAddDst, state: State) -> None:
    if op.dst.dtype is not FLOAT32:
        _multiply_add(op.dst, state.read(op.a), state.read(op.b), state)
        return
    # Of float16 the product is exact.
    product = _wide(op.a, state)
    product *= _wide(op.b, state)
    total = state.buffers.view(op.dst)
    total += product.reshape(total.shape)


def _wide(local: Local, state: State) -> Array:
    """The elements of *local* in order as fp32, as an array of their own."""
    view = state.buffers.view(local)
    if not local.is_strided:
        return view.copy() if local.dtype is FLOAT32 else cast(view, FLOAT32)
    # Blocks that are read again and again become wide once.
    once = view[..., :1, :, :] if local.repeat_stride == 0 else view
    once = once[..., :1, :] if local.block_stride == 0 else once
    blocks = np.empty(once.shape, view.dtype)
    _copy_blocks(blocks, once, once.shape)
    wide = blocks if local.dtype is FLOAT32 else cast(blocks, FLOAT32)
    if once.size < view.size:
        block = np.dtype(f"V{wide.itemsize * wide.shape[-1]}")
        wide = np.broadcast_to(wide.view(block), (*view.shape[:-1], 1)).copy().view(np.float32)
    return wide.reshape(*state.lead, -1)


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
    _write_mask(op.dst, _holds(op.op, state.read(op.a), state.read(op.b)), state)


def compare_scalar(op: CompareScalar, state: State) -> None:
    scalar = _scalar_of(op.scalar, op.a.dtype, state)
    _write_mask(op.dst, _holds(op.op, state.read(op.a), scalar), state)


def _write_mask(dst: Local, holds: Array, state: State) -> None:
    """A bit for each of *holds*, which the next Select takes as they are."""
    if dst.is_strided or holds.shape[-1] != 8 * dst.count:
        state.write(dst, np.packbits(holds, axis=-1, bitorder="little"))
    else:
        state.buffers.add_tile(dst.buffer, MaskTile(dst, holds))


def _holds(op: CompareOp, a: Array, b: Array) -> Array:
    if a.dtype == np.float16:
        # numpy compares numbers of fp16 one by one, whole numbers many at once.
        keys = _order(a), _order(b)
        if keys[0] is not None and keys[1] is not None:
            a, b = keys[0], keys[1]
    return np.asarray(_COMPARE[op](a, b))


_MAGNITUDE_OF_16_BITS = np.int16(0x7FFF)
_NEGATIVE_ZERO = -(2**15)
_INFINITY, _NEGATIVE_INFINITY = 0x7C00, 0xFC00
"""Patterns of fp16: those of the same sign that are greater are NaN."""


def _order(values: Array) -> Array | None:
    """Whole numbers in the order of fp16 *values*, both zeros 0; None where one is NaN."""
    patterns = values.view(np.int16)
    if patterns.max(initial=0) > _INFINITY:
        return None
    if values.view(np.uint16).max(initial=0) > _NEGATIVE_INFINITY:
        return None
    order = patterns >> 15
    order &= _MAGNITUDE_OF_16_BITS
    order ^= patterns
    if patterns.min(initial=0) == _NEGATIVE_ZERO:
        np.copyto(order, 0, where=order == -1)
    return np.asarray(order)


def select(op: Select, state: State) -> None:
    holds, a = _mask(op, state), state.read(op.a)
    whole = None if isinstance(op.b, Local) or op.dst.is_strided else _one_of_two(holds, a, op.b)
    if whole is not None:
        state.buffers.add_tile(op.dst.buffer, WholeTile(op.dst, whole))
        return
    b = state.read(op.b) if isinstance(op.b, Local) else np.full(1, op.b, a.dtype)
    is_apart = op.a.end_bytes <= op.dst.offset_bytes or op.dst.end_bytes <= op.a.offset_bytes
    if b.size == 1 and is_apart and not op.dst.is_strided and _are_few(holds):
        found = state.buffers.room(op.dst)
        found[...] = b
        np.copyto(found, a, where=holds)
        return
    # As bits, without a branch for each element.
    bits = f"u{a.itemsize}"
    mask = np.negative(holds.view(np.uint8), dtype=bits, casting="unsafe")
    mask &= a.view(bits) ^ b.view(bits)
    mask ^= b.view(bits)
    state.write(op.dst, mask.view(a.dtype))


_FEW = 1 / 16
"""So few of all are worth a branch for each element (measured)."""


def _are_few(holds: NDArray[np.bool_]) -> bool:
    return bool(np.count_nonzero(holds) <= _FEW * holds.size)


def _mask(op: Select, state: State) -> NDArray[np.bool_]:
    """Whether the bit of each element of *op* is set."""
    tile, count = state.buffers.tile(op.mask.buffer, op.mask.offset_bytes), op.dst.count
    if isinstance(tile, MaskTile) and tile.holds.shape[-1] >= count:
        return tile.holds[..., :count]
    bits = np.unpackbits(state.read(op.mask), axis=-1, count=count, bitorder="little")
    return bits.view(np.bool_)


def _one_of_two(holds: NDArray[np.bool_], a: Array, b: float) -> Whole | None:
    """1 where *holds*, else 0, if that is what *a* and *b* are; None otherwise."""
    if b != 0 or math.copysign(1, b) < 0 or a.dtype not in _ONES:
        return None
    bits = a.view(f"u{a.itemsize}")
    one = _ONES[a.dtype]
    # One look at the first spares the others as a rule.
    if bits.flat[0] != one or not (bits == one).all():
        return None
    return Whole(holds.view(np.int8), 0, 1)


_ONES = {
    dtype.numpy: np.ones(1, dtype.numpy).view(f"u{dtype.numpy.itemsize}")[0]
    for dtype in (FLOAT16, FLOAT32)
}
"""The bits of 1."""


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
