"""A matrix split over cores in rectangles or runs of rows, as columns of a launch table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from npusim.kernel.rows import pieces
from npusim.kernel.steps import GmViews, Integers
from npusim.kernel.views import GmView

__all__ = ["Rectangles", "RowPieces", "rectangles"]

__kernel_vocabulary__ = True


@dataclass(frozen=True, eq=False)
class Rectangles:
    """Parts of a matrix, one per tile: the core that works on each, and their order."""

    core: Integers
    order: Integers
    top: Integers
    left: Integers
    rows: Integers
    columns: Integers

    def views(self, view: GmView) -> GmViews:
        """The parts of *view*; of a vector, which has one row, the matching columns."""
        if view.pitch == 0:
            return GmViews.of(view, 0, self.left, 1, self.columns)
        return GmViews.of(view, self.top, self.left, self.rows, self.columns)

    def cut(self, row_step: int) -> Rectangles:
        """The parts cut downwards into *row_step* rows, with orders between the given ones."""
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
    """Split a matrix into rectangles of *per_core* rows and columns, one per core.

    Each is cut into pieces of *column_step* columns, from left to right, with orders 0, 3, 6 and so
    on; unless it is the only one, no piece and no rectangle is narrower than *least_columns*.
    """
    parts = list(pieces(columns, per_core[1], least_columns))
    grid = [(row, *part) for row in pieces(rows, per_core[0]) for part in parts]
    found = [
        (core, 3 * number, top, left + column, height, width)
        for core, ((top, height), left, across) in enumerate(grid)
        for number, (column, width) in enumerate(pieces(across, column_step, least_columns))
    ]
    return Rectangles(*np.array(found, np.int64).reshape(-1, 6).T)


@dataclass(frozen=True, eq=False)
class RowPieces:
    """Runs of rows, one per core, cut into pieces of some rows: each is a tile of a launch."""

    core: Integers
    """`(pieces,)`, ascending."""
    first: Integers
    """The first row of each piece; pieces of a core are adjacent."""
    count: Integers

    @staticmethod
    def of(rows_of_core: Sequence[int], row_step: int) -> RowPieces:
        """Give each core the run of rows behind that of the core before, *row_step* at a time; the
        last piece of a core has the remaining rows.
        """
        rows = np.array(rows_of_core, np.int64)
        each = -(-rows // row_step)
        core = np.repeat(np.arange(rows.size), each)
        number = np.arange(core.size) - np.repeat(np.cumsum(each) - each, each)
        start = number * row_step
        first = np.repeat(np.cumsum(rows) - rows, each) + start
        return RowPieces(core, first, np.minimum(row_step, rows[core] - start))

    def views(self, view: GmView) -> GmViews:
        """The rows of *view*; of a vector, which has one element per row, the elements."""
        if view.pitch == 0:
            return GmViews.of(view, 0, self.first, 1, self.count)
        return GmViews.of(view, self.first, 0, self.count, view.columns)

    @property
    def ahead(self) -> tuple[Integers, Integers]:
        """Orders for a step that starts to load each piece before the step that works on the
        previous one.
        """
        number = 2 * np.arange(self.core.size)
        return number, number + 3

    @property
    def is_first(self) -> NDArray[np.bool_]:
        """Whether each piece is the first of its core."""
        first: NDArray[np.bool_] = np.diff(self.core, prepend=-1) != 0
        return first
