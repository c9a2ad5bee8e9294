"""The vector pipe: comparisons, and what is selected by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npusim.data.dtypes import Array
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
        state.write(op.dst, np.packbits(holds, axis=-1, bitorder="little"))
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
    """The bits of the register, 0 where nobody has set them."""
    if state.cmp_mask is None:
        state.cmp_mask = np.zeros((*state.lead, CMP_MASK_BYTES), np.uint8)
    return state.cmp_mask


def compare_scalar(op: CompareScalar, state: State) -> None:
    holds = _holds(op.op, state.read(op.a), state.scalar(op.scalar, op.a.dtype))
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
    is_set = _is_set(op, state)
    a = state.read(op.a)
    b = state.read(op.b) if isinstance(op.b, Local) else np.full(1, op.b, a.dtype)
    # As bits, without a branch for each element.
    bits = f"u{a.itemsize}"
    mask = np.negative(is_set, dtype=bits, casting="unsafe")
    mask &= a.view(bits) ^ b.view(bits)
    mask ^= b.view(bits)
    state.write(op.dst, mask.view(a.dtype))


def _is_set(op: Select, state: State) -> Array:
    """The bit that decides on each element of *op*, `(..., count)`, 0 or 1."""
    packed = state.read(op.mask) if isinstance(op.mask, Local) else _register(state)
    if not op.dst.is_strided and not op.is_repeated:
        return np.unpackbits(packed, axis=-1, count=op.dst.count, bitorder="little")
    every = np.unpackbits(packed, axis=-1, bitorder="little")
    numbers = op.bits % op.repeat_lanes if op.is_repeated else op.bits
    return every[..., numbers]
