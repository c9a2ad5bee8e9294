"""A matrix dealt out to cores in rectangles, as columns of a launch table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.kernel.rows import pieces
from npusim.kernel.steps import GmViews, Integers
from npusim.kernel.views import GmView

__all__ = ["Rectangles", "rectangles"]

__kernel_vocabulary__ = True


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
