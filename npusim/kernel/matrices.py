"""Matrices that a cube core multiplies: in global memory, and in L1 as Nz."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from npusim.data.dtypes import Array, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.isa import BLOCK_BYTES, Local
from npusim.kernel.steps import GmColumn, Integers
from npusim.kernel.views import GmView, Shiftable

__all__ = [
    "GmMatrix",
    "GmTile",
    "GmTiles",
    "L1Matrix",
    "l0c_elements",
    "l1_bytes",
    "l1_elements",
    "l1_rows",
]

__kernel_vocabulary__ = True


@dataclass(frozen=True, slots=True)
class GmMatrix:
    """The layout of an operand of a product in global memory.

    *rows* x *columns* is the matrix in memory. `k_is_first` means that k is its first axis, as in a
    plain right operand (k, n) or a transposed left one (k, m).
    """

    name: str
    dtype: DType
    rows: int
    columns: int
    k_is_first: bool
    layout: Literal["ND", "FRACTAL_NZ"] = "ND"

    def _offset_bytes(self, row: int, column: int) -> int:
        """Offset of (*row*, *column*); in FRACTAL_NZ both must begin a fractal's row."""
        if self.layout == "ND":
            return self.dtype.nbytes(row * self.columns + column)
        return (column // c0(self.dtype) * align_up(self.rows, FRACTAL_ROWS) + row) * BLOCK_BYTES

    def shift(self, origin: int) -> int:
        """Offset of the tile that begins at *origin* along the axis other than k."""
        return self._offset_bytes(0, origin) if self.k_is_first else self._offset_bytes(origin, 0)

    def shift_k(self, k: int) -> int:
        """Offset of position *k*."""
        return self._offset_bytes(k, 0) if self.k_is_first else self._offset_bytes(0, k)

    def tile(
        self, origin: int, extent: int, k: int = 0, count: int | None = None, matrix: int = 0
    ) -> GmTile:
        """*extent* rows of a left operand, or columns of a right one, from *origin* on.

        It has *count* positions of k from *k*, by default all that follow; *matrix* is the number
        of the matrix in a batch.
        """
        k_extent = self.rows if self.k_is_first else self.columns
        offset_bytes = matrix * self.matrix_bytes + self.shift(origin) + self.shift_k(k)
        return GmTile(self.name, offset_bytes, extent, k_extent - k if count is None else count)

    def tiles(
        self,
        origin: Integers,
        extent: Integers,
        matrix: Integers | int = 0,
        *,
        k: Integers | int = 0,
        count: Integers | int | None = None,
    ) -> GmTiles:
        """Like `tile`, for many tiles at once."""
        k_extent = self.rows if self.k_is_first else self.columns
        offset = _each(self.shift, origin) + _each(self.shift_k, np.asarray(k))
        depth = k_extent - np.asarray(k) if count is None else np.asarray(count)
        depth = np.broadcast_to(depth, extent.shape)
        return GmTiles(self.name, offset + matrix * self.matrix_bytes, extent, depth)

    @property
    def view(self) -> GmView:
        """The whole ND matrix, as rows and columns."""
        return GmView.of(self.name, self.dtype, self.rows, self.columns)

    @property
    def matrix_bytes(self) -> int:
        """Bytes from one matrix of a batch to the next."""
        if self.layout == "ND":
            return self.dtype.nbytes(self.rows * self.columns)
        return ceil_div(self.columns, c0(self.dtype)) * self.nz_stride_bytes

    @property
    def nz_stride_bytes(self) -> int:
        """FRACTAL_NZ: bytes from one column of fractals to the next."""
        return align_up(self.rows, FRACTAL_ROWS) * BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class GmTile(Shiftable):
    """A tile of a :class:`GmMatrix`, as an argument of a stage: see :func:`~.views.repeat`."""

    name: str
    offset_bytes: int
    extent: int
    """Rows of a left operand, columns of a right one."""
    k: int

    def shifted_to(self, offset_bytes: int) -> GmTile:
        """The same tile, beginning at *offset_bytes* of the tensor."""
        return GmTile(self.name, offset_bytes, self.extent, self.k)

    def part_of_k(self, matrix: GmMatrix, k: int, count: int) -> GmTile:
        """*count* positions of k from *k* on; the tile is one of *matrix*."""
        return GmTile(self.name, self.offset_bytes + matrix.shift_k(k), self.extent, count)


def _each(shift: Callable[[int], int], places: Integers) -> Integers:
    """*shift* applied to each of *places*."""
    values, index = np.unique(places, return_inverse=True)
    return np.array([shift(value) for value in values.tolist()], np.int64)[index]


@dataclass(frozen=True, eq=False)
class GmTiles(GmColumn):
    """Tiles of a :class:`GmMatrix`, one for each tile of a launch."""

    name: str
    offset_bytes: Integers
    extent: Integers
    k: Integers

    def select(self, chosen: Array) -> GmTiles:
        """The tiles that *chosen* selects."""
        offset, extent, k = (x[chosen] for x in (self.offset_bytes, self.extent, self.k))
        return GmTiles(self.name, offset, extent, k)

    def __getitem__(self, tile: int) -> GmTile:
        offset, extent, k = (int(x[tile]) for x in (self.offset_bytes, self.extent, self.k))
        return GmTile(self.name, offset, extent, k)

    @property
    def keys(self) -> tuple[Integers, ...]:
        return self.extent, self.k


@dataclass(frozen=True, slots=True)
class L1Matrix:
    """A piece of an operand in L1 as Nz, and where in it a part for L0 begins."""

    tile: Local
    """The piece, from its first byte on."""
    extent: int
    """Rows (or columns) of the piece."""
    count: int
    """k of the piece."""
    k_is_first: bool = False
    """Whether k is the first axis of the matrix in L1."""
    origin: int = 0
    """First row (or column) of the part."""
    k: int = 0
    """First k of the part, from the start of the piece."""

    def at(self, k: int = 0, origin: int = 0) -> L1Matrix:
        """The part that begins *k* and *origin* further."""
        return replace(self, k=self.k + k, origin=self.origin + origin)


def l1_rows(dtype: DType, rows: int, k_is_first: bool) -> int:
    """Rows of the Nz matrix that holds a piece of *rows* rows in L1.

    A matrix that is transposed on its way into L0 moves in squares of C0 x C0.
    """
    return align_up(rows, max(FRACTAL_ROWS, c0(dtype)) if k_is_first else FRACTAL_ROWS)


def l1_elements(dtype: DType, extent: int, count: int, k_is_first: bool) -> int:
    """Elements that *extent* x *count* (k) occupy in L1 as Nz."""
    rows, columns = (count, extent) if k_is_first else (extent, count)
    return l1_rows(dtype, rows, k_is_first) * align_up(columns, c0(dtype))


def l1_bytes(dtype: DType, extent: int, count: int, k_is_first: bool) -> int:
    """Bytes in L1 of *extent* x *count* (k) elements."""
    return dtype.nbytes(l1_elements(dtype, extent, count, k_is_first))


def l0c_elements(m: int, n: int) -> int:
    """Elements of L0C that sums `(m, n)` take: whole fractals, `(n / 16, m padded, 16)`."""
    return align_up(m, FRACTAL_ROWS) * align_up(n, FRACTAL_ROWS)
