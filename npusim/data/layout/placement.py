"""A matrix of a given size, type and layout: the address of each element, and the reverse."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32, Array, DType
from npusim.data.integers import align_up
from npusim.data.layout.html import Note, grid, shown_of, table
from npusim.data.layout.orders import FRACTAL_ROWS, NZ, ZN, ZZ, Layout, Shape, c0, to_fractals

__all__ = ["NAMES", "ORDERS", "SPELLINGS", "Placement", "Spot"]

ORDERS: dict[str, Layout | None] = {
    "ND": None,
    "FRACTAL_NZ": NZ,
    "Zz": ZZ,
    "Zn": ZN,
    "NC1HWC0": NZ,
    "L0C": NZ,
}
"""Name -> the order of its fractals; L0C is Nz with fractals of 16 x 16, NC1HWC0 is Nz with
fractals of all rows."""
ALIASES = {
    "FRACTAL_NZ": ("Nz", "zN"),
    "Zz": ("zZ",),
    "Zn": ("nZ", "FRACTAL_Z"),
    "NC1HWC0": ("5HD",),
}
"""Name -> its other names, including catlass's, with the small letter first."""
NAMES = {name: name for name in ORDERS}
NAMES |= {alias: name for name, aliases in ALIASES.items() for alias in aliases}
"""Every name of a layout -> its first name."""
SPELLINGS = ", ".join(
    f"{name} (also {', '.join(ALIASES[name])})" if name in ALIASES else name for name in ORDERS
)
"""The same as text, each layout once."""
OF_ALL_ROWS = ("NC1HWC0",)
"""Layouts whose fractals are as tall as the matrix."""
SUMS = (FLOAT32, INT32)
"""Types in L0C."""


@dataclass(frozen=True, slots=True)
class Spot:
    """One place in memory, and the element there."""

    element: int
    """Its index in memory."""
    byte: int
    bit: int
    """Its lowest bit within the byte: 4 for every other int4, else 0."""
    row: int | None
    """None, like the column, if the place is padding of an edge."""
    column: int | None
    fractal: int | None
    """Index of its fractal; None in ND."""
    fractal_row: int | None
    """Its row of fractals, from the top of the matrix."""
    fractal_column: int | None
    inner_row: int | None
    """Its row within the fractal."""
    inner_column: int | None

    @property
    def is_padding(self) -> bool:
        return self.row is None


