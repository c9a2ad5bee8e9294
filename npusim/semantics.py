"""What each micro-op computes, bit for bit: the living definition.

One function a micro-op, each on the :class:`State` of one core. Nothing here knows of time. Every
arithmetic step is one IEEE operation in the element type: fp32 directly; fp16 and bf16 in fp32 and
then rounded, which gives the same bits (an fp32 significand has more than twice their bits and
two). Source of the rules: asc-devkit, the API pages of each instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from npusim.buffers import Buffers, OutOfBufferError
from npusim.dtypes import FLOAT32, INT4, INT32, Array, DType, Overflow, cast, pack_int4, unpack_int4
from npusim.errors import TrapError
from npusim.isa import (
    BLOCK_BYTES,
    Barrier,
    Binary,
    BinaryScalar,
    Broadcast,
    Cast,
    Copy,
    Duplicate,
    Global,
    Load,
    Local,
    MicroOp,
    Reduce,
    ScalarAlu,
    ScalarLoad,
    ScalarLoop,
    ScalarStore,
    SetFlag,
    Store,
    Trap,
    WaitFlag,
)
from npusim.tensor import SLACK_BYTES

__all__ = ["Memory", "State", "run"]

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Memory:
    """What a name of global memory means to one block: a tensor's bytes from an offset on."""

    data: Bytes
    base_bytes: int = 0


@dataclass(slots=True)
class State:
    """Everything a core's micro-ops can read and write."""

    buffers: Buffers
    memories: dict[str, Memory]
    overflow: Overflow = "inf_nan"
    registers: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """Name -> `(1,)`, or `(rounds,)` inside a loop."""


def run(ops: Iterable[MicroOp], state: State) -> None:
    """Execute *ops* in the order given; raises TrapError when one of them traps."""
    with np.errstate(all="ignore"):
        for op in ops:
            _MEANING[type(op)](op, state)


# ---- mte2, mte3 ----


def _bursts(data: Bytes, first: int, burst: int, count: int, step: int) -> Bytes:
    """`(count, burst)` bytes of *data*, rows *step* bytes apart."""
    if count == 1:
        return data[None, first : first + burst]
    return as_strided(data[first:], (count, burst), (step, 1))


def _window(place: Global, state: State, slack_bytes: int = 0) -> Bytes:
    """`(bursts, burst_bytes)` of global memory; a copy, with zeros, where it runs over the end."""
    memory = state.memories[place.name]
    first = memory.base_bytes + place.offset_bytes
    over = memory.base_bytes + place.end_bytes - memory.data.size
    if first < 0 or over > slack_bytes:
        raise OutOfBufferError(
            f"semantics: {place} must lie within the {memory.data.size} bytes of its tensor, "
            f"not reach [{first}, {memory.base_bytes + place.end_bytes}); mend the kernel's tiling"
        )
    data = memory.data
    if over > 0:
        data, first = np.concatenate([data[first:], np.zeros(over, np.uint8)]), 0
    return _bursts(data, first, place.burst_bytes, place.bursts, place.stride_bytes)


