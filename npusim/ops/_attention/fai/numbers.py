"""Rows in the unified buffer of FAI: maxima and sums of them, and what a number a row does to them.

Rows begin a whole number of blocks apart. A vector instruction takes 64 columns of all rows, a
repeat a row, and reduces eight rows at least.

Sources: see :mod:`npusim.ops._attention.fai` (epilogue/block).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.isa import (
    Binary,
    BinaryOp,
    BlockReduce,
    Broadcast,
    Local,
    WholeReduce,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot

__all__ = ["Rows", "by_row", "combine", "reduce_rows", "spread"]

LANES = 64
"""fp32 numbers of a repeat."""
BLOCK_LANES = 8
"""fp32 numbers of a block; rows that are reduced together."""
LEVELS_OF_512, LEVELS_OF_256 = 512, 256
"""Columns that are reduced at once; others 64 at a time."""


@dataclass(frozen=True, slots=True)
class Rows:
    """*rows* x *columns* of fp32, rows *pitch* numbers apart."""

    first: Local
    """The first number."""
    rows: int
    columns: int
    pitch: int

    def whole(self) -> Local:
        """All numbers, and what lies between rows."""
        return self._of(0, self.rows * self.pitch)

    def padded(self) -> Local:
        """The same of eight rows at least, a multiple of eight."""
        return self._of(0, align_up(self.rows, BLOCK_LANES) * self.pitch)

    def chunk(self, start: int, rows: int | None = None, columns: int = LANES) -> Local:
        """*columns* from *start* on, at most 64, of all rows or of *rows*: a row a repeat."""
        blocks = ceil_div(columns, BLOCK_LANES)
        count = (self.rows if rows is None else rows) * blocks * BLOCK_LANES
        offset = self.first.offset_bytes + FLOAT32.nbytes(start)
        pitch = self.pitch // BLOCK_LANES
        return Local(self.first.buffer, offset, FLOAT32, count, 1, pitch, blocks)

    @property
    def chunks(self) -> tuple[tuple[int, int], ...]:
        """Where each 64 columns begin, and how many there are."""
        starts = range(0, self.columns, LANES)
        return tuple((start, min(LANES, self.columns - start)) for start in starts)

    def _of(self, start: int, count: int) -> Local:
        offset = self.first.offset_bytes + FLOAT32.nbytes(start)
        return Local(self.first.buffer, offset, FLOAT32, count)


def spread(builder: Builder, blocks: Slot, numbers: Local) -> Local:
    """Each of *numbers* `(rows,)` as a block of eight in *blocks* (Brcb): `(rows, 8)`."""
    count = align_up(numbers.count, BLOCK_LANES)
    source = Local(numbers.buffer, numbers.offset_bytes, FLOAT32, count)
    found = blocks.of(FLOAT32, BLOCK_LANES * count)
    step(builder, Broadcast(found, source))
    return found


def by_row(builder: Builder, op: BinaryOp, rows: Rows, blocks: Local) -> None:
    """`rows = rows op number of the row`; *blocks* has each row's number eight times."""
    for start, columns in rows.chunks:
        here = rows.chunk(start, columns=columns)
        number = Local(
            blocks.buffer, blocks.offset_bytes, FLOAT32, here.count, 0, 1, here.repeat_blocks
        )
        builder.emit(Binary(op, here, here, number))
    builder.barrier("vector")


def combine(builder: Builder, op: BinaryOp, rows: Rows, start: int, others: Rows) -> None:
    """`rows[:, start:] = rows[:, start:] op others`, 64 columns at a time."""
    for column, columns in others.chunks:
        here = rows.chunk(start + column, columns=columns)
        builder.emit(Binary(op, here, here, others.chunk(column, columns=columns)))
    builder.barrier("vector")


def reduce_rows(
    builder: Builder, op: Literal["sum", "max"], result: Local, rows: Rows, scratch: Slot
) -> None:
    """The sum or the largest of each row to *result* `(rows,)`, whose last block is filled.

    512 and 256 columns are a tree of neighbours; of others it is each 64, one after the other.
    """
    count = align_up(rows.rows, BLOCK_LANES)
    target = Local(result.buffer, result.offset_bytes, FLOAT32, count)
    if rows.columns in (LEVELS_OF_512, LEVELS_OF_256):
        _in_levels(builder, op, target, rows, scratch)
        return
    half_bytes = scratch.nbytes // 2
    partial = scratch.of(FLOAT32, count, half_bytes)
    for start, columns in rows.chunks:
        here = target if start == 0 else partial
        if columns == LANES:
            # (rows, 64) -> (rows, 8) -> (rows,)
            eighths = scratch.of(FLOAT32, BLOCK_LANES * count)
            step(builder, BlockReduce(op, eighths, rows.chunk(start, count)))
            step(builder, BlockReduce(op, here, eighths))
        else:
            source = rows.chunk(start, count, columns)
            mask = columns if columns % BLOCK_LANES else None
            step(builder, WholeReduce(op, here, source, mask))
        if start:
            total = Local(result.buffer, result.offset_bytes, FLOAT32, rows.rows)
            merge: BinaryOp = "add" if op == "sum" else "max"
            other = Local(partial.buffer, partial.offset_bytes, FLOAT32, rows.rows)
            step(builder, Binary(merge, total, total, other))


def _in_levels(
    builder: Builder, op: Literal["sum", "max"], target: Local, rows: Rows, scratch: Slot
) -> None:
    """Eight numbers become one, level by level."""
    count = target.count
    # (rows, columns) -> (rows, columns / 8)
    eighths = scratch.of(FLOAT32, count * rows.columns // BLOCK_LANES)
    step(builder, BlockReduce(op, eighths, rows.padded()))
    if rows.columns == LEVELS_OF_256:
        blocks = LEVELS_OF_256 // BLOCK_LANES // BLOCK_LANES
        lanes = Local(
            eighths.buffer, eighths.offset_bytes, FLOAT32, eighths.count, 1, blocks, blocks
        )
        step(builder, WholeReduce(op, target, lanes))
        return
    # (rows, 64) -> (rows, 8) -> (rows,)
    fewer = scratch.of(FLOAT32, BLOCK_LANES * count, eighths.nbytes)
    step(builder, BlockReduce(op, fewer, eighths))
    step(builder, BlockReduce(op, target, fewer))
