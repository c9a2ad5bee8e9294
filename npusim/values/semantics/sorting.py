"""The vector pipe: sorting, merging, and extracting elements of pairs."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array, DType
from npusim.isa import (
    PROPOSAL_ELEMENTS,
    PROPOSALS_AT_ONCE,
    SCORE,
    SORTED_AT_ONCE,
    GatherMask,
    Local,
    MrgSort,
    MrgSort4,
    ProposalConcat,
    ProposalExtract,
    RpSort16,
    Sort32,
)
from npusim.values.buffers import OutOfBufferError
from npusim.values.semantics.state import State

__all__ = ["concat", "extract", "gather_mask", "merge", "merge_proposals", "sort", "sort_proposals"]

ABOVE_ALL = np.int64(2**31)
"""The rank of NaN: above infinity."""


def _ranks(keys: Array) -> Array:
    """An integer for each key, in the order of the keys: -0 equals 0, and NaN is the largest."""
    bits = keys.astype(np.float32).view(np.int32).astype(np.int64)
    ranks = np.where(bits < 0, -(bits & (2**31 - 1)), bits)
    return np.where(np.isnan(keys), ABOVE_ALL, ranks)


def sort(op: Sort32, state: State) -> None:
    shape = (*state.lead, -1, SORTED_AT_ONCE)
    keys, indices = (state.read(local).reshape(shape) for local in (op.keys, op.indices))
    order = np.argsort(-_ranks(keys), axis=-1, kind="stable")
    words = np.zeros((*order.shape, 2), np.uint32)
    patterns = keys.view(f"u{keys.itemsize}")
    words[..., 0] = np.take_along_axis(patterns, order, axis=-1)
    words[..., 1] = np.take_along_axis(indices.view(np.uint32), order, axis=-1)
    state.write(op.dst, words.view(np.uint64).reshape(*state.lead, op.dst.count))


def _keys(pairs: Array, key: DType) -> Array:
    words = np.ascontiguousarray(pairs).view(key.numpy)
    return words[..., :: 8 // key.numpy.itemsize]


def merge(op: MrgSort, state: State) -> None:
    src = state.read(op.src)
    lists = [
        _list_of(op, src, start, count, state)
        for start, count in zip(op.starts, op.counts, strict=False)
    ]
    # A pair behind a smaller one of its list is merged right after it, whatever its own key.
    ranks = [np.minimum.accumulate(_ranks(_keys(each, op.key)), axis=-1) for each in lists]
    order = np.argsort(-np.concatenate(ranks, axis=-1), axis=-1, kind="stable")
    state.write(op.dst, np.take_along_axis(np.concatenate(lists, axis=-1), order, axis=-1))


def _list_of(op: MrgSort, src: Array, start: str | int, count: int, state: State) -> Array:
    """The *count* pairs of *src* from index *start* on."""
    first = state.registers[start] if isinstance(start, str) else np.array([start])
    bad = (first < 0) | (first > op.src.count - count)
    if bad.any():
        raise OutOfBufferError(
            f"semantics: {op}: a list must lie within the {op.src.count} pairs of src, not begin "
            f"at {first[bad][0]} with {count}; fix what fills the register"
        )
    places = np.broadcast_to(first + np.arange(count), (*state.lead, count))
    return np.take_along_axis(src, places, axis=-1)


def gather_mask(op: GatherMask, state: State) -> None:
    src = state.read(op.src)
    if isinstance(op.places, Local):
        count = _gather_by(op, op.places, src, state)
    else:
        taken = src[..., op.taken]
        state.write(op.dst, taken)
        count = np.array([taken.shape[-1]])
    if op.kept is not None:
        state.registers[op.kept] = count


def _gather_by(op: GatherMask, places: Local, src: Array, state: State) -> Array:
    """Write the elements of *src* whose bit in *places* is set; return their count, `(..., 1)`."""
    words = state.read(places)
    rows = words.reshape(*state.lead, places.repeats if places.is_strided else 1, -1)
    packed = np.ascontiguousarray(rows).view(np.uint8)
    bits = np.unpackbits(packed, axis=-1, bitorder="little")[..., : op.row_elements]
    is_taken = bits.reshape(*state.lead, -1)[..., : op.src.count] == 1
    count = is_taken.sum(axis=-1, keepdims=True)
    order = np.argsort(~is_taken, axis=-1, kind="stable")
    closed = np.take_along_axis(src, order, axis=-1)
    before = state.read(op.dst)
    state.write(op.dst, np.where(np.arange(op.src.count) < count, closed, before))
    return np.asarray(count)


# ---- proposals ----


def concat(op: ProposalConcat, state: State) -> None:
    proposals = state.read(op.dst).copy()
    proposals[..., op.place :: PROPOSAL_ELEMENTS] = state.read(op.src)
    state.write(op.dst, proposals)


def extract(op: ProposalExtract, state: State) -> None:
    state.write(op.dst, state.read(op.src)[..., op.place :: PROPOSAL_ELEMENTS])


def sort_proposals(op: RpSort16, state: State) -> None:
    shape = (*state.lead, -1, PROPOSALS_AT_ONCE, PROPOSAL_ELEMENTS)
    proposals = state.read(op.src).reshape(shape)
    order = np.argsort(-_ranks(proposals[..., SCORE]), axis=-1, kind="stable")
    _write_in_order(op, proposals, order, state)


def merge_proposals(op: MrgSort4, state: State) -> None:
    shape = (*state.lead, -1, sum(op.counts), PROPOSAL_ELEMENTS)
    proposals = state.read(op.src).reshape(shape)
    keys = np.split(_ranks(proposals[..., SCORE]), np.cumsum(op.counts[:-1]), axis=-1)
    # A proposal behind a smaller one of its list is merged right after it, as in `merge`.
    ranks = [np.minimum.accumulate(each, axis=-1) for each in keys]
    order = np.argsort(-np.concatenate(ranks, axis=-1), axis=-1, kind="stable")
    _write_in_order(op, proposals, order, state)


def _write_in_order(op: RpSort16 | MrgSort4, proposals: Array, order: Array, state: State) -> None:
    found = np.take_along_axis(proposals, order[..., None], axis=-2)
    state.write(op.dst, found.reshape(*state.lead, op.dst.count))
