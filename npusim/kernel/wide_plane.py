"""Vector steps over rows of any width in the unified buffer: one instruction for many rows.

Rows begin whole blocks apart. A step covers 64 columns of all rows, one row a repeat, or a whole
row at a time if rows are few or wide. Columns beyond the last multiple of 64 get separate steps,
and those that fill no block are processed row by row (asc-devkit, docs/zh, the guide's pages on
strides and masks; that the softmax library splits its rows this way is assumed).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.isa import BLOCK_BYTES, Binary, BinaryOp, Local
from npusim.kernel.repeats import STRIDE_BLOCKS
from npusim.kernel.vector_core import VectorCore

__all__ = [
    "LANES",
    "WidePlane",
    "by_columns",
    "by_rows",
    "padded",
    "reduce_by_repeat",
    "reduce_rows",
    "spread",
]

__kernel_vocabulary__ = True

LANES = 64
"""float32 in a repeat."""
BLOCK, REPEAT_BLOCKS = 8, 8
"""float32 in a block, and blocks in a repeat."""
TREE_COLUMNS = 512
"""From this many columns on, the first sums are those of 64 x 8 neighbours."""


@dataclass(frozen=True, slots=True)
class WidePlane:
    """*rows* x *columns* of *tile*, with rows *pitch* apart, a multiple of whole blocks.

    Elements are float32, or float16, of which a repeat and a block hold twice as many.
    """

    tile: Local
    rows: int
    columns: int
    pitch: int
    takes_rows: bool = True
    """Whether a step may take one row at a time, if rows are few."""

    @property
    def lanes(self) -> int:
        """Elements in a repeat."""
        return self._block * REPEAT_BLOCKS

    @property
    def _block(self) -> int:
        return BLOCK_BYTES // self.tile.dtype.nbytes(1)

    @property
    def whole(self) -> Local:
        """All elements, including the gaps between rows."""
        return self.tile.at(0, self.rows * self.pitch)

    @property
    def by_row(self) -> bool:
        """Whether a step takes one row at a time."""
        is_far = self.rows > 1 and self.pitch > STRIDE_BLOCKS * self._block
        return self.takes_rows and (is_far or self.rows < self.columns // self.lanes)

    def row(self, index: int, first: int, count: int) -> Local:
        """Columns [first, first + count) of a row."""
        return self.tile.at(index * self.pitch + first, count)

    def block(self, first: int, count: int) -> Local:
        """Columns [first, first + count) of all rows, a repeat a row, as whole blocks."""
        dtype, each = self.tile.dtype, self._block
        offset = self.tile.offset_bytes + dtype.nbytes(first)
        pitch, blocks = self.pitch // each, ceil_div(count, each)
        return Local(self.tile.buffer, offset, dtype, self.rows * blocks * each, 1, pitch, blocks)

    def reachable(self) -> Iterator[tuple[int, WidePlane]]:
        """The rows that one instruction reaches, all or one at a time, each with its first row."""
        if self.pitch <= STRIDE_BLOCKS * self._block:
            yield 0, self
            return
        for row in range(self.rows):
            yield row, replace(self, tile=self.tile[row * self.pitch :], rows=1)


def padded(column: Local) -> Local:
    """*column* `(rows,)` with the padding of its last block."""
    return replace(column, count=align_up(column.count, BLOCK_BYTES // column.dtype.nbytes(1)))


def spread(core: VectorCore, blocks: Local, column: Local) -> Local:
    """Broadcast each element of *column* `(rows,)` to a block of *blocks*, float32 `(rows, 8)`."""
    column = padded(column)
    found = blocks[: BLOCK_BYTES // column.dtype.nbytes(1) * column.count]
    core.brcb(found, column)
    return found


def by_rows(core: VectorCore, op: BinaryOp, plane: WidePlane, blocks: Local) -> None:
    """`plane = plane op value of the row`; *blocks* holds a block of copies for each row."""
    each = plane.lanes // REPEAT_BLOCKS
    with core.independent():
        for first, count in _spans(plane):
            if plane.by_row and count > plane.lanes:
                for row in range(plane.rows):
                    here = plane.row(row, first, count)
                    number = replace(blocks.at(row * each, each), count=count)
                    number = replace(number, block_stride=0, repeat_stride=0)
                    core.step(Binary(op, here, here, number))
                continue
            for row, part in plane.reachable():
                here = part.block(first, count)
                number = replace(here, buffer=blocks.buffer, block_stride=0, repeat_stride=1)
                offset = blocks.at(row * each, each).offset_bytes
                core.step(Binary(op, here, here, replace(number, offset_bytes=offset)))


def by_columns(core: VectorCore, op: BinaryOp, plane: WidePlane, factors: Local) -> None:
    """`plane = plane op factor of the column`; *factors* `(columns,)`."""
    with core.independent():
        if plane.by_row or plane.columns % LANES:
            for row in range(plane.rows):
                here = plane.row(row, 0, plane.columns)
                core.step(Binary(op, here, here, factors))
            return
        for first in range(0, plane.columns, LANES):
            here, offset = plane.block(first, LANES), factors.at(first, LANES).offset_bytes
            same = Local(factors.buffer, offset, FLOAT32, plane.rows * LANES, 1, 0)
            core.step(Binary(op, here, here, same))


def _spans(plane: WidePlane) -> Iterator[tuple[int, int]]:
    """First column and columns of each step: all lanes, or one repeat at a time, then the rest."""
    lanes = plane.lanes
    main = plane.columns // lanes * lanes
    step = main if plane.by_row else lanes
    for first in range(0, main, step or lanes):
        yield first, step
    if plane.columns > main:
        yield main, align_up(plane.columns - main, lanes // REPEAT_BLOCKS)


def reduce_rows(
    core: VectorCore, op: Literal["sum", "max"], result: Local, plane: WidePlane, lanes: Local
) -> None:
    """Write the sum or the maximum of each row to *result* `(rows,)`.

    *lanes* has room for 64 partial results a row. For the order of sums see `oracle.row_sums`.
    """
    rows, columns = plane.rows, plane.columns
    if columns <= LANES:
        mask = columns if columns < LANES else None
        for row, part in plane.reachable():
            core.whole_reduce(op, result.at(row, part.rows), part.block(0, columns), mask)
        return
    running = WidePlane(lanes, rows, LANES, LANES)
    _run_lanes(core, op, running, plane)
    core.whole_reduce(op, result, running.whole)


def _run_lanes(
    core: VectorCore, op: Literal["sum", "max"], running: WidePlane, plane: WidePlane
) -> None:
    """64 partial sums, or maxima, of each row of *plane*."""
    join: Literal["add", "max"] = "add" if op == "sum" else "max"
    start = _begin(core, op, join, running, plane)
    main = plane.columns // LANES * LANES
    if start < main and plane.by_row:
        with core.independent():
            for row in range(plane.rows):
                core.fold(join, running.row(row, 0, LANES), plane.row(row, start, main - start))
    elif start < main:
        for first in range(start, main, LANES):
            there = plane.block(first, LANES)
            core.step(Binary(join, running.whole, running.whole, there))
    rest = plane.columns - main
    if rest and (rest % BLOCK or plane.by_row):
        with core.independent():
            for row in range(plane.rows):
                here = running.row(row, 0, rest)
                core.step(Binary(join, here, here, plane.row(row, main, rest)))
    elif rest:
        here = running.block(0, rest)
        core.step(Binary(join, here, here, plane.block(main, rest)))


def _begin(
    core: VectorCore,
    op: Literal["sum", "max"],
    join: Literal["add", "max"],
    running: WidePlane,
    plane: WidePlane,
) -> int:
    """Write the first partial results; return how many columns they cover."""
    rows, columns = plane.rows, plane.columns
    if op == "sum" and columns >= TREE_COLUMNS:
        if plane.pitch == TREE_COLUMNS:
            core.block_reduce("sum", running.whole, plane.whole)
            return TREE_COLUMNS
        with core.independent():
            for row in range(rows):
                lanes = running.row(row, 0, LANES)
                core.block_reduce("sum", lanes, plane.row(row, 0, TREE_COLUMNS))
        return TREE_COLUMNS
    taken = 2 * LANES if columns >= 2 * LANES else LANES
    if plane.by_row:
        with core.independent():
            for row in range(rows):
                here, first = running.row(row, 0, LANES), plane.row(row, 0, LANES)
                if taken == LANES:
                    core.copy(here, first)
                else:
                    core.step(Binary(join, here, first, plane.row(row, LANES, LANES)))
    elif taken > LANES:
        first, second = plane.block(0, LANES), plane.block(LANES, LANES)
        core.step(Binary(join, running.whole, first, second))
    else:
        core.copy(running.whole, plane.block(0, LANES))
    return taken


def reduce_by_repeat(
    core: VectorCore, op: Literal["sum", "max"], result: Local, plane: WidePlane, scratch: Local
) -> None:
    """Write the sum or the maximum of each row to *result* `(rows,)`, one repeat after the other.

    Rows of 512 and of 256 columns are summed as a tree of neighbours instead. *scratch* has room
    for twice an eighth of the columns of each row.
    """
    of_type = _reduce_by_64 if plane.tile.dtype is FLOAT32 else _reduce_by_128
    of_type(core, op, result, plane, scratch)


def _reduce_by_64(
    core: VectorCore, op: Literal["sum", "max"], result: Local, plane: WidePlane, scratch: Local
) -> None:
    """Reduce float32 rows, at least eight of them."""
    target = padded(result)
    whole, count = replace(plane, rows=target.count), target.count
    if plane.columns in (512, 256):
        # (rows, columns) -> (rows, columns / 8)
        eighths = scratch[: count * plane.columns // BLOCK]
        core.block_reduce(op, eighths, whole.whole)
        if plane.columns == 256:
            core.whole_reduce(op, target, replace(eighths, repeat_stride=4, repeat_blocks=4))
            return
        # (rows, 64) -> (rows, 8) -> (rows,)
        fewer = scratch[eighths.count :][: BLOCK * count]
        core.block_reduce(op, fewer, eighths)
        core.block_reduce(op, target, fewer)
        return
    partial = scratch[scratch.count // 2 :][:count]
    for start in range(0, plane.columns, LANES):
        columns = min(LANES, plane.columns - start)
        here, source = (partial if start else target), whole.block(start, columns)
        if columns == LANES:
            # (rows, 64) -> (rows, 8) -> (rows,)
            eighths = scratch[: BLOCK * count]
            core.block_reduce(op, eighths, source)
            core.block_reduce(op, here, eighths)
        else:
            core.whole_reduce(op, here, source, columns if columns % BLOCK else None)
        if start:
            merge: BinaryOp = "add" if op == "sum" else "max"
            core.step(Binary(merge, result, result, partial[: result.count]))


def _reduce_by_128(
    core: VectorCore, op: Literal["sum", "max"], result: Local, plane: WidePlane, scratch: Local
) -> None:
    """Reduce float16 rows."""
    rows, each = plane.rows, plane.lanes // REPEAT_BLOCKS
    if plane.columns in (512, 256):
        # (rows, columns) -> (rows, columns / 16) -> (rows,)
        parts = scratch[: rows * plane.columns // each]
        core.block_reduce(op, parts, plane.whole)
        blocks = plane.columns // each // each
        core.whole_reduce(op, result, replace(parts, repeat_stride=blocks, repeat_blocks=blocks))
        return
    for start in range(0, plane.columns, plane.lanes):
        columns = min(plane.lanes, plane.columns - start)
        here = scratch[:rows] if start else result
        mask = columns if columns < plane.lanes else None
        core.whole_reduce(op, here, plane.block(start, columns), mask)
        if start:
            core.step(Binary("add" if op == "sum" else "max", result, result, here))
