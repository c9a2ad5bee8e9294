"""What quantising kernels share: scales and offsets as float32, and rectangles of a matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import FLOAT32
from npusim.data.tensor import Operand
from npusim.devices.schema import Pipe
from npusim.isa import Local, Register
from npusim.kernel import GmView, GmViews, VectorCore, pieces

__all__ = ["QuantParameter", "Rectangles", "rectangles"]

__kernel_vocabulary__ = True

Integers = NDArray[np.int64]


class QuantParameter:
    """A scale or an offset, of which up to *count* elements are loaded and widened at a time.

    ====================  ====================================================================
    ``v.take(view)``      loads the elements of *view* and widens them: float32 `(columns,)`
    ``v.drop()``          they have been used; the buffer may be loaded again
    ====================  ====================================================================

    `take` is `load`, then `widen`, for kernels that do something between the two. *reader* is the
    pipe that reads what was loaded: the vector pipe, or the scalar unit for float32 that is read
    into registers. A kernel that widens them there has no room for it in the buffer.
    """

    def __init__(
        self,
        core: VectorCore,
        operand: Operand,
        count: int,
        *,
        reader: Pipe = "vector",
        widens: bool = True,
    ) -> None:
        self.core, self.reader, self.name = core, reader, operand.name
        self.view = GmView.vector(operand.name, operand.element, operand.spec.size)
        """All of it, in global memory."""
        self.loaded = core.tiles(operand.element, count, "mte2", reader)
        self.is_wide = operand.element is FLOAT32 or not widens
        self.wide = self.loaded.only if self.is_wide else core.tile(FLOAT32, count)
        """Where its elements are as float32."""

    def take(self, view: GmView) -> Local:
        """Load *view* `(columns,)` and widen it to float32; free it with `drop`."""
        self.load(view)
        return self.widen(view.columns)

    def load(self, view: GmView) -> None:
        """Load *view* `(columns,)`, and wait for it on the pipe that widens or reads it."""
        self.core.load(self.loaded, view)

    def widen(self, count: int) -> Local:
        """What was loaded, as float32 `(count,)`."""
        if not self.is_wide:
            self.core.widen(self.wide[:count], self.loaded.only[:count])
        return self.wide[:count]

    def take_number(self, register: Register) -> None:
        """Load its only element into *register*, as float32; free it with `drop`."""
        number = self.take(self.view)
        if self.reader == "vector":
            self.core.sync("vector", "scalar")
        self.core.get_value(register, number)

    def drop(self) -> None:
        """What was loaded has been used, if there was anything."""
        for tile in self.loaded.in_use:
            self.loaded.free(tile)


@dataclass(frozen=True, eq=False)
class Rectangles:
    """Parts of a matrix, one a tile: the core that works on each, and in which order."""

    core: Integers
    order: Integers
    top: Integers
    left: Integers
    rows: Integers
    columns: Integers

    def views(self, view: GmView) -> GmViews:
        """The parts of *view*; of a vector, which has one row, its columns."""
        if view.pitch == 0:
            return GmViews.of(view, 0, self.left, 1, self.columns)
        return GmViews.of(view, self.top, self.left, self.rows, self.columns)

    def cut(self, row_step: int) -> Rectangles:
        """The same from top to bottom, *row_step* rows at a time, each between the orders."""
        count = -(-self.rows // row_step)
        which = np.repeat(np.arange(self.core.size), count)
        number = np.arange(which.size) - np.repeat(np.cumsum(count) - count, count)
        top = self.top[which] + number * row_step
        left_over = self.top[which] + self.rows[which] - top
        return Rectangles(
            self.core[which],
            self.order[which] + 1,
            top,
            self.left[which],
            np.minimum(row_step, left_over),
            self.columns[which],
        )


def rectangles(
    rows: int,
    columns: int,
    per_core: tuple[int, int],
    column_step: int,
    least_columns: int = 1,
) -> Rectangles:
    """A matrix dealt out in rectangles of *per_core* rows and columns, core by core.

    Each is cut into pieces of *column_step* columns, from left to right, whose orders are 0, 3, 6
    and so on; no piece and no rectangle has less than *least_columns*, but for the only one.
    """
    parts = list(pieces(columns, per_core[1], least_columns))
    grid = [(row, *part) for row in pieces(rows, per_core[0]) for part in parts]
    found = [
        (core, 3 * number, top, left + column, height, width)
        for core, ((top, height), left, across) in enumerate(grid)
        for number, (column, width) in enumerate(pieces(across, column_step, least_columns))
    ]
    return Rectangles(*np.array(found, np.int64).reshape(-1, 6).T)
