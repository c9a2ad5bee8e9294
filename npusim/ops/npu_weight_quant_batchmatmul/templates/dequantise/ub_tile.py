"""A tile of the weight in the unified buffer, and the micro-ops that apply a parameter to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from npusim.data.dtypes import FLOAT16, FLOAT32, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import c0
from npusim.isa import BLOCK_BYTES, Binary, BinaryScalar, Local
from npusim.kernel.cube import GmMatrix
from npusim.kernel.queues import Slot
from npusim.kernel.views import GmView
from npusim.ops.npu_weight_quant_batchmatmul.templates.dequantise.parameters import ROW, Parameter

__all__ = ["UbTile"]

Operands = tuple[Local, Local, Local | None]
"""Destination, source and numbers of a micro-op; None is the number in the register."""


class UbTile:
    """The layout of a tile in the unified buffer, and the scales and offsets of each part of it.

    ND rows are filled up to whole repeats of fp16. A column of fractals has as many elements
    as 32 bytes of the weight before it is split, then 16; its rows follow each other.
    """

    def __init__(self, weight: GmMatrix, tile: GmView, group_ends: tuple[int, ...]) -> None:
        """*tile* is its view in *weight*; *group_ends* count from the first k of the tile."""
        self.is_nz, self.group_ends = weight.layout != "ND", group_ends
        self.k_is_first, self.width = weight.k_is_first, ROW
        self.rows, self.columns = tile.rows, tile.columns
        if self.is_nz:
            # A row of the view is a column of fractals: (fractal columns, rows x c0).
            self.width = c0(weight.dtype)
            self.rows, self.columns = tile.columns // self.width, tile.rows * self.width
        self.pitch = align_up(self.columns, self.width)
        self.count = self.rows * self.pitch

    def apply(
        self, op: Literal["add", "mul"], number: Parameter, src: Slot, dst: Slot
    ) -> Iterator[Binary | BinaryScalar]:
        """`dst = src op number`; fractals are split on the way from one slot to another."""
        for out, source, numbers in self._operands(number, dst, src):
            if numbers is None:
                yield BinaryScalar(op, out, source, number.name)
            else:
                yield Binary(op, out, source, numbers)

    def fp16_to_fp32(self, fp32: Slot, fp16: Slot, is_split: bool) -> Iterator[tuple[Local, Local]]:
        """Destinations and sources of the cast from fp16 to fp32, which may split fractals."""
        if is_split or not self.is_nz:
            yield fp32.of(FLOAT32, self.count), fp16.of(FLOAT16, self.count)
            return
        size = self.rows * c0(FLOAT16)
        for column in range(self.count // size):
            source = self._unsplit(fp16, column, 0, self.rows)
            yield fp32.of(FLOAT32, size, column * FLOAT32.nbytes(size)), source

    def _operands(self, number: Parameter, dst: Slot, src: Slot) -> Iterator[Operands]:
        if self.is_nz:
            yield from self._of_fractals(number, dst, src)
        elif number.axis == "none":
            yield dst.of(number.dtype, self.count), src.of(number.dtype, self.count), None
        elif self.k_is_first:
            yield from self._of_columns(number, dst, src)
        else:
            yield from self._of_rows(number, dst, src)

    def _groups(self, end: int) -> Iterator[tuple[int, int, int]]:
        """Group, first and end along k, the last up to *end*."""
        ends = (*self.group_ends[:-1], end)
        for group, (start, stop) in enumerate(zip((0, *ends[:-1]), ends, strict=True)):
            yield group, start, stop

    def _of_fractals(self, number: Parameter, dst: Slot, src: Slot) -> Iterator[Operands]:
        """Columns of 16, a block of all rows a micro-op; of fp32 each row is two blocks."""
        dtype, axis = number.dtype, number.axis
        blocks = c0(FLOAT16) // c0(dtype)
        is_split = dtype is FLOAT32 or src is dst
        # Groups split the rows where k runs down them; numbers of rows and registers need no split.
        groups = list(self._groups(self.rows)) if axis == "columns" else [(0, 0, self.rows)]
        for column in range(self.count // (self.rows * c0(FLOAT16))):
            for group, start, end in groups:
                rows = end - start
                for block in range(blocks):
                    # In blocks: column of 16, then row, then half of the row if it is fp32.
                    first = (column * self.rows + start) * blocks + block
                    out, source = _both(dst, src, dtype, first, rows, blocks, 8 * blocks)
                    if not is_split:
                        source = self._unsplit(src, column, start, end)
                    numbers = None
                    if axis == "columns":
                        numbers = number.of_column_block(group, column * blocks + block, rows)
                    elif axis == "rows":
                        numbers = number.of_rows(group, rows, repeat_is_row=False)
                    yield out, source, numbers

    def _unsplit(self, fp16: Slot, column: int, start: int, end: int) -> Local:
        """Rows [start, end) of a column of 16 before fractals are split."""
        # Rows of 32 int8 or 64 int4 are 2 or 4 blocks of fp16: one of each row.
        columns_16 = self.width // c0(FLOAT16)
        fractal, part = divmod(column, columns_16)
        first = (fractal * self.rows + start) * columns_16 + part
        return _strided(fp16, FLOAT16, first, end - start, columns_16, 8 * columns_16)

    def _of_columns(self, number: Parameter, dst: Slot, src: Slot) -> Iterator[Operands]:
        """The rows of a group: eight blocks of columns a micro-op, or a row if that takes fewer."""
        dtype, row_blocks = number.dtype, self.pitch // c0(number.dtype)
        chunks = range(0, row_blocks, 8)[: ceil_div(self.columns, 8 * c0(dtype))]
        for group, start, end in self._groups(self.rows):
            if end - start <= len(chunks):
                for row in range(start, end):
                    both = _both(dst, src, dtype, row * row_blocks, row_blocks, 1, 8)
                    yield *both, number.of_columns(group, 0, row_blocks, 8)
                continue
            # A repeat is a row, whose vector is read again.
            blocks = 8 * (end - start)
            for chunk in chunks:
                both = _both(dst, src, dtype, start * row_blocks + chunk, blocks, 1, row_blocks)
                yield *both, number.of_columns(group, chunk, blocks, 0)

    def _of_rows(self, number: Parameter, dst: Slot, src: Slot) -> Iterator[Operands]:
        """The columns of a group: eight blocks of a row a repeat, the rest a block of each row."""
        dtype, width = number.dtype, c0(number.dtype)
        row_blocks, blocks = self.pitch // width, 8 * self.rows
        eights = self._eights(8 * width)
        for eight in range(eights):
            # One block of each of eight groups in a repeat, one repeat a row.
            size = self.group_ends[0] // width
            for block in range(size):
                first = 8 * eight * size + block
                both = _both(dst, src, dtype, first, blocks, size, row_blocks)
                yield *both, number.of_groups(8 * eight, blocks)
        for group, start, end in list(self._groups(self.pitch))[8 * eights :]:
            column = start
            while column < min(end, self.columns):
                first = column // width
                # A full repeat of a row lies within the group; else one block of every row.
                if column + 8 * width <= end:
                    both = _both(dst, src, dtype, first, blocks, 1, row_blocks)
                    yield *both, number.of_rows(group, blocks, repeat_is_row=True)
                    column += 8 * width
                else:
                    rows = align_up(self.rows, 8)
                    both = _both(dst, src, dtype, first, rows, row_blocks, 8 * row_blocks)
                    yield *both, number.of_rows(group, rows, repeat_is_row=False)
                    column += width

    def _eights(self, limit: int) -> int:
        """How many times eight groups of equal size below *limit* follow each other."""
        ends = self.group_ends
        size = ends[0]
        if len(ends) < 8 or ends[1] != 2 * size or size >= limit:
            return 0
        return min(len(ends) // 8, self.pitch // (8 * size))


def _strided(
    slot: Slot, dtype: DType, first: int, blocks: int, block_stride: int, repeat_stride: int
) -> Local:
    """*blocks* of 32 bytes from block *first* of *slot* on; strides are in blocks."""
    offset = slot.offset_bytes + first * BLOCK_BYTES
    return Local(slot.buffer, offset, dtype, blocks * c0(dtype), block_stride, repeat_stride)


def _both(
    dst: Slot,
    src: Slot,
    dtype: DType,
    first: int,
    blocks: int,
    block_stride: int,
    repeat_stride: int,
) -> tuple[Local, Local]:
    """The same blocks of both slots, see :func:`_strided`."""
    return (
        _strided(dst, dtype, first, blocks, block_stride, repeat_stride),
        _strided(src, dtype, first, blocks, block_stride, repeat_stride),
    )
