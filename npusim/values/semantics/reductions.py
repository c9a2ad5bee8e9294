"""The vector pipe: micro-ops that reduce many elements to fewer."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT16, Array, cast
from npusim.isa import (
    REPEAT_BYTES,
    BlockReduce,
    Fold,
    Local,
    Reduce,
    ReduceOp,
    ReduceOrder,
    WholeReduce,
    lanes,
)
from npusim.isa.operands import Numbers
from npusim.values.runs import Halved
from npusim.values.semantics.half_order import single
from npusim.values.semantics.rows import (
    HalvedTile,
    Row,
    SelectedTile,
    WidenedTile,
    WrittenRow,
    extreme_of,
)
from npusim.values.semantics.state import State

__all__ = ["block_reduce", "fold", "halve", "reduce", "whole_reduce"]


def reduce(op: Reduce, state: State) -> None:
    if op.op == "sum":
        repeats = _tree(_zeroed(_repeats(op.src, state), op.src), state)
        found = repeats[..., :1]
        for index in range(1, repeats.shape[-1]):
            found = _sum(found, repeats[..., index, None], state)
    else:
        values = state.read(op.src)[..., None, :]
        found = _extreme(op.op, op.order, values, np.arange(op.src.count))
    dst = state.buffers.view(op.dst)
    first = dst[..., 0, 0, :] if op.dst.is_strided else dst
    first[..., : op.result_elements] = found


def _extreme(op: ReduceOp, order: ReduceOrder, repeats: Array, numbers: Numbers) -> Array:
    """`(..., repeats, elements)` -> `(..., elements of the results)`: see ReduceOrder.

    *numbers* are the indices of the elements of a repeat.
    """
    if order == "value":
        return extreme_of(op, repeats)
    # The first of equal ones; NaN wins over any number.
    first = (np.argmin if op == "min" else np.argmax)(repeats, axis=-1)
    bits = "u4" if order == "index" else f"u{repeats.itemsize}"
    index = numbers[first].astype(bits).view(repeats.dtype).reshape(*first.shape, -1)
    value = np.take_along_axis(repeats, first[..., None], axis=-1)
    parts = {"index": (index,), "value_index": (value, index), "index_value": (index, value)}
    found = np.concatenate(parts[order], axis=-1)
    return found.reshape(*first.shape[:-1], -1)


def _sum(a: Array, b: Array, state: State) -> Array:
    """`a + b` of either float type, each rounded once."""
    if a.dtype == np.float32:
        return np.asarray(a + b)
    return cast(single(a) + single(b), FLOAT16, "rint", state.overflow)


def _tree(values: Array, state: State) -> Array:
    """`(..., power of two)` -> `(...)`: add neighbours, then neighbouring sums, and so on."""
    while values.shape[-1] > 1:
        values = _sum(values[..., 0::2], values[..., 1::2], state)
    return values[..., 0]


def _repeats(src: Local, state: State) -> Array:
    """`(..., repeats, elements)` of *src*.

    A partial last repeat is filled with its first element, which changes no extreme; for a sum it
    is filled with zeros.
    """
    values, each = state.read(src), min(src.repeat_elements, src.count)
    lacking = -src.count % each
    if lacking:
        last = values[..., src.count - (each - lacking), None]
        values = np.concatenate([values, np.repeat(last, lacking, axis=-1)], axis=-1)
    return values.reshape(*state.lead, -1, each)


def _zeroed(repeats: Array, src: Local) -> Array:
    """*repeats* as full ones, with 0 for each inactive element."""
    each, width = repeats.shape[-1], REPEAT_BYTES // repeats.itemsize
    lacking = -src.count % src.repeat_elements if src.repeats > 1 else 0
    if each == width and not lacking:
        return repeats
    whole = np.zeros((*repeats.shape[:-1], width), repeats.dtype)
    whole[..., slice(each) if src.mask is None else lanes(src.mask)] = repeats
    if lacking:
        whole[..., -1, each - lacking :] = 0
    return whole


def _put(dst: Local, places: Numbers, found: Array, state: State) -> None:
    """Write the elements of *found* to *places* of *dst*; on collisions the last one wins."""
    if dst.is_strided or places.size == dst.count:
        state.write(dst, found)
    else:
        state.buffers.view(dst)[..., places] = found


def halve(op: Halved, state: State) -> None:
    buffers, place = state.buffers, op.row
    tile = buffers.tile(place.buffer, place.offset_bytes)
    row: Row
    if isinstance(tile, WidenedTile | SelectedTile) and tile.place == place:
        row = tile
    else:
        row = WrittenRow(buffers.view(place))
    buffers.add_tile(place.buffer, HalvedTile(op, row))


def whole_reduce(op: WholeReduce, state: State) -> None:
    tile = state.buffers.tile(op.src.buffer, op.src.offset_bytes)
    extreme = tile.extreme_for(op) if isinstance(tile, HalvedTile) else None
    if extreme is not None and op.order == "value":
        state.write(op.dst, extreme)
        return
    repeats = _repeats(op.src, state)[..., : op.mask]
    if op.op == "sum":
        found = _tree(_zeroed(repeats, op.src), state)
    else:
        mask = op.src.mask
        numbers = np.arange(repeats.shape[-1]) if mask is None else lanes(mask)
        found = _extreme(op.op, op.order, repeats, numbers)
    _put(op.dst, op.places, found, state)


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


def block_reduce(op: BlockReduce, state: State) -> None:
    src, values = op.src, state.read(op.src)
    if src.mask is None:
        lacking = -src.count % op.group
        if lacking:
            # The first element of the last block fills it up, as in _repeats.
            first = values[..., src.count + lacking - op.group, None]
            filler = np.zeros_like(first) if op.op == "sum" else first
            values = np.concatenate([values, np.repeat(filler, lacking, axis=-1)], axis=-1)
        blocks = values.reshape(*state.lead, -1, op.group)
        found = _tree(blocks, state) if op.op == "sum" else extreme_of(op.op, blocks)
    else:
        found = _of_masked_blocks(op, values.reshape(*state.lead, src.repeats, -1), state)
    _put(op.dst, op.places, found, state)


def _of_masked_blocks(op: BlockReduce, repeats: Array, state: State) -> Array:
    """The results of all blocks of *repeats* `(..., repeats, active lanes)`."""
    assert op.src.mask is not None
    if op.op == "sum":
        whole = _zeroed(repeats, op.src).reshape(*repeats.shape[:-1], -1, op.group)
        found = _tree(whole, state)[..., op.blocks]
    else:
        block = lanes(op.src.mask) // op.group
        each = [extreme_of(op.op, repeats[..., block == number]) for number in op.blocks]
        found = np.stack(each, axis=-1)
    return found.reshape(*state.lead, -1)
