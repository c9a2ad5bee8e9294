"""The orders of fractals, and of elements inside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from npusim.data.dtypes import Array, DType
from npusim.data.integers import ceil_div
from npusim.data.layout.html import Note, grid, table

__all__ = [
    "FRACTAL_BYTES",
    "FRACTAL_ROWS",
    "NZ",
    "ZN",
    "ZZ",
    "Layout",
    "c0",
    "from_fractals",
    "to_fractals",
]

FRACTAL_ROWS = 16
"""Rows of a fractal, and columns of one in L0B and L0C."""
FRACTAL_BYTES = 512
"""Bytes of a fractal of L1, L0A and L0B, for every type."""
C0_BYTES = 32

Shape = tuple[int, int]


def c0(dtype: DType) -> int:
    """Number of elements of *dtype* in a row of a fractal.

    >>> from npusim.data.dtypes import FLOAT16, INT4, INT8
    >>> c0(FLOAT16), c0(INT8), c0(INT4)
    (16, 32, 64)
    """
    return C0_BYTES * 8 // dtype.bits


@dataclass(frozen=True, slots=True)
class Layout:
    """An order of fractals, and of the elements inside them."""

    name: str
    outer: Literal["Z", "N"]
    inner: Literal["z", "n"]

    @property
    def axes(self) -> str:
        """The axes from the slowest to the fastest: row of fractals i, column of fractals j, row y
        and column x inside.

        >>> NZ.axes
        'jiyx'
        """
        return ("ij" if self.outer == "Z" else "ji") + ("yx" if self.inner == "z" else "xy")

    def array_shape(self, rows: int, columns: int, fractal: Shape) -> tuple[int, int, int, int]:
        """The matrix as an array of fractals, `(outer, outer, inner, inner)`."""
        down, across = ceil_div(rows, fractal[0]), ceil_div(columns, fractal[1])
        outer = (down, across) if self.outer == "Z" else (across, down)
        return (*outer, *(fractal if self.inner == "z" else fractal[::-1]))

    def offset(self, row: int, column: int, shape: Shape, fractal: Shape) -> int:
        """Index in memory of element (*row*, *column*) of a matrix of *shape*."""
        down, across = ceil_div(shape[0], fractal[0]), ceil_div(shape[1], fractal[1])
        (i, y), (j, x) = divmod(row, fractal[0]), divmod(column, fractal[1])
        block = i * across + j if self.outer == "Z" else j * down + i
        inside = y * fractal[1] + x if self.inner == "z" else x * fractal[0] + y
        return block * fractal[0] * fractal[1] + inside

    def offsets(self, shape: Shape, fractal: Shape) -> Array:
        """The same for every element, an array of *shape*."""
        row, column = np.indices(shape)
        # One call for all elements: it only divides and multiplies.
        whole: Callable[..., Array] = self.offset  # type: ignore[assignment]
        return whole(row, column, shape, fractal)

    def _repr_html_(self) -> str:
        """The order of the elements of 2 x 2 fractals, as a small table."""
        offsets = self.offsets((8, 8), (4, 4))
        return table(
            f"{self.name}: how many elements lie before each one, fractals drawn as 4 x 4",
            grid(
                offsets, (8, 8), lambda row, column: Note(int(offsets[row, column]) // 16), (4, 4)
            ),
        )


NZ = Layout("Nz", "N", "z")
ZZ = Layout("Zz", "Z", "z")
ZN = Layout("Zn", "Z", "n")


def to_fractals(matrix: Array, layout: Layout, fractal: Shape) -> Array:
    """`(..., rows, columns)` as fractals, `(..., outer, outer, inner, inner)`, edges zero."""
    *batch, rows, columns = matrix.shape
    height, width = fractal
    down, across = ceil_div(rows, height), ceil_div(columns, width)
    if (down * height, across * width) != (rows, columns):
        padded = np.zeros((*batch, down * height, across * width), matrix.dtype)
        padded[..., :rows, :columns] = matrix
        matrix = padded
    split = matrix.reshape(*batch, down, height, across, width)
    turned = split.transpose(*range(len(batch)), *_axes(layout, len(batch)))
    return np.array(turned, order="C")


def from_fractals(fractals: Array, layout: Layout, shape: Shape) -> Array:
    """The reverse: `(..., *shape)`, without the padding of the edges."""
    *batch, _, _, _, _ = fractals.shape
    axes = _axes(layout, len(batch))
    back = [axes.index(len(batch) + axis) + len(batch) for axis in range(4)]
    split = fractals.transpose(*range(len(batch)), *back)
    down, height, across, width = split.shape[len(batch) :]
    whole = split.reshape(*batch, down * height, across * width)
    return whole[..., : shape[0], : shape[1]]


def _axes(layout: Layout, first: int) -> tuple[int, ...]:
    """New positions of the axes (row of fractals, row, column of fractals, column)."""
    return tuple(first + "iyjx".index(axis) for axis in layout.axes)
