"""Copies between global memory and the core."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT32, UINT8, Array, DType, cast
from npusim.data.tensor import SLACK_BYTES
from npusim.isa import (
    BLOCK_BYTES,
    AtomicOp,
    CopyToL1,
    Fixpipe,
    Global,
    Load,
    Local,
    Padding,
    Store,
)
from npusim.values.buffers import UNWRITTEN, OutOfBufferError, ViewTile
from npusim.values.late import Place
from npusim.values.semantics.state import Bytes, State

__all__ = [
    "bursts",
    "combine",
    "copy_to_l1",
    "load",
    "store",
    "window",
    "window_of",
    "windows",
]


def bursts(data: Bytes, first: int, burst: int, count: int, step: int) -> Bytes:
    """`(count, burst)` bytes of *data*, rows *step* bytes apart."""
    if count == 1:
        return data[None, first : first + burst]
    return np.ndarray((count, burst), np.uint8, data, first, (step, 1))


def window(place: Global, state: State, slack_bytes: int = 0) -> Bytes:
    """`(bursts, burst_bytes)` of global memory; past the end of a tensor, a copy with zeros.

    Deferred products that write there are computed first.
    """
    memory = state.memories[place.name]
    if memory.is_late and state.late is not None:
        state.late.make_way(Place.of(place, memory.data, memory.base_bytes))
    return window_of(memory.data, place, memory.base_bytes, slack_bytes)


def windows(place: Global, state: State, slack_bytes: int = 0) -> Bytes | list[Bytes]:
    """The :func:`window` of each lane: one view if they are equally spaced, else a list.

    For a single block it is the window. Calls that are computed together are an axis after the
    lanes.
    """
    memory = state.memories[place.name]
    data, bases = memory.data, memory.bases
    if not state.lead:
        return window(place, state, slack_bytes)
    if memory.is_late and state.late is not None:
        for base in bases:
            state.late.make_way(Place.of(place, data, base))
    repeats = () if memory.repeats is None else (memory.repeats,)
    if len(state.lead) == len(repeats):
        return _spread(place, data, bases[0], repeats, slack_bytes)
    if isinstance(bases, range) and bases[0] + place.offset_bytes >= 0:
        axes = (len(bases), bases.step), *repeats
        if _end(place, bases[0], axes) <= data.size:
            return _spread(place, data, bases[0], axes, slack_bytes)
    return [_spread(place, data, base, repeats, slack_bytes) for base in bases]


Axes = tuple[tuple[int, int], ...]
"""Number of windows along each axis, and bytes from one to the next."""


def _end(place: Global, base_bytes: int, axes: Axes) -> int:
    """End byte of the windows of *place*."""
    return base_bytes + place.end_bytes + sum((count - 1) * step for count, step in axes)


def _spread(place: Global, data: Bytes, base_bytes: int, axes: Axes, slack_bytes: int) -> Bytes:
    """The windows of *place* along *axes*; the name begins at *base_bytes* for the first."""
    if not axes:
        return window_of(data, place, base_bytes, slack_bytes)
    first = base_bytes + place.offset_bytes
    if first < 0 or _end(place, base_bytes, axes) > data.size:
        (count, step), *others = axes
        starts = (
            range(base_bytes, base_bytes + count * step, step) if step else [base_bytes] * count
        )
        return np.stack([_spread(place, data, x, tuple(others), slack_bytes) for x in starts])
    counts, steps = zip(*axes, strict=True)
    shape = *counts, place.bursts, place.burst_bytes
    return np.ndarray(shape, np.uint8, data, first, (*steps, place.stride_bytes, 1))


def window_of(data: Bytes, place: Global, base_bytes: int, slack_bytes: int = 0) -> Bytes:
    """The window of *data* at present, with the name at *base_bytes*.

    Raises OutOfBufferError more than *slack_bytes* beyond the end.
    """
    first = base_bytes + place.offset_bytes
    over = base_bytes + place.end_bytes - data.size
    if first < 0 or over > slack_bytes:
        raise OutOfBufferError(
            f"semantics: {place} must lie within the {data.size} bytes of its tensor, "
            f"not reach [{first}, {base_bytes + place.end_bytes}); fix the kernel's tiling"
        )
    if over > 0:
        data, first = np.concatenate([data[first:], np.zeros(over, np.uint8)]), 0
    return bursts(data, first, place.burst_bytes, place.bursts, place.stride_bytes)


def combine(op: Store | Fixpipe, values: Array, dtype: DType, state: State) -> None:
    """Combine *values* `(bursts, elements)`, in *dtype*, with the destination of *op*.

    Sums round once. The positive zero is the larger one, and NaN wins over any number (asc-devkit,
    原子操作类接口边界值汇总.md).
    """
    assert isinstance(op.dst, Global)
    there = window(op.dst, state)
    # A copy, since the bytes of a tensor need not be aligned for the type.
    before = there.copy().view(dtype.numpy)
    if op.atomic_op != "add":
        after = _extreme(op.atomic_op, before, values)
    elif dtype.is_float:
        after = before.astype(np.float32) + values.astype(np.float32)
        after = after if dtype is FLOAT32 else cast(after, dtype, "rint", state.overflow)
    else:
        after = before + values
    there[:] = np.ascontiguousarray(after).view(np.uint8)


def _extreme(op: AtomicOp, a: Array, b: Array) -> Array:
    """The smaller or larger of each pair, with its bits unchanged."""
    is_a = a > b if op == "max" else a < b
    if a.dtype.kind not in "iu":
        sign_of_zero = np.signbit(b) if op == "max" else np.signbit(a)
        is_a = is_a | np.isnan(a) | ((a == b) & sign_of_zero)
    return np.where(is_a, a, b)


def load(op: Load, state: State) -> None:
    first, end = op.left_bytes, op.left_bytes + op.src.burst_bytes
    is_plain = op.src.bursts == 1 and op.padding is None and end == op.row_bytes
    if is_plain and end >= WORTH_A_VIEW_BYTES and _is_viewed(op, state):
        return
    rows = state.buffers.rows(op.dst, op.row_bytes, op.src.bursts, op.pitch_bytes)
    found = windows(op.src, state, SLACK_BYTES)
    if isinstance(found, list):
        for lane, there in zip(rows, found, strict=True):
            lane[..., first:end] = there
    else:
        rows[..., first:end] = found
    if op.padding is not None:
        _pad(rows, op, op.padding)
    elif end < op.row_bytes:
        rows[..., end:] = 0


def _pad(rows: Bytes, op: Load, padding: Padding) -> None:
    """Write the padding of *rows* around their bursts as *padding* says."""
    dtype, end = op.dst.dtype.numpy, op.left_bytes + op.src.burst_bytes
    around = (rows[..., : op.left_bytes], rows[..., end:])
    for part in around:
        elements = part.shape[-1] // dtype.itemsize
        if padding.is_unknown:
            part[...] = UNWRITTEN
        elif padding.is_first_element:
            part[...] = np.tile(rows[..., : dtype.itemsize], elements)
        else:
            value = np.array([padding.value]).astype(dtype)
            part[...] = np.tile(value.view(np.uint8), elements)


WORTH_A_VIEW_BYTES = 1 << 12
"""Copying fewer bytes is as fast as creating a view of them."""


def _is_viewed(op: Load, state: State) -> bool:
    """Leave loaded data in place, if it is never written and is aligned for its elements."""
    if not state.memories[op.src.name].is_constant:
        return False
    there = windows(op.src, state, SLACK_BYTES)
    if isinstance(there, list) or any(x % BLOCK_BYTES for x in there.strides[:-2]):
        return False
    place = Local(op.dst.buffer, op.dst.offset_bytes, UINT8, op.src.burst_bytes)
    state.buffers.add_tile(op.dst.buffer, ViewTile(place, there[..., 0, :]))
    return True


def store(op: Store, state: State) -> None:
    rows = state.buffers.rows(op.src, op.dst.burst_bytes, op.dst.bursts, op.pitch_bytes)
    if op.atomic is None:
        places = windows(op.dst, state)
        if isinstance(places, list):
            for lane, there in zip(rows, places, strict=True):
                there[:] = lane
        else:
            places[...] = rows
    else:
        elements = np.ascontiguousarray(rows).view(op.atomic.numpy)
        combine(op, elements, op.atomic, state)


def copy_to_l1(op: CopyToL1, state: State) -> None:
    src, dst = state.buffers.window(op.read), state.buffers.window(op.written)
    rows = bursts(src, 0, op.burst_bytes, op.bursts, op.src_pitch_bytes)
    bursts(dst, 0, op.burst_bytes, op.bursts, op.dst_pitch_bytes)[:] = rows
