"""How marks pass through the micro-ops of the vector pipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from npusim.check.uninitialized.cube_flow import SQUARE
from npusim.check.uninitialized.marks import WRITTEN, Array, Marks, Sink
from npusim.data.dtypes import UINT8
from npusim.data.layout import c0
from npusim.isa import (
    BLOCK_BYTES,
    PROPOSAL_ELEMENTS,
    PROPOSALS_AT_ONCE,
    SCORE,
    SORTED_AT_ONCE,
    Axpy,
    Binary,
    BinaryScalar,
    BlockReduce,
    Broadcast,
    Cast,
    CastDequant,
    Compare,
    CompareScalar,
    Copy,
    Duplicate,
    Fold,
    Gather,
    GatherBlocks,
    GatherMask,
    GetCmpMask,
    LoadTable,
    Local,
    MicroOp,
    MrgSort,
    MrgSort4,
    MulAddDst,
    ProposalConcat,
    ProposalExtract,
    Reduce,
    RpSort16,
    Scatter,
    Select,
    SetCmpMask,
    Sort32,
    TransDataTo5HD,
    Transpose,
    Unary,
    WholeReduce,
    lanes,
)

__all__ = ["VECTOR_FLOW"]


def _of_scalar(scalar: float | str, marks: Marks) -> int:
    return marks.registers.get(scalar, WRITTEN) if isinstance(scalar, str) else WRITTEN


def _each(op: Cast | Unary | LoadTable, marks: Marks) -> Sink:
    marks.put(op.dst, marks.elements(op.src))
    return None


def _cast_dequant(op: CastDequant, marks: Marks) -> Sink:
    found = marks.elements(op.src)
    if isinstance(op.scale, Local):
        # Which parameter belongs to which element is ignored.
        found = np.maximum(found, marks.elements(op.scale).max())
    marks.put(op.dst, found)
    return None


def _copy(op: Copy, marks: Marks) -> Sink:
    # As bytes, whatever the type.
    src, dst = (replace(x, dtype=UINT8, count=x.nbytes) for x in (op.src, op.dst))
    marks.put(dst, marks.elements(src))
    return None


def _binary(op: Binary, marks: Marks) -> Sink:
    marks.put(op.dst, np.maximum(marks.elements(op.a), marks.elements(op.b)))
    return None


def _binary_scalar(op: BinaryScalar, marks: Marks) -> Sink:
    marks.put(op.dst, np.maximum(marks.elements(op.a), _of_scalar(op.scalar, marks)))
    return None


def _axpy(op: Axpy, marks: Marks) -> Sink:
    product = np.maximum(marks.elements(op.src), _of_scalar(op.scalar, marks))
    marks.put(op.dst, np.maximum(product, marks.elements(op.dst)))
    return None


def _mul_add_dst(op: MulAddDst, marks: Marks) -> Sink:
    product = np.maximum(marks.elements(op.a), marks.elements(op.b))
    marks.put(op.dst, np.maximum(product, marks.elements(op.dst)))
    return None


def _duplicate(op: Duplicate, marks: Marks) -> Sink:
    mark = _of_scalar(op.scalar, marks)
    marks.put(op.dst, np.full(op.dst.count, mark, marks.bytes[op.dst.buffer].dtype))
    return None


def _broadcast(op: Broadcast, marks: Marks) -> Sink:
    marks.put(op.dst, np.repeat(marks.elements(op.src), c0(op.dst.dtype)))
    return None


def _reduce(op: Reduce, marks: Marks) -> Sink:
    count = op.result_elements
    marks.put(op.dst.at(0, count), np.repeat(marks.elements(op.src).max(), count))
    return None


def _results(op: BlockReduce | WholeReduce, found: Array, marks: Marks) -> Sink:
    if op.places.size == op.dst.count:
        marks.put(op.dst, found)
        return None
    for place, mark in zip(op.places.tolist(), found, strict=True):
        marks.put(op.dst.at(place, 1), np.array([mark]))
    return None


def _groups(marks: Array, size: int) -> Array:
    """*marks* of elements as rows of *size*; the last one may be incomplete."""
    lacking = np.zeros(-marks.size % size, marks.dtype)
    return np.concatenate([marks, lacking]).reshape(-1, size)


def _block_reduce(op: BlockReduce, marks: Marks) -> Sink:
    found = marks.elements(op.src)
    if op.src.mask is None:
        return _results(op, _groups(found, op.group).max(axis=1), marks)
    repeats, block = found.reshape(op.src.repeats, -1), lanes(op.src.mask) // op.group
    each = [repeats[:, block == number].max(axis=1) for number in op.blocks]
    return _results(op, np.stack(each, axis=1).reshape(-1), marks)


def _compare(op: Compare, marks: Marks) -> Sink:
    either = np.maximum(marks.elements(op.a), marks.elements(op.b))
    if isinstance(op.dst, Local):
        marks.put(op.dst, either.reshape(-1, 8).max(axis=1))
    else:
        _set_register(op.dst, int(either.max()), marks)
    return None


def _set_register(name: str, mark: int, marks: Marks) -> None:
    marks.registers.pop(name, None)
    if mark != WRITTEN:
        marks.registers[name] = mark


def _get_cmp_mask(op: GetCmpMask, marks: Marks) -> Sink:
    mark = _of_scalar(op.mask, marks)
    marks.put(op.dst, np.full(op.dst.count, mark, marks.bytes[op.dst.buffer].dtype))
    return None


def _set_cmp_mask(op: SetCmpMask, marks: Marks) -> Sink:
    _set_register(op.mask, int(marks.elements(op.src).max()), marks)
    return None


def _compare_scalar(op: CompareScalar, marks: Marks) -> Sink:
    either = np.maximum(marks.elements(op.a), _of_scalar(op.scalar, marks))
    marks.put(op.dst, either.reshape(-1, 8).max(axis=1))
    return None


def _select(op: Select, marks: Marks) -> Sink:
    if isinstance(op.mask, Local):
        numbers = op.bits % op.repeat_lanes if op.is_repeated else op.bits
        found = marks.elements(op.mask)[numbers // 8]
    else:
        found = np.full(op.dst.count, _of_scalar(op.mask, marks))
    for local in (op.a, op.b):
        if isinstance(local, Local):
            found = np.maximum(found, marks.elements(local))
    marks.put(op.dst, found)
    return None


def _gather(op: Gather, marks: Marks) -> Sink:
    # Which element an offset selects is not known here, so it may be any.
    marks.put(op.dst, np.maximum(marks.elements(op.offsets), marks.elements(op.src).max()))
    return None


def _gather_blocks(op: GatherBlocks, marks: Marks) -> Sink:
    found = np.maximum(marks.elements(op.offsets), marks.elements(op.src).max())
    marks.put(op.dst, np.repeat(found, c0(op.dst.dtype)))
    return None


def _scatter(op: Scatter, marks: Marks) -> Sink:
    # Nor is it known which one is written: all are assumed to be.
    mark = max(int(marks.elements(op.src).max()), int(marks.elements(op.offsets).max()))
    marks.put(op.dst, np.full(op.dst.count, mark, marks.bytes[op.dst.buffer].dtype))
    return None


def _trans_data(op: TransDataTo5HD, marks: Marks) -> Sink:
    rows = np.stack([marks.elements(row) for row in op.src])
    each = rows.reshape(len(op.src), op.src[0].repeats, -1)
    # (repeats, elements of a row, rows), cut to rows of the result
    turned = each.transpose(1, 2, 0).reshape(each.shape[1], len(op.dst), -1)
    for index, row in enumerate(op.dst):
        marks.put(row, turned[:, index].reshape(-1))
    return None


def _transpose(op: Transpose, marks: Marks) -> Sink:
    rows = SQUARE[0]
    matrices = marks.elements(op.src).reshape(-1, rows, BLOCK_BYTES * 8 // op.src.dtype.bits)
    marks.put(op.dst, matrices.swapaxes(1, 2).reshape(-1))
    return None


def _sort(op: Sort32, marks: Marks) -> Sink:
    # Any element of a list may depend on any of its elements.
    found = np.maximum(marks.elements(op.keys), marks.elements(op.indices))
    largest = found.reshape(-1, SORTED_AT_ONCE).max(axis=1)
    marks.put(op.dst, np.repeat(largest, SORTED_AT_ONCE))
    return None


def _merge(op: MrgSort, marks: Marks) -> Sink:
    pairs, found = marks.elements(op.src), []
    for start, count in zip(op.starts, op.counts, strict=False):
        # If a register gives the start of a list, it is not known here.
        known = pairs if isinstance(start, str) else pairs[start : start + count]
        found.append(max(int(known.max(initial=WRITTEN)), _of_scalar(start, marks)))
    marks.put(op.dst, np.full(op.dst.count, max(found), pairs.dtype))
    return None


def _gather_mask(op: GatherMask, marks: Marks) -> Sink:
    found = marks.elements(op.src)
    if isinstance(op.places, Local):
        # Which elements are selected is not known here.
        mark = max(int(found.max()), int(marks.elements(op.places).max()))
        found = np.full(op.dst.count, mark, found.dtype)
        _set_kept(op, int(marks.elements(op.places).max()), marks)
    else:
        found = found[op.taken]
        _set_kept(op, WRITTEN, marks)
    marks.put(op.dst, found)
    return None


def _set_kept(op: GatherMask, mark: int, marks: Marks) -> None:
    if op.kept is not None:
        _set_register(op.kept, mark, marks)


def _concat(op: ProposalConcat, marks: Marks) -> Sink:
    proposals = marks.elements(op.dst).copy()
    proposals[op.place :: PROPOSAL_ELEMENTS] = marks.elements(op.src)
    marks.put(op.dst, proposals)
    return None


def _extract(op: ProposalExtract, marks: Marks) -> Sink:
    marks.put(op.dst, marks.elements(op.src)[op.place :: PROPOSAL_ELEMENTS])
    return None


def _order(op: RpSort16 | MrgSort4, marks: Marks) -> Sink:
    # Each field of a proposal depends on that field of any proposal that it is sorted with, and on
    # their keys.
    together = PROPOSALS_AT_ONCE if isinstance(op, RpSort16) else sum(op.counts)
    lists = marks.elements(op.src).reshape(-1, together, PROPOSAL_ELEMENTS)
    largest = lists.max(axis=1, keepdims=True)
    found = np.maximum(largest, largest[..., SCORE : SCORE + 1])
    marks.put(op.dst, np.broadcast_to(found, lists.shape).reshape(-1))
    return None


def _whole_reduce(op: WholeReduce, marks: Marks) -> Sink:
    repeats = _groups(marks.elements(op.src), min(op.src.count, op.src.repeat_elements))
    found = repeats[:, : op.mask].max(axis=1)
    return _results(op, np.repeat(found, op.result_elements), marks)


def _fold(op: Fold, marks: Marks) -> Sink:
    repeats = marks.elements(op.src).reshape(-1, op.dst.count)
    marks.put(op.dst, np.maximum(marks.elements(op.dst), repeats.max(axis=0)))
    return None


VECTOR_FLOW: dict[type[MicroOp], Callable[[Any, Marks], Sink]] = {
    LoadTable: _each,
    Cast: _each,
    CastDequant: _cast_dequant,
    Unary: _each,
    Copy: _copy,
    Binary: _binary,
    BinaryScalar: _binary_scalar,
    Axpy: _axpy,
    MulAddDst: _mul_add_dst,
    Duplicate: _duplicate,
    Compare: _compare,
    CompareScalar: _compare_scalar,
    Select: _select,
    Gather: _gather,
    GatherBlocks: _gather_blocks,
    Scatter: _scatter,
    TransDataTo5HD: _trans_data,
    GetCmpMask: _get_cmp_mask,
    SetCmpMask: _set_cmp_mask,
    Transpose: _transpose,
    Sort32: _sort,
    MrgSort: _merge,
    GatherMask: _gather_mask,
    ProposalConcat: _concat,
    ProposalExtract: _extract,
    RpSort16: _order,
    MrgSort4: _order,
    Broadcast: _broadcast,
    Reduce: _reduce,
    BlockReduce: _block_reduce,
    WholeReduce: _whole_reduce,
    Fold: _fold,
}
