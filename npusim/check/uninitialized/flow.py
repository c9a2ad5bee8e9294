"""How marks pass through each micro-op: which bytes of its result come of which it reads.

An element that comes of several takes the largest of their marks. Elements that take no part in a
result leave no mark in it: rows, columns and depths beyond those of a product, and what fills
fractals up. What a piece in L0A and L0B, or a product in L0C, does not fill of its fractals is as
if nobody had written it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from npusim.check.hazards import areas
from npusim.check.uninitialized.cube_flow import (
    SQUARE,
    broadcast_to_l0c,
    copy_l0c,
    fixpipe,
    load_data,
    mmad,
)
from npusim.check.uninitialized.marks import NOBODY, WRITTEN, Array, Marks, Sink
from npusim.data.dtypes import UINT8
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.isa import (
    BLOCK_BYTES,
    MICRO_OPS,
    ORDERING,
    PROPOSAL_ELEMENTS,
    PROPOSALS_AT_ONCE,
    SCORE,
    SORTED_AT_ONCE,
    Axpy,
    Binary,
    BinaryScalar,
    BlockReduce,
    Broadcast,
    BroadcastToL0c,
    Cast,
    CastDequant,
    Compare,
    CompareScalar,
    Copy,
    CopyL0c,
    CopyToL1,
    Duplicate,
    Fixpipe,
    Fold,
    Gather,
    GatherMask,
    Load,
    LoadData,
    LoadNd2Nz,
    LoadTable,
    Local,
    MicroOp,
    Mmad,
    MrgSort,
    MrgSort4,
    MulAddDst,
    ProposalConcat,
    ProposalExtract,
    Reduce,
    RpSort16,
    ScalarAlu,
    ScalarLoad,
    ScalarLoadGlobal,
    ScalarLoop,
    ScalarOp,
    ScalarStore,
    ScalarStoreGlobal,
    Select,
    Sort32,
    Store,
    Table,
    Transpose,
    Trap,
    Unary,
    WholeReduce,
    lanes,
)

__all__ = ["FLOW", "fills"]


def fills(op: MicroOp) -> bool:
    """Whether *op* writes all of what it writes with what it reads, and nothing else."""
    match op:
        case LoadData():
            # Edges of fractals come from beyond the piece.
            return op.dst.count == op.rows * op.columns
        case Load():
            return op.padding is None or not op.padding.is_unknown
        case Mmad():
            return op.m % FRACTAL_ROWS == 0 == op.n % FRACTAL_ROWS
        case Reduce():
            return op.dst.count == op.result_elements
        case _:
            return True


def _of_scalar(scalar: float | str, marks: Marks) -> int:
    return marks.registers.get(scalar, WRITTEN) if isinstance(scalar, str) else WRITTEN


# ---- copies ----


def _store(op: Store, marks: Marks) -> Sink:
    where = op.src.buffer, op.src.offset_bytes
    return marks.rows(*where, op.dst.burst_bytes, op.dst.bursts, op.pitch_bytes)


def _copy_to_l1(op: CopyToL1, marks: Marks) -> Sink:
    size = op.burst_bytes, op.bursts
    src = marks.rows(op.src.buffer, op.src.offset_bytes, *size, op.src_pitch_bytes)
    dst = marks.rows(op.dst.buffer, op.dst.offset_bytes, *size, op.dst_pitch_bytes)
    marks.put_bytes(op.dst.buffer, dst, src)
    return None


def _from_outside(op: Load | LoadNd2Nz, marks: Marks) -> Sink:
    for area in areas.written(op):
        marks.write(area)
    if isinstance(op, Load) and op.padding is not None and op.padding.is_unknown:
        where = op.dst.buffer, op.dst.offset_bytes
        rows = marks.rows(*where, op.row_bytes, op.src.bursts, op.pitch_bytes)
        end = op.left_bytes + op.src.burst_bytes
        for around in (rows[:, : op.left_bytes], rows[:, end:]):
            marks.put_bytes(op.dst.buffer, around, np.array(NOBODY, around.dtype))
    return None


# ---- the vector pipe ----


def _each(op: Cast | Unary | LoadTable, marks: Marks) -> Sink:
    marks.put(op.dst, marks.elements(op.src))
    return None


def _cast_dequant(op: CastDequant, marks: Marks) -> Sink:
    found = marks.elements(op.src)
    if isinstance(op.scale, Local):
        # Which of the parameters belongs to an element is not looked at.
        found = np.maximum(found, marks.elements(op.scale).max())
    marks.put(op.dst, found)
    return None


def _copy(op: Copy, marks: Marks) -> Sink:
    # Bytes, whatever type they are moved as.
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
    """*marks* of elements as rows of *size*, the last of which may lack some."""
    lacking = np.zeros(-marks.size % size, marks.dtype)
    return np.concatenate([marks, lacking]).reshape(-1, size)


def _block_reduce(op: BlockReduce, marks: Marks) -> Sink:
    found, per_block = marks.elements(op.src), c0(op.src.dtype)
    if op.src.mask is None:
        return _results(op, _groups(found, per_block).max(axis=1), marks)
    repeats, block = found.reshape(op.src.repeats, -1), lanes(op.src.mask) // per_block
    each = [repeats[:, block == number].max(axis=1) for number in op.blocks]
    return _results(op, np.stack(each, axis=1).reshape(-1), marks)


def _compare(op: Compare, marks: Marks) -> Sink:
    either = np.maximum(marks.elements(op.a), marks.elements(op.b))
    marks.put(op.dst, either.reshape(-1, 8).max(axis=1))
    return None


def _compare_scalar(op: CompareScalar, marks: Marks) -> Sink:
    either = np.maximum(marks.elements(op.a), _of_scalar(op.scalar, marks))
    marks.put(op.dst, either.reshape(-1, 8).max(axis=1))
    return None


def _select(op: Select, marks: Marks) -> Sink:
    found = np.repeat(marks.elements(op.mask), 8)[: op.dst.count]
    for local in (op.a, op.b):
        if isinstance(local, Local):
            found = np.maximum(found, marks.elements(local))
    marks.put(op.dst, found)
    return None


def _gather(op: Gather, marks: Marks) -> Sink:
    # Which element an offset names is not known here, so any may be meant.
    marks.put(op.dst, np.maximum(marks.elements(op.offsets), marks.elements(op.src).max()))
    return None


def _transpose(op: Transpose, marks: Marks) -> Sink:
    rows = SQUARE[0]
    matrices = marks.elements(op.src).reshape(-1, rows, BLOCK_BYTES * 8 // op.src.dtype.bits)
    marks.put(op.dst, matrices.swapaxes(1, 2).reshape(-1))
    return None


def _sort(op: Sort32, marks: Marks) -> Sink:
    # Any of a list may come of any of its elements.
    found = np.maximum(marks.elements(op.keys), marks.elements(op.indices))
    largest = found.reshape(-1, SORTED_AT_ONCE).max(axis=1)
    marks.put(op.dst, np.repeat(largest, SORTED_AT_ONCE))
    return None


def _merge(op: MrgSort, marks: Marks) -> Sink:
    pairs, found = marks.elements(op.src), []
    for start, count in zip(op.starts, op.counts, strict=False):
        # Where a register lets a list begin is not known here.
        known = pairs if isinstance(start, str) else pairs[start : start + count]
        found.append(max(int(known.max(initial=WRITTEN)), _of_scalar(start, marks)))
    marks.put(op.dst, np.full(op.dst.count, max(found), pairs.dtype))
    return None


def _gather_mask(op: GatherMask, marks: Marks) -> Sink:
    marks.put(op.dst, marks.elements(op.src)[op.places == "odd" :: 2])
    return None


def _concat(op: ProposalConcat, marks: Marks) -> Sink:
    proposals = marks.elements(op.dst).copy()
    proposals[op.place :: PROPOSAL_ELEMENTS] = marks.elements(op.src)
    marks.put(op.dst, proposals)
    return None


def _extract(op: ProposalExtract, marks: Marks) -> Sink:
    marks.put(op.dst, marks.elements(op.src)[op.place :: PROPOSAL_ELEMENTS])
    return None


def _order(op: RpSort16 | MrgSort4, marks: Marks) -> Sink:
    # Each field of a proposal comes of that field of any of those that it is ordered with, and of
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


# ---- the scalar pipe ----

Rounds = dict[str, Array]
"""Register -> its mark in each round of a loop, `(rounds,)`."""


def _one(op: ScalarLoad | ScalarStore | ScalarAlu | Trap, marks: Marks) -> Sink:
    return _all_rounds((op,), marks, 1)


def _load_global(op: ScalarLoadGlobal, marks: Marks) -> Sink:
    marks.registers.pop(op.dst, None)
    return None


def _store_global(op: ScalarStoreGlobal, marks: Marks) -> Sink:
    return np.array([marks.registers.get(op.src, WRITTEN)])


def _scalar_loop(op: ScalarLoop, marks: Marks) -> Sink:
    return _all_rounds(op.body, marks, op.count)


def _all_rounds(body: tuple[ScalarOp, ...], marks: Marks, count: int) -> Sink:
    # Rounds are independent of each other, so all of them run at once, part by part.
    rounds = {name: np.full(count, mark) for name, mark in marks.registers.items()}
    stopped: list[Array] = []
    for op in body:
        match op:
            case ScalarLoad():
                rounds[op.dst] = _steps(op.src, op.step_bytes, marks, count).max(axis=1)
            case ScalarStore():
                view = _steps(op.dst, op.step_bytes, marks, count)
                mark = _of_rounds((op.src,), rounds, count)
                marks.put_bytes(op.dst.buffer, view, mark[:, None])
            case ScalarAlu():
                rounds[op.dst] = _of_rounds((op.a, op.b, op.c), rounds, count)
            case Trap():
                stopped.append(_of_rounds((op.when,), rounds, count))
    # After the loop a register holds what the last round left.
    marks.registers = {name: int(mark[-1]) for name, mark in rounds.items() if mark[-1]}
    return np.concatenate(stopped) if stopped else None


def _of_rounds(operands: tuple[int | str, ...], rounds: Rounds, count: int) -> Array:
    """The largest mark of *operands* in each round."""
    used = [rounds[x] for x in operands if isinstance(x, str) and x in rounds]
    found: Array = np.maximum.reduce([np.zeros(count, int), *used])
    return found


def _steps(local: Local, step_bytes: int, marks: Marks, count: int) -> Array:
    return marks.rows(local.buffer, local.offset_bytes, local.nbytes, count, step_bytes)


def _nothing(_: MicroOp, __: Marks) -> Sink:
    return None


FLOW: Table[Callable[[Any, Marks], Sink]] = Table(
    "uninitialized.FLOW",
    "how marks pass through it",
    MICRO_OPS,
    {
        Load: _from_outside,
        LoadNd2Nz: _from_outside,
        Store: _store,
        CopyToL1: _copy_to_l1,
        LoadData: load_data,
        LoadTable: _each,
        Mmad: mmad,
        Fixpipe: fixpipe,
        CopyL0c: copy_l0c,
        BroadcastToL0c: broadcast_to_l0c,
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
        ScalarLoad: _one,
        ScalarLoadGlobal: _load_global,
        ScalarStore: _one,
        ScalarStoreGlobal: _store_global,
        ScalarAlu: _one,
        ScalarLoop: _scalar_loop,
        Trap: _one,
        **dict.fromkeys(ORDERING, _nothing),
    },
)