def _load(op: Load, state: State) -> None:
    raw = state.buffers.raw(op.dst.buffer)
    burst, count = op.src.burst_bytes, op.src.bursts
    padded = -(-burst // BLOCK_BYTES) * BLOCK_BYTES
    end = op.dst.offset_bytes + (count - 1) * op.pitch_bytes + padded
    if end > raw.size:
        raise OutOfBufferError(
            f"semantics: {op} must end within {raw.size} bytes, not at {end}; use a smaller tile"
        )
    rows = _bursts(raw, op.dst.offset_bytes, padded, count, op.pitch_bytes)
    rows[:, :burst] = _window(op.src, state, SLACK_BYTES)
    if burst < padded:
        rows[:, burst:] = 0


def _store(op: Store, state: State) -> None:
    raw = state.buffers.raw(op.src.buffer)
    burst, count = op.dst.burst_bytes, op.dst.bursts
    _window(op.dst, state)[:] = _bursts(raw, op.src.offset_bytes, burst, count, op.pitch_bytes)


# ---- vector ----


def _write(dst: Local, values: Array, state: State) -> None:
    view = state.buffers.view(dst)
    view[...] = values.reshape(view.shape) if dst.is_strided else values


def _read(src: Local, state: State) -> Array:
    """The elements of *src* in order, int4 unpacked."""
    view = state.buffers.view(src)
    if src.is_strided:
        view = view.reshape(-1)
    return unpack_int4(view)[: src.count] if src.dtype is INT4 else view


def _cast(op: Cast, state: State) -> None:
    values = cast(_read(op.src, state), op.dst.dtype, op.mode, state.overflow)
    _write(op.dst, pack_int4(values) if op.dst.dtype is INT4 else values, state)


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
        _ARITHMETIC[op](state.buffers.view(a), b, out=state.buffers.view(dst))
    elif dst.dtype.is_float:
        wide = _ARITHMETIC[op](_read(a, state).astype(np.float32), b.astype(np.float32))
        narrow = wide if dst.dtype is FLOAT32 else cast(wide, dst.dtype, "rint", state.overflow)
        _write(dst, narrow, state)
    else:
        _write(dst, _ARITHMETIC[op](_read(a, state), b), state)


def _binary(op: Binary, state: State) -> None:
    _compute(op.op, op.dst, op.a, _read(op.b, state), state)


def _scalar_of(scalar: float | str, dtype: DType, state: State) -> Array:
    """`(1,)`: a number, or the element whose bits a register holds."""
    if isinstance(scalar, str):
        bits = state.registers[scalar].astype(f"u{dtype.numpy.itemsize}")
        return bits.view(dtype.numpy)
    return np.array([scalar]).astype(dtype.numpy)


def _binary_scalar(op: BinaryScalar, state: State) -> None:
    _compute(op.op, op.dst, op.a, _scalar_of(op.scalar, op.dst.dtype, state), state)


def _duplicate(op: Duplicate, state: State) -> None:
    state.buffers.view(op.dst)[...] = _scalar_of(op.scalar, op.dst.dtype, state)


def _broadcast(op: Broadcast, state: State) -> None:
    per_block = BLOCK_BYTES // op.dst.dtype.numpy.itemsize
    _write(op.dst, np.repeat(_read(op.src, state), per_block), state)


def _copy(op: Copy, state: State) -> None:
    _write(op.dst, _read(op.src, state), state)


def _reduce(op: Reduce, state: State) -> None:
    extreme = np.min if op.op == "min" else np.max
    state.buffers.view(op.dst).flat[0] = extreme(_read(op.src, state))


# ---- scalar ----


def _elements(first: Local, step_bytes: int, rounds: int, state: State) -> Array:
    """`(rounds,)` elements *step_bytes* apart; floats as their bits."""
    swept = ScalarLoop(rounds, ()).swept(first, step_bytes)
    kind = f"u{first.dtype.numpy.itemsize}" if first.dtype.is_float else first.dtype.numpy
    window = state.buffers.view(swept.as_dtype(first.dtype)).view(kind)
    return as_strided(window, (rounds,), (step_bytes,))


def _scalar_load(op: ScalarLoad, state: State, rounds: int = 1) -> None:
    values = _elements(op.src, op.step_bytes, rounds, state)
    state.registers[op.dst] = values.astype(np.int64)


def _scalar_store(op: ScalarStore, state: State, rounds: int = 1) -> None:
    elements = _elements(op.dst, op.step_bytes, rounds, state)
    elements[...] = state.registers[op.src].astype(elements.dtype)


def _logical_shift_right(a: Array, b: Array) -> Array:
    return np.asarray((a.view(np.uint64) >> b.astype(np.uint64)).view(np.int64))


def _f32_to_i32(bits: Array) -> Array:
    return cast(bits.astype(np.uint32).view(np.float32), INT32, "rint").astype(np.int64)


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
}


def _scalar_alu(op: ScalarAlu, state: State) -> None:
    operands = (_integer(x, state) for x in (op.a, op.b, op.c))
    state.registers[op.dst] = _ALU[op.op](*operands)


def _integer(operand: int | str, state: State) -> NDArray[np.int64]:
    if isinstance(operand, str):
        return state.registers[operand]
    return np.array([operand], np.int64)


def _trap(op: Trap, state: State) -> None:
    if np.any(_integer(op.when, state)):
        raise TrapError(op.reason)


def _scalar_loop(op: ScalarLoop, state: State) -> None:
    # Rounds are independent of each other, so all of them run at once, part by part.
    for part in op.body:
        match part:
            case ScalarLoad():
                _scalar_load(part, state, op.count)
            case ScalarStore():
                _scalar_store(part, state, op.count)
            case ScalarAlu():
                _scalar_alu(part, state)
            case Trap():
                _trap(part, state)
    for part in op.body:
        if isinstance(part, ScalarLoad | ScalarAlu):
            # After the loop a register holds what the last round left.
            state.registers[part.dst] = state.registers[part.dst][-1:]


def _nothing(_: MicroOp, __: State) -> None:
    """Order between pipes moves no values."""


_MEANING: dict[type, Callable[[Any, State], None]] = {
    Load: _load,
    Store: _store,
    Cast: _cast,
    Binary: _binary,
    BinaryScalar: _binary_scalar,
    Duplicate: _duplicate,
    Broadcast: _broadcast,
    Reduce: _reduce,
    Copy: _copy,
    ScalarLoad: _scalar_load,
    ScalarStore: _scalar_store,
    ScalarAlu: _scalar_alu,
    ScalarLoop: _scalar_loop,
    Trap: _trap,
    SetFlag: _nothing,
    WaitFlag: _nothing,
    Barrier: _nothing,
}
