"""The vector pipe: comparisons, and selection by their results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import FLOAT16, FLOAT32, Array, Whole
from npusim.isa import (
    CMP_MASK_BYTES,
    Compare,
    CompareOp,
    CompareScalar,
    GetCmpMask,
    Local,
    Select,
    SetCmpMask,
    lanes,
)
from npusim.values.buffers import MaskTile, WholeTile
from npusim.values.semantics.half_order import order
from npusim.values.semantics.rows import SelectedTile, WidenedTile
from npusim.values.semantics.state import State

__all__ = ["compare", "compare_scalar", "get_cmp_mask", "select", "set_cmp_mask"]

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
    if isinstance(op.dst, Local):
        _write_mask(op.dst, holds, state)
    else:
        bits = np.zeros((*state.lead, 8 * CMP_MASK_BYTES), np.bool_)
        bits[..., : op.a.count] = holds
        if op.a.mask is not None:
            bits[...] = False
            bits[..., lanes(op.a.mask)] = holds
        state.cmp_mask = np.packbits(bits, axis=-1, bitorder="little")


def get_cmp_mask(op: GetCmpMask, state: State) -> None:
    state.write(op.dst, _register(state))


def set_cmp_mask(op: SetCmpMask, state: State) -> None:
    state.cmp_mask = state.read(op.src).copy()


def _register(state: State) -> Array:
    """The bits of the compare mask register, 0 where it has not been set."""
    if state.cmp_mask is None:
        state.cmp_mask = np.zeros((*state.lead, CMP_MASK_BYTES), np.uint8)
    return state.cmp_mask


def compare_scalar(op: CompareScalar, state: State) -> None:
    scalar = state.scalar(op.scalar, op.a.dtype)
    tile = state.buffers.tile(op.a.buffer, op.a.offset_bytes)
    if isinstance(tile, WidenedTile) and tile.place == op.a:
        half = scalar.astype(np.float16)
        if (half == scalar).all():
            _write_mask(op.dst, _holds(op.op, tile.halves, half), state)
            return
    _write_mask(op.dst, _holds(op.op, state.read(op.a), scalar), state)


def _write_mask(dst: Local, holds: Array, state: State) -> None:
    """Write one bit for each of *holds*; the next Select reads them without unpacking."""
    if dst.is_strided or holds.shape[-1] != 8 * dst.count:
        state.write(dst, np.packbits(holds, axis=-1, bitorder="little"))
    else:
        state.buffers.add_tile(dst.buffer, MaskTile(dst, holds))


def _holds(op: CompareOp, a: Array, b: Array) -> Array:
    if a.dtype == np.float16:
        if op == "eq" and b.shape[-1] == 1 and ((b == b) & (b != 0)).all():
            # Without NaN and zeros, equal values have equal patterns.
            return np.asarray(a.view(np.int16) == b.view(np.int16))
        # numpy compares float16 one by one, but vectorises integers.
        a, b = order(a, b) or (a, b)
    return np.asarray(_COMPARE[op](a, b))


def select(op: Select, state: State) -> None:
    holds, a = _is_set(op, state), state.read(op.a)
    whole = None if isinstance(op.b, Local) or op.dst.is_strided else _one_of_two(holds, a, op.b)
    if whole is not None:
        state.buffers.add_tile(op.dst.buffer, WholeTile(op.dst, whole))
        return
    b = state.read(op.b) if isinstance(op.b, Local) else np.full(1, op.b, a.dtype)
    if b.size == 1 and op.dst.dtype is FLOAT32 and not op.dst.is_strided and _are_few(holds):
        state.buffers.add_tile(op.dst.buffer, SelectedTile(op.dst, holds, a, b))
        return
    # Bitwise, without a branch for each element.
    bits = f"u{a.itemsize}"
    mask = np.negative(holds.view(np.uint8), dtype=bits, casting="unsafe")
    mask &= a.view(bits) ^ b.view(bits)
    mask ^= b.view(bits)
    state.write(op.dst, mask.view(a.dtype))


_SELDOM = 1 / 16
"""Share below which a branch for each element is faster (measured)."""


def _are_few(holds: NDArray[np.bool_]) -> bool:
    return bool(np.count_nonzero(holds) <= _SELDOM * holds.size)


def _is_set(op: Select, state: State) -> NDArray[np.bool_]:
    """Whether the bit for each element of *op* is set, `(..., count)`."""
    count, is_plain = op.dst.count, not op.dst.is_strided and not op.is_repeated
    if isinstance(op.mask, Local) and is_plain:
        tile = state.buffers.tile(op.mask.buffer, op.mask.offset_bytes)
        if isinstance(tile, MaskTile) and tile.holds.shape[-1] >= count:
            return tile.holds[..., :count]
    packed = state.read(op.mask) if isinstance(op.mask, Local) else _register(state)
    if is_plain:
        return np.unpackbits(packed, axis=-1, count=count, bitorder="little").view(np.bool_)
    every = np.unpackbits(packed, axis=-1, bitorder="little").view(np.bool_)
    return every[..., op.bits % op.repeat_lanes if op.is_repeated else op.bits]


def _one_of_two(holds: NDArray[np.bool_], a: Array, b: float) -> Whole | None:
    """1 where *holds*, else 0, if *a* is 1 and *b* is 0; None otherwise."""
    if b != 0 or math.copysign(1, b) < 0 or a.dtype not in _ONES:
        return None
    bits = a.view(f"u{a.itemsize}")
    one = _ONES[a.dtype]
    # Checking the first usually avoids checking the others.
    if bits.flat[0] != one or not (bits == one).all():
        return None
    return Whole(holds.view(np.int8), 0, 1)


_ONES = {
    dtype.numpy: np.ones(1, dtype.numpy).view(f"u{dtype.numpy.itemsize}")[0]
    for dtype in (FLOAT16, FLOAT32)
}
"""The bit pattern of 1."""
