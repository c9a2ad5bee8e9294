"""Vector steps over rows of any width in the unified buffer: one instruction for many rows.

Rows begin whole blocks apart. A step takes 64 columns of all rows, a repeat a row, or where rows
are few or wide a whole row at a time; the columns that fill no 64 follow by themselves, and those
that fill no block row by row (asc-devkit, docs/zh, the guide's pages on strides and masks; that the
softmax library cuts its rows so is assumed).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryOp,
    BlockReduce,
    Copy,
    Fold,
    Local,
    WholeReduce,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.kernel.repeats import STRIDE_BLOCKS

__all__ = ["LANES", "WidePlane", "by_rows", "reduce_rows"]

__kernel_vocabulary__ = True

LANES = 64
"""float32 in a repeat."""
BLOCK = 8
"""float32 in a block."""
TREE_COLUMNS = 512
"""So many columns and more: the sums of 64 x 8 neighbours come first."""


@dataclass(frozen=True, slots=True)
class WidePlane:
    """*rows* x *columns* of float32 in a slot, rows *pitch* (a multiple of 8) apart."""

    slot: Slot
    rows: int
    columns: int
    pitch: int

    @property
    def whole(self) -> Local:
        """Everything, with what lies between rows."""
        return self.slot.of(FLOAT32, self.rows * self.pitch)

    @property
    def by_row(self) -> bool:
        """Whether a step takes one row at a time."""
        chunks = self.columns // LANES
        is_far = self.rows > 1 and self.pitch > STRIDE_BLOCKS * BLOCK
        return is_far or self.rows < chunks

    def row(self, index: int, first: int, count: int) -> Local:
        """Columns [first, first + count) of a row."""
        return self.slot.of(FLOAT32, count, FLOAT32.nbytes(index * self.pitch + first))

    def block(self, first: int, count: int) -> Local:
        """Columns [first, first + count) of all rows, a repeat a row; at most 64, whole blocks."""
        offset = self.slot.offset_bytes + FLOAT32.nbytes(first)
        pitch, blocks = self.pitch // BLOCK, count // BLOCK
        return Local(self.slot.buffer, offset, FLOAT32, self.rows * count, 1, pitch, blocks)


def by_rows(builder: Builder, op: BinaryOp, plane: WidePlane, blocks: Local) -> None:
    """`plane = plane op number of the row`; *blocks* holds each row's number eight times."""
    main = plane.columns // LANES * LANES
    rest = align_up(plane.columns - main, BLOCK)
    for first, count in _spans(main, rest, plane.by_row):
        if plane.by_row and count > LANES:
            for row in range(plane.rows):
                here = plane.row(row, first, count)
                offset = blocks.offset_bytes + row * BLOCK_BYTES
                number = Local(blocks.buffer, offset, FLOAT32, count, 0, 0)
                builder.emit(Binary(op, here, here, number))
            continue
        for row, rows in _reachable(plane):
            part = WidePlane(plane.slot, rows, plane.columns, plane.pitch)
            here = part.block(row * plane.pitch + first, count)
            offset = blocks.offset_bytes + row * BLOCK_BYTES
            number = Local(blocks.buffer, offset, FLOAT32, rows * count, 0, 1, count // BLOCK)
            builder.emit(Binary(op, here, here, number))
    builder.barrier("vector")


def _spans(main: int, rest: int, by_row: bool) -> Iterator[tuple[int, int]]:
    """First column and columns of each step: all of *main* at once, or 64 at a time."""
    if main:
        each = main if by_row else LANES
        for first in range(0, main, each):
            yield first, each
    if rest:
        yield main, rest


def _reachable(plane: WidePlane) -> Iterator[tuple[int, int]]:
    """Rows that an instruction reaches: all, or one at a time."""
    if plane.pitch <= STRIDE_BLOCKS * BLOCK:
        yield 0, plane.rows
    else:
        for row in range(plane.rows):
            yield row, 1


def reduce_rows(
    builder: Builder, op: Literal["sum", "max"], result: Local, plane: WidePlane, lanes: Slot
) -> None:
    """The sum or the largest number of each row to *result* `(rows,)`.

    *lanes* has room for 64 running numbers a row. For the order of sums see `oracle.row_sums`.
    """
    rows, columns = plane.rows, plane.columns
    if columns < LANES:
        blocks = ceil_div(columns, BLOCK)
        for row, count in _reachable(plane):
            part = WidePlane(plane.slot, count, columns, plane.pitch)
            src = part.block(row * plane.pitch, blocks * BLOCK)
            step(builder, WholeReduce(op, result.at(row, count), src, columns))
        return
    if columns == LANES:
        for row, count in _reachable(plane):
            part = WidePlane(plane.slot, count, columns, plane.pitch)
            src = part.block(row * plane.pitch, LANES)
            step(builder, WholeReduce(op, result.at(row, count), src))
        return
    running = WidePlane(lanes, rows, LANES, LANES)
    _run_lanes(builder, op, running, plane)
    step(builder, WholeReduce(op, result, running.whole))


def _run_lanes(
    builder: Builder, op: Literal["sum", "max"], running: WidePlane, plane: WidePlane
) -> None:
    """64 running sums, or largest numbers, of each row of *plane*."""
    join: Literal["add", "max"] = "add" if op == "sum" else "max"
    start = _begin(builder, op, join, running, plane)
    main = plane.columns // LANES * LANES
    if start < main and plane.by_row:
        for row in range(plane.rows):
            more = plane.row(row, start, main - start)
            builder.emit(Fold(join, running.row(row, 0, LANES), more))
        builder.barrier("vector")
    elif start < main:
        for first in range(start, main, LANES):
            there = plane.block(first, LANES)
            step(builder, Binary(join, running.whole, running.whole, there))
    rest = plane.columns - main
    if rest and (rest % BLOCK or plane.by_row):
        for row in range(plane.rows):
            here = running.row(row, 0, rest)
            builder.emit(Binary(join, here, here, plane.row(row, main, rest)))
        builder.barrier("vector")
    elif rest:
        here = running.block(0, rest)
        step(builder, Binary(join, here, here, plane.block(main, rest)))


def _begin(
    builder: Builder,
    op: Literal["sum", "max"],
    join: Literal["add", "max"],
    running: WidePlane,
    plane: WidePlane,
) -> int:
    """Write the first running numbers; how many columns they have taken."""
    rows, columns = plane.rows, plane.columns
    if op == "sum" and columns >= TREE_COLUMNS:
        if plane.pitch == TREE_COLUMNS:
            step(builder, BlockReduce("sum", running.whole, plane.whole))
            return TREE_COLUMNS
        for row in range(rows):
            src = plane.row(row, 0, TREE_COLUMNS)
            builder.emit(BlockReduce("sum", running.row(row, 0, LANES), src))
        builder.barrier("vector")
        return TREE_COLUMNS
    taken = 2 * LANES if columns >= 2 * LANES else LANES
    if plane.by_row:
        for row in range(rows):
            here, a = running.row(row, 0, LANES), plane.row(row, 0, LANES)
            second = plane.row(row, LANES, LANES) if taken > LANES else None
            builder.emit(Copy(here, a) if second is None else Binary(join, here, a, second))
        builder.barrier("vector")
    elif taken > LANES:
        first, second = plane.block(0, LANES), plane.block(LANES, LANES)
        step(builder, Binary(join, running.whole, first, second))
    else:
        step(builder, Copy(running.whole, plane.block(0, LANES)))
    return taken
