"""Pieces of a weight: where they lie in memory, and which part of one meets which numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, INT8, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.isa import BLOCK_BYTES, Local
from npusim.kernel.cube import GmMatrix
from npusim.kernel.queues import Slot
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.parameters import ROW, Parameter

__all__ = ["Cell", "Grid", "Piece", "gm_weight", "piece_of"]


def gm_weight(p: Problem) -> GmMatrix:
    """The weight as it lies in memory, in numbers: an int32 holds eight int4."""
    f = p.traits
    rows, columns = (f.n, f.k) if f.trans_weight else (f.k, f.n)
    layout: Literal["ND", "FRACTAL_NZ"] = "FRACTAL_NZ" if f.is_nz else "ND"
    kind = INT8 if f.weight == "int8" else INT4
    return GmMatrix("weight", kind, rows, columns, not f.trans_weight, layout)


class Piece(NamedTuple):
    """A part of the weight as it lies in memory."""

    row: int
    column: int
    rows: int
    columns: int
    ends: tuple[int, ...]
    """Where groups end, counted along k from the piece's first; the last is its length."""


def piece_of(p: Problem, row: int, column: int, rows: int, columns: int) -> Piece:
    """The piece of that size that begins at *row*, *column* of the weight in memory."""
    first, length = (column, columns) if p.traits.trans_weight else (row, rows)
    size = p.traits.group_size or align_up(p.traits.k, 1)
    inner = range(first // size * size + size, first + length, size)
    return Piece(row, column, rows, columns, (*(end - first for end in inner), length))


class Cell(NamedTuple):
    """One micro-op's share of a piece."""

    place: Local
    source: Local
    """Where it lies before fractals are split; the same as *place* if there are none."""
    number: Local | None
    """What it meets; None is the register's number."""


class Grid:
    """How a piece lies in the unified buffer, and which part of it meets which numbers.

    ND rows are filled up to whole repeats of fp16. Columns of fractals are as wide as 32 bytes of
    the weight before they are split, then 16 wide; their rows follow each other.
    """

    def __init__(self, p: Problem, piece: Piece) -> None:
        gm_matrix = gm_weight(p)
        self.is_nz, self.ends, self.k_is_first = p.traits.is_nz, piece.ends, gm_matrix.k_is_first
        self.rows, self.columns = piece.rows, piece.columns
        self.width = ROW
        if self.is_nz:
            self.rows, self.width = align_up(piece.rows, FRACTAL_ROWS), c0(gm_matrix.dtype)
        self.pitch = align_up(piece.columns, self.width)
        self.count = self.rows * self.pitch

    def groups(self, end: int) -> Iterator[tuple[int, int, int]]:
        """Group, first and end along k, the last up to *end*."""
        starts = (0, *self.ends[:-1])
        for group, (start, stop) in enumerate(zip(starts, (*self.ends[:-1], end), strict=True)):
            yield group, start, stop

    def halves(self, wide: Slot, half: Slot, is_split: bool) -> Iterator[tuple[Local, Local]]:
        """Destinations and sources of the cast from fp16 to fp32, which may split fractals."""
        if is_split or not self.is_nz:
            yield wide.of(FLOAT32, self.count), half.of(FLOAT16, self.count)
            return
        size = self.rows * c0(FLOAT16)
        for strip in range(self.count // size):
            source = self._unsplit(half, strip, 0, self.rows)
            yield wide.of(FLOAT32, size, FLOAT32.nbytes(strip * size)), source

    def cells(self, number: Parameter, src: Slot, dst: Slot) -> Iterator[Cell]:
        """The parts of a piece in *src* and *dst*, and what each meets of *number*."""
        kind = number.room.kind
        if self.is_nz:
            yield from self._strips(number, src, dst)
        elif number.room.way == "single":
            yield Cell(dst.of(kind, self.count), src.of(kind, self.count), None)
        elif self.k_is_first:
            yield from self._lines(number, src, dst)
        else:
            yield from self._spans(number, src, dst)

    def _strips(self, number: Parameter, src: Slot, dst: Slot) -> Iterator[Cell]:
        """Columns of 16, a block of rows a micro-op; of fp32 each row is two blocks."""
        kind, way = number.room.kind, number.room.way
        blocks = c0(FLOAT16) // c0(kind)
        groups = tuple(self.groups(self.rows)) if way == "along" else ((0, 0, self.rows),)
        for strip in range(self.count // (self.rows * c0(FLOAT16))):
            for group, start, end in groups:
                for block in range(blocks):
                    first = (strip * self.rows + start) * blocks + block
                    place = _blocks(dst, kind, first, end - start, blocks, 8 * blocks)
                    is_split = kind is FLOAT32 or src is dst
                    source = _blocks(src, kind, first, end - start, blocks, 8 * blocks)
                    if not is_split:
                        source = self._unsplit(src, strip, start, end)
                    met = None
                    if way == "along":
                        met = number.again(group, strip * blocks + block, end - start)
                    elif way == "down":
                        met = number.down(group, end - start, False)
                    yield Cell(place, source, met)

    def _unsplit(self, half: Slot, strip: int, start: int, end: int) -> Local:
        """Rows [start, end) of a column of 16 as it lies before fractals are split."""
        across = self.width // c0(FLOAT16)
        column, part = divmod(strip, across)
        first = (column * self.rows + start) * across + part
        return _blocks(half, FLOAT16, first, end - start, across, 8 * across)

    def _lines(self, number: Parameter, src: Slot, dst: Slot) -> Iterator[Cell]:
        """The rows of a group: eight blocks of columns a micro-op, or a row if that takes fewer."""
        kind = number.room.kind
        line, across = self.pitch // c0(kind), 8 * c0(kind)
        chunks = range(0, line, 8)[: ceil_div(self.columns, across)]
        for group, start, end in self.groups(self.rows):
            if end - start <= len(chunks):
                for row in range(start, end):
                    place, source = (_blocks(s, kind, row * line, line, 1, 8) for s in (dst, src))
                    yield Cell(place, source, number.along(group, 0, line, 8))
                continue
            for chunk in chunks:
                first, blocks = start * line + chunk, 8 * (end - start)
                place, source = (_blocks(s, kind, first, blocks, 1, line) for s in (dst, src))
                yield Cell(place, source, number.along(group, chunk, blocks, 0))

    def _spans(self, number: Parameter, src: Slot, dst: Slot) -> Iterator[Cell]:
        """The columns of a group: eight blocks of a row a repeat, the rest a block a row."""
        kind = number.room.kind
        line, width = self.pitch // c0(kind), c0(kind)
        high = align_up(self.rows, 8)
        eights = self._eights(8 * width)
        for eight in range(eights):
            size = self.ends[0] // width
            for block in range(size):
                first = 8 * eight * size + block
                place, source = (
                    _blocks(s, kind, first, 8 * self.rows, size, line) for s in (dst, src)
                )
                yield Cell(place, source, number.across(8 * eight, 8 * self.rows))
        for group, start, end in list(self.groups(self.pitch))[8 * eights :]:
            while start < min(end, self.columns):
                is_wide = start + 8 * width <= end
                blocks = 8 * self.rows if is_wide else high
                strides = (1, line) if is_wide else (line, 8 * line)
                first = start // width
                place, source = (_blocks(s, kind, first, blocks, *strides) for s in (dst, src))
                yield Cell(place, source, number.down(group, blocks, is_wide))
                start += 8 * width if is_wide else width

    def _eights(self, wide: int) -> int:
        """How many times eight groups, narrower than *wide*, lie beside each other alike."""
        size = self.ends[0]
        if len(self.ends) < 8 or self.ends[1] != 2 * size or size >= wide:
            return 0
        return min(len(self.ends) // 8, self.pitch // (8 * size))


def _blocks(
    slot: Slot, dtype: DType, first: int, blocks: int, block_stride: int, repeat_stride: int
) -> Local:
    offset = slot.offset_bytes + first * BLOCK_BYTES
    return Local(slot.buffer, offset, dtype, blocks * c0(dtype), block_stride, repeat_stride)
