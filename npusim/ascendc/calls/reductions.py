"""Calls of the vector unit that reduce."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npusim.ascendc.calls.table import Chip, Table, every_repeat, local
from npusim.ascendc.errors import AscendCError
from npusim.ascendc.recording import Lanes, LocalOperand
from npusim.data.dtypes import INT32
from npusim.isa import (
    Barrier,
    BlockReduce,
    Local,
    MicroOp,
    Reduce,
    ReduceOp,
    ReduceOrder,
    WholeReduce,
)

__all__ = ["CALLS"]

OPS: tuple[ReduceOp, ...] = ("sum", "max", "min")
"""By the number of ReduceType."""
ORDERS: tuple[ReduceOrder, ...] = ("value_index", "index_value", "value", "index")
"""By the number of ReduceOrder."""


def _source(lanes: Lanes, src: LocalOperand) -> Local:
    (found,) = every_repeat(lanes, src)
    return found


def _reduce_repeat(
    _: Chip,
    kind: int,
    dst: LocalOperand,
    src: LocalOperand,
    lanes: Lanes,
    dst_stride: int,
    order: int = 2,
) -> Iterator[MicroOp]:
    op, own = OPS[kind], _source(lanes, src)
    left = "value" if op == "sum" else ORDERS[order]
    # A stride of 0 means a single repeat.
    stride = dst_stride if own.repeats > 1 else 1
    to = local(dst, 1, INT32 if left == "index" and dst.dtype.bits == 16 else None)
    made = WholeReduce(op, to, own, None, left, stride)
    yield replace(made, dst=replace(to, count=made.span))


def _reduce_block(
    _: Chip,
    kind: int,
    dst: LocalOperand,
    src: LocalOperand,
    lanes: Lanes,
    dst_stride: int,
    pairs: bool = False,
) -> Iterator[MicroOp]:
    own = _source(lanes, src)
    is_plain = own.mask is None and (dst_stride == 1 or own.repeats == 1) and own.repeat_blocks == 8
    made = BlockReduce(OPS[kind], local(dst, 1), own, None if is_plain else dst_stride, pairs)
    yield replace(made, dst=local(dst, made.span))


def _reduce_all(
    chip: Chip,
    kind: int,
    dst: LocalOperand,
    src: LocalOperand,
    work: LocalOperand,
    lanes: Lanes,
    with_index: int,
) -> Iterator[MicroOp]:
    op, own = OPS[kind], _source(lanes, src)
    if not own.count:
        return
    if op == "sum" and (own.repeats == 1 or chip.spec.arch != "2201" or lanes.form in (1, 2)):
        yield from _sum_of_sums(dst, own, work)
        return
    if with_index:
        yield Reduce(op, local(dst, 2), own, "value_index")
    else:
        yield Reduce(op, local(dst, 1), own)


def _sum_of_sums(dst: LocalOperand, src: Local, work: LocalOperand) -> Iterator[MicroOp]:
    """Sum each repeat, then the sums, until one is left (asc-devkit, ReduceSum.md, second way)."""
    while src.repeats > 1:
        sums = local(work, src.repeats)
        yield WholeReduce("sum", sums, src)
        yield Barrier("vector")
        src = sums
        if src.dtype is not work.dtype:
            raise AscendCError("sharedTmpBuffer must be of the type of src; pass such a one")
    yield WholeReduce("sum", local(dst, 1), src)


def _reduce_pair(
    chip: Chip, kind: int, dst: LocalOperand, src: LocalOperand, lanes: Lanes, dst_stride: int
) -> Iterator[MicroOp]:
    if OPS[kind] != "sum":
        raise AscendCError(
            f"ReducePairElem: reduceType must be SUM, the one that pairs have, not {kind}; take "
            f"WholeReduceMax or WholeReduceMin"
        )
    yield from _reduce_block(chip, kind, dst, src, lanes, dst_stride, pairs=True)


CALLS: Table = {
    "ReduceAll": _reduce_all,
    "ReduceDataBlock": _reduce_block,
    "ReducePairElem": _reduce_pair,
    "ReduceRepeat": _reduce_repeat,
}