@dataclass(frozen=True)
class Placement:
    """A matrix of *rows* x *columns* of *dtype* in the layout called *name*.

    >>> from npusim.data.dtypes import INT8
    >>> nz = Placement(20, 40, INT8, "FRACTAL_NZ")
    >>> nz.storage_shape, nz.nbytes, nz.where(17, 33).byte
    ((2, 2, 16, 32), 2048, 1569)
    >>> nz.at_byte(1569)[0].row, nz.at_byte(2047)[0].is_padding
    (17, True)
    """

    rows: int
    columns: int
    dtype: DType
    name: str = "ND"

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(
                f"layout: a layout must be one of {SPELLINGS}, not {self.name!r}; use one of these"
            )
        object.__setattr__(self, "name", NAMES[self.name])
        if min(self.rows, self.columns) < 1:
            raise ValueError(
                f"layout: a matrix must have at least one row and one column, not "
                f"{self.rows} x {self.columns}; give it some"
            )
        if self.name == "L0C" and self.dtype not in SUMS:
            raise ValueError(
                f"layout: L0C must hold float32 or int32, not {self.dtype}; use one of them"
            )

    @property
    def order(self) -> Layout | None:
        """None for ND."""
        return ORDERS[self.name]

    @property
    def fractal(self) -> Shape | None:
        """Rows and columns of a fractal; None for ND."""
        if self.name == "ND":
            return None
        width = FRACTAL_ROWS if self.name == "L0C" else c0(self.dtype)
        if self.name in OF_ALL_ROWS:
            return self.rows, width
        return (width, FRACTAL_ROWS) if self.name == "Zn" else (FRACTAL_ROWS, width)

    @property
    def padded(self) -> Shape:
        """Rows and columns rounded up to whole fractals."""
        height, width = self.fractal or (1, 1)
        return align_up(self.rows, height), align_up(self.columns, width)

    @property
    def storage_shape(self) -> tuple[int, ...]:
        """The shape of the matrix as an array in memory order."""
        if self.order is None or self.fractal is None:
            return self.rows, self.columns
        return self.order.array_shape(self.rows, self.columns, self.fractal)

    @property
    def count(self) -> int:
        """Elements in memory, padding included."""
        return prod(self.storage_shape)

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(self.count)

    @property
    def padding_bytes(self) -> int:
        """Bytes of padding at the edges."""
        return self.nbytes - self.dtype.nbytes(self.rows * self.columns)

    @cached_property
    def elements(self) -> Array:
        """Index in memory of each element, `padded`: including those beyond the matrix."""
        if self.order is None or self.fractal is None:
            return np.arange(self.count).reshape(self.rows, self.columns)
        return self.order.offsets(self.padded, self.fractal)

    @cached_property
    def stored_elements(self) -> Array:
        """Index, row by row, of the matrix element at each place in memory; -1 is padding."""
        numbers = np.arange(self.rows * self.columns).reshape(self.rows, self.columns)
        if self.order is None or self.fractal is None:
            return numbers.reshape(-1)
        # Edges are padded with zeros, so indices start at one in between.
        return to_fractals(numbers + 1, self.order, self.fractal).reshape(-1) - 1

    def where(self, row: int, column: int) -> Spot:
        """The place of element (*row*, *column*); raises ValueError beyond the matrix."""
        if not (0 <= row < self.rows and 0 <= column < self.columns):
            raise ValueError(
                f"layout: an index must lie within {self.rows} x {self.columns}, not be "
                f"{row},{column}; count from 0,0 to {self.rows - 1},{self.columns - 1}"
            )
        if self.order is None or self.fractal is None:
            return self.spot(row * self.columns + column)
        return self.spot(self.order.offset(row, column, (self.rows, self.columns), self.fractal))

    def at_byte(self, byte: int) -> tuple[Spot, ...]:
        """The places at *byte*: the element that contains it, or both of two int4."""
        if not 0 <= byte < self.nbytes:
            raise ValueError(
                f"layout: an offset must lie within the {self.nbytes} bytes of the matrix, not be "
                f"{byte}; count from 0 to {self.nbytes - 1}"
            )
        first = byte * 8 // self.dtype.bits
        last = min((byte * 8 + 7) // self.dtype.bits, self.count - 1)
        return tuple(self.spot(element) for element in range(first, last + 1))

    def spot(self, element: int) -> Spot:
        """The place with index *element* in memory."""
        byte, bit = divmod(element * self.dtype.bits, 8)
        places = [int(index) for index in np.unravel_index(element, self.storage_shape)]
        if self.order is None or self.fractal is None:
            row, column = places
            return Spot(element, byte, bit, row, column, None, None, None, None, None)
        at = dict(zip(self.order.axes, places, strict=True))
        row = at["i"] * self.fractal[0] + at["y"]
        column = at["j"] * self.fractal[1] + at["x"]
        inside = row < self.rows and column < self.columns
        return Spot(
            element,
            byte,
            bit,
            row if inside else None,
            column if inside else None,
            element // prod(self.fractal),
            at["i"],
            at["j"],
            at["y"],
            at["x"],
        )

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns} {self.dtype} as {self.name}"

    def values_html(self, values: Array, caption: str) -> str:
        """A table of the corner of *values* `(rows, columns)`, with the address of each cell.

        *values* need not extend beyond the last of :attr:`shown`.
        """
        return table(caption, grid(values, (self.rows, self.columns), self._note, self.fractal))

    @property
    def shown(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The rows and the columns of the matrix that its table shows."""
        height, width = self.fractal or (None, None)
        return shown_of(self.rows, height), shown_of(self.columns, width)

    def _note(self, row: int, column: int) -> Note:
        if row >= self.rows or column >= self.columns:
            return Note(None, "padding")
        spot = self.where(row, column)
        bit = f" bit {spot.bit}" if spot.bit else ""
        fractal = "" if spot.fractal is None else f", fractal {spot.fractal}"
        return Note(spot.fractal or 0, f"({row}, {column}) at byte {spot.byte}{bit}{fractal}")

    def _repr_html_(self) -> str:
        """The corner of the matrix: the index in memory of each element, padding in grey."""
        size = f" in fractals of {self.fractal[0]} x {self.fractal[1]}" if self.fractal else ""
        caption = f"{self}{size}: {self.nbytes} bytes, how many elements lie before each one"
        return table(caption, grid(self.elements, self.padded, self._note, self.fractal))
