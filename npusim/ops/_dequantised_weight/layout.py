"""Tiles of a weight in global memory and in the unified buffer, and the parameters of each part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from npusim.data.dtypes import FLOAT16, FLOAT32, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.isa import BLOCK_BYTES, Local
from npusim.kernel.matrices import GmMatrix
from npusim.kernel.views import GmView

__all__ = ["ROW", "Axis", "MatrixTile", "TileLayout", "Values", "tile_view"]

ROW = 128
"""Rows in the unified buffer are padded to repeats of this many fp16."""
Axis = Literal["none", "columns", "rows"]
"""A parameter has one value, or one for each column or row of the weight as stored."""


class MatrixTile(NamedTuple):
    """A rectangle of a matrix as stored; in FRACTAL_NZ it begins at a fractal."""

    row: int
    column: int
    rows: int
    columns: int


def tile_view(matrix: GmMatrix, tile: MatrixTile) -> GmView:
    """*tile* of *matrix*: `(rows, columns)` in ND.

    In FRACTAL_NZ it is `(columns / c0, rows x c0)`, in whole fractals: a row of the view is a
    column of fractals.
    """
    row, column, rows, columns = tile
    if matrix.layout == "ND":
        return matrix.view[row : row + rows, column : column + columns]
    width, rows_padded = c0(matrix.dtype), align_up(matrix.rows, FRACTAL_ROWS)
    fractals = ceil_div(matrix.columns, width)
    view = GmView.of(matrix.name, matrix.dtype, fractals, rows_padded * width)
    # (fractal columns, rows_padded x c0): whole fractals of these rows in each column
    bottom = align_up(row + rows, FRACTAL_ROWS)
    return view[column // width : ceil_div(column + columns, width), row * width : bottom * width]


class Values(NamedTuple):
    """A scale or offset of a tile in the unified buffer, or in a register for axis none."""

    axis: Axis
    dtype: DType
    register: str
    tile: Local
    pitch_blocks: int
    """Blocks from group to group, or from row to row."""

    def at(self, first: int, blocks: int, block_stride: int, repeat_stride: int) -> Local:
        """*blocks* of 32 bytes from block *first* on; a stride of 0 repeats blocks."""
        return strided(self.tile, self.dtype, first, blocks, block_stride, repeat_stride)


Operands = tuple[Local, Local, Local | None]
"""Destination, source and values of a micro-op; None is the value in the register."""


@dataclass(frozen=True, slots=True)
class TileLayout:
    """The layout of a tile in the unified buffer, and the scales and offsets of each of its parts.

    ND rows are padded to full repeats of fp16. Before it is split, a column of fractals has as many
    elements per row as 32 bytes of the weight, then 16; its rows are contiguous.
    """

    is_nz: bool
    k_is_first: bool
    group_ends: tuple[int, ...]
    """Relative to the first k of the tile."""
    rows: int
    columns: int
    width: int
    """Columns of a column of fractals, or the padded width of rows."""

    @staticmethod
    def of(weight: GmMatrix, tile: GmView, group_ends: tuple[int, ...]) -> TileLayout:
        """The layout of *tile*, a view of *weight*."""
        if weight.layout == "ND":
            return TileLayout(False, weight.k_is_first, group_ends, tile.rows, tile.columns, ROW)
        # A row of the view is a column of fractals: (fractal columns, rows x c0).
        width = c0(weight.dtype)
        rows, columns = tile.columns // width, tile.rows * width
        return TileLayout(True, weight.k_is_first, group_ends, rows, columns, width)

    @property
    def pitch(self) -> int:
        """Elements from row to row."""
        return align_up(self.columns, self.width)

    @property
    def count(self) -> int:
        return self.rows * self.pitch

    def fp16_to_fp32(
        self, fp32: Local, fp16: Local, is_split: bool
    ) -> Iterator[tuple[Local, Local]]:
        """Destinations and sources of the cast from fp16 to fp32, which may split fractals."""
        if is_split or not self.is_nz:
            yield fp32, fp16[: self.count]
            return
        size = self.rows * c0(FLOAT16)
        for column in range(self.count // size):
            yield fp32.at(column * size, size), self._unsplit(fp16, column, 0, self.rows)

    def operands(self, values: Values, dst: Local, src: Local) -> Iterator[Operands]:
        """The operands of each micro-op that applies *values* to *src*."""
        if self.is_nz:
            yield from self._of_fractals(values, dst, src)
        elif values.axis == "none":
            yield dst[: self.count], src[: self.count], None
        elif self.k_is_first:
            yield from self._of_columns(values, dst, src)
        else:
            yield from self._of_rows(values, dst, src)

    def _groups(self, end: int) -> Iterator[tuple[int, int, int]]:
        """Group, first and end along k, with the last end cut to *end*."""
        ends = (*self.group_ends[:-1], end)
        for group, (start, stop) in enumerate(zip((0, *ends[:-1]), ends, strict=True)):
            yield group, start, stop

    def _of_fractals(self, values: Values, dst: Local, src: Local) -> Iterator[Operands]:
        """Columns of 16, one block of all rows per micro-op; in fp32 each row is two blocks."""
        dtype, axis, pitch = values.dtype, values.axis, values.pitch_blocks
        blocks = c0(FLOAT16) // c0(dtype)
        is_split = dtype is FLOAT32 or src.offset_bytes == dst.offset_bytes
        # Groups split the rows if k runs down them; values of rows and registers need no split.
        groups = list(self._groups(self.rows)) if axis == "columns" else [(0, 0, self.rows)]
        for column in range(self.count // (self.rows * c0(FLOAT16))):
            for group, start, end in groups:
                rows = end - start
                for block in range(blocks):
                    # In blocks: column of 16, then row, then half of the row in fp32.
                    first = (column * self.rows + start) * blocks + block
                    out, source = _both(dst, src, dtype, first, rows, blocks, 8 * blocks)
                    if not is_split:
                        source = self._unsplit(src, column, start, end)
                    other = None
                    if axis == "columns":
                        other = values.at(group * pitch + column * blocks + block, rows, 0, 0)
                    elif axis == "rows":
                        other = values.at(group, rows, pitch, 8 * pitch)
                    yield out, source, other

    def _unsplit(self, fp16: Local, column: int, start: int, end: int) -> Local:
        """Rows [start, end) of a column of 16 before fractals are split."""
        # Rows of 32 int8 or 64 int4 are 2 or 4 blocks of fp16: one of each row.
        columns_16 = self.width // c0(FLOAT16)
        fractal, part = divmod(column, columns_16)
        first = (fractal * self.rows + start) * columns_16 + part
        return strided(fp16, FLOAT16, first, end - start, columns_16, 8 * columns_16)

    def _of_columns(self, values: Values, dst: Local, src: Local) -> Iterator[Operands]:
        """The rows of a group: eight blocks of columns per micro-op, or a row if that is fewer."""
        dtype, pitch = values.dtype, values.pitch_blocks
        row_blocks = self.pitch // c0(dtype)
        chunks = range(0, row_blocks, 8)[: ceil_div(self.columns, 8 * c0(dtype))]
        for group, start, end in self._groups(self.rows):
            if end - start <= len(chunks):
                for row in range(start, end):
                    both = _both(dst, src, dtype, row * row_blocks, row_blocks, 1, 8)
                    yield *both, values.at(group * pitch, row_blocks, 1, 8)
                continue
            # A repeat is a row, for which the vector is read again.
            blocks = 8 * (end - start)
            for chunk in chunks:
                both = _both(dst, src, dtype, start * row_blocks + chunk, blocks, 1, row_blocks)
                yield *both, values.at(group * pitch + chunk, blocks, 1, 0)

    def _of_rows(self, values: Values, dst: Local, src: Local) -> Iterator[Operands]:
        """The columns of a group: eight blocks of a row per repeat, else a block of each row."""
        dtype, width, pitch = values.dtype, c0(values.dtype), values.pitch_blocks
        row_blocks, blocks = self.pitch // width, 8 * self.rows
        eights = self._eights(8 * width)
        for eight in range(eights):
            # One block of each of eight groups per repeat, one repeat per row.
            size = self.group_ends[0] // width
            for block in range(size):
                both = _both(dst, src, dtype, 8 * eight * size + block, blocks, size, row_blocks)
                yield *both, values.at(8 * eight, blocks, 1, pitch)
        for group, column, end in list(self._groups(self.pitch))[8 * eights :]:
            while column < min(end, self.columns):
                first = column // width
                # If a full repeat of a row is within the group; otherwise one block of every row.
                if column + 8 * width <= end:
                    both = _both(dst, src, dtype, first, blocks, 1, row_blocks)
                    yield *both, values.at(group, blocks, 0, pitch)
                    column += 8 * width
                else:
                    rows = align_up(self.rows, 8)
                    both = _both(dst, src, dtype, first, rows, row_blocks, 8 * row_blocks)
                    yield *both, values.at(group, rows, pitch, 8 * pitch)
                    column += width

    def _eights(self, limit: int) -> int:
        """How often eight groups of equal size fit below *limit*, one after another."""
        ends = self.group_ends
        size = ends[0]
        if len(ends) < 8 or ends[1] != 2 * size or size >= limit:
            return 0
        return min(len(ends) // 8, self.pitch // (8 * size))


def strided(
    tile: Local, dtype: DType, first: int, blocks: int, block_stride: int, repeat_stride: int
) -> Local:
    """*blocks* of 32 bytes from block *first* of *tile* on; strides are in blocks."""
    start = tile.offset_bytes + first * BLOCK_BYTES
    return Local(tile.buffer, start, dtype, blocks * c0(dtype), block_stride, repeat_stride)


def _both(
    dst: Local, src: Local, dtype: DType, first: int, blocks: int, *strides: int
) -> tuple[Local, Local]:
    """The same blocks of both tiles, see :func:`strided`."""
    block_stride, repeat_stride = strides
    return (
        strided(dst, dtype, first, blocks, block_stride, repeat_stride),
        strided(src, dtype, first, blocks, block_stride, repeat_stride),
    )
