"""The scalar pipe: one element at a time, or all iterations of a loop at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from npusim.data.dtypes import FLOAT16, INT32, Array, DType, Overflow, cast
from npusim.isa import (
    Local,
    ScalarAlu,
    ScalarLoad,
    ScalarLoadGlobal,
    ScalarLoop,
    ScalarStore,
    ScalarStoreGlobal,
    Trap,
)
from npusim.values.semantics.copies import windows
from npusim.values.semantics.state import State

__all__ = [
    "scalar_alu",
    "scalar_load",
    "scalar_load_global",
    "scalar_loop",
    "scalar_store",
    "scalar_store_global",
    "trap",
]


def _elements(first: Local, step_bytes: int, rounds: int, state: State) -> Array:
    """`(rounds,)` elements *step_bytes* apart, or `(1,)` without a step; floats as their bits.

    Lanes come first.
    """
    if rounds == 1 or not step_bytes:
        element = state.buffers.view(first)[..., :1]
        return element.view(_bits(first.dtype))
    swept = ScalarLoop(rounds, ()).swept(first, step_bytes)
    window = state.buffers.view(swept.as_dtype(first.dtype)).view(_bits(first.dtype))
    return as_strided(window, (*state.lead, rounds), (*window.strides[:-1], step_bytes))


@cache
def _bits(dtype: DType) -> np.dtype[Any]:
    """The integer type with the bits of an element."""
    return np.dtype(f"u{dtype.numpy.itemsize}") if dtype.is_float else dtype.numpy


def scalar_load(op: ScalarLoad, state: State, rounds: int = 1) -> None:
    values = _elements(op.src, op.step_bytes, rounds, state)
    state.registers[op.dst] = values.astype(np.int64)


def scalar_load_global(op: ScalarLoadGlobal, state: State) -> None:
    # (1,), lanes first.
    raw = np.ascontiguousarray(np.stack([*windows(op.src, state)]).reshape(*state.lead, -1))
    state.registers[op.dst] = raw.view(_bits(op.dtype)).astype(np.int64)


def scalar_store(op: ScalarStore, state: State, rounds: int = 1) -> None:
    elements = _elements(op.dst, op.step_bytes, rounds, state)
    # Without a step the value of the last iteration remains.
    values = state.registers[op.src] if op.step_bytes else state.registers[op.src][..., -1:]
    elements[...] = values.astype(elements.dtype)


def scalar_store_global(op: ScalarStoreGlobal, state: State) -> None:
    values = np.broadcast_to(state.registers[op.src][..., -1:], (*state.lead, 1))
    raw = np.ascontiguousarray(values.astype(_bits(op.dtype))).view(np.uint8)
    found = windows(op.dst, state)
    if not state.lead:
        found = [np.asarray(found)]
    for own, window in zip(raw.reshape(len(found), -1), found, strict=True):
        window[...] = own


def _logical_shift_right(a: Array, b: Array) -> Array:
    return np.asarray((a.view(np.uint64) >> b.astype(np.uint64)).view(np.int64))


def _f32_to_i32(bits: Array) -> Array:
    return cast(bits.astype(np.uint32).view(np.float32), INT32, "rint").astype(np.int64)


def _i32_to_f32(values: Array) -> Array:
    return values.astype(np.int32).astype(np.float32).view(np.uint32).astype(np.int64)


def _f32(calculate: np.ufunc) -> Callable[[Array, Array, Array], Array]:
    """*calculate*, of one or two fp32 operands, applied to their bits."""

    def on_bits(a: Array, b: Array, _: Array) -> Array:
        operands = [x.astype(np.uint32).view(np.float32) for x in (a, b)][: calculate.nin]
        found = np.asarray(calculate(*operands))
        return found.view(np.uint32).astype(np.int64)

    return on_bits


def _f32_lt(a: Array, b: Array) -> Array:
    less = a.astype(np.uint32).view(np.float32) < b.astype(np.uint32).view(np.float32)
    return less.astype(np.int64)


def _f16_add(a: Array, b: Array, overflow: Overflow) -> Array:
    wide = [x.astype(np.uint16).view(np.float16).astype(np.float32) for x in (a, b)]
    total = cast(wide[0] + wide[1], FLOAT16, "rint", overflow)
    return total.view(np.uint16).astype(np.int64)


def _f16_to_f32(bits: Array) -> Array:
    wide = bits.astype(np.uint16).view(np.float16).astype(np.float32)
    return wide.view(np.uint32).astype(np.int64)


def _f32_to_f16(bits: Array, overflow: Overflow) -> Array:
    half = cast(bits.astype(np.uint32).view(np.float32), FLOAT16, "rint", overflow)
    return half.view(np.uint16).astype(np.int64)


_ALU: dict[str, Callable[[Array, Array, Array], Array]] = {
    "add": lambda a, b, _: a + b,
    "sub": lambda a, b, _: a - b,
    "mul": lambda a, b, _: a * b,
    "and": lambda a, b, _: a & b,
    "or": lambda a, b, _: a | b,
    "shl": lambda a, b, _: a << b,
    "shr": lambda a, b, _: _logical_shift_right(a, b),
    "min": lambda a, b, _: np.minimum(a, b),
    "max": lambda a, b, _: np.maximum(a, b),
    "eq": lambda a, b, _: (a == b).astype(np.int64),
    "lt": lambda a, b, _: (a < b).astype(np.int64),
    "select": lambda a, b, c: np.where(a != 0, b, c),
    "f32_to_i32": lambda a, _, __: _f32_to_i32(a),
    "i32_to_f32": lambda a, _, __: _i32_to_f32(a),
    "f32_add": _f32(np.add),
    "f32_sub": _f32(np.subtract),
    "f32_mul": _f32(np.multiply),
    "f32_div": _f32(np.divide),
    "f32_sqrt": _f32(np.sqrt),
    "f32_max": _f32(np.maximum),
    "f32_min": _f32(np.minimum),
    "f32_lt": lambda a, b, _: _f32_lt(a, b),
    "f16_to_f32": lambda a, _, __: _f16_to_f32(a),
}


def scalar_alu(op: ScalarAlu, state: State) -> None:
    a, b, c = (_integer(x, state) for x in (op.a, op.b, op.c))
    if op.op == "f16_add":
        state.registers[op.dst] = _f16_add(a, b, state.overflow)
    elif op.op == "f32_to_f16":
        state.registers[op.dst] = _f32_to_f16(a, state.overflow)
    else:
        state.registers[op.dst] = _ALU[op.op](a, b, c)


def _integer(operand: int | str, state: State) -> NDArray[np.int64]:
    if isinstance(operand, str):
        return state.registers[operand]
    return np.array([operand], np.int64)


def trap(op: Trap, state: State) -> None:
    is_set = _integer(op.when, state) != 0
    if np.any(is_set):
        state.stop(is_set.any(axis=-1), op.reason)


def scalar_loop(op: ScalarLoop, state: State) -> None:
    # Iterations are independent, so all of them run at once, micro-op by micro-op.
    for part in op.body:
        match part:
            case ScalarLoad():
                scalar_load(part, state, op.count)
            case ScalarStore():
                scalar_store(part, state, op.count)
            case ScalarAlu():
                scalar_alu(part, state)
            case Trap():
                trap(part, state)
    for part in op.body:
        if isinstance(part, ScalarLoad | ScalarAlu):
            # After the loop a register holds the value of the last iteration.
            state.registers[part.dst] = state.registers[part.dst][..., -1:]
