"""A picture of where the elements of a matrix are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npusim.data.layout import Placement
from npusim.data.layout.html import SHADES
from npusim.reports.style import GRID, INK, TEXT_POINTS, new_axes, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MAX_CELLS", "Cell", "layout", "rows"]

MAX_CELLS = 16384
"""The most cells of a picture; with more, each would be too small to read."""
MAX_NUMBERS = 2048
"""The most cells that show their numbers; with more, these would be too small to read."""
PADDING = "#f4f4f4"


@dataclass(frozen=True, slots=True)
class Cell:
    """An element of the matrix, or padding that fills up a fractal."""

    row: int
    column: int
    element: int
    """Its offset in memory, in elements."""
    fractal: int
    is_padding: bool


def rows(of: Placement) -> list[Cell]:
    """All cells of whole fractals, row by row."""
    if of.count > MAX_CELLS:
        raise ValueError(
            f"layout: a picture must have at most {MAX_CELLS} cells, not {of.count}; "
            f"take a smaller matrix"
        )
    size = of.fractal[0] * of.fractal[1] if of.fractal else of.count
    return [
        Cell(r, c, element, element // size, r >= of.rows or c >= of.columns)
        for r, line in enumerate(of.elements.tolist())
        for c, element in enumerate(line)
    ]


def layout(of: Placement, *, ax: Axes | None = None) -> Axes:
    """Draw the matrix; each cell shows its offset in memory, in elements."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    ax = ax or new_axes()
    cells = rows(of)
    squares = [Rectangle((cell.column - 0.5, cell.row - 0.5), 1, 1) for cell in cells]
    colors = [PADDING if c.is_padding else SHADES[c.fractal % len(SHADES)] for c in cells]
    ax.add_collection(
        PatchCollection(squares, facecolors=colors, edgecolors="white", linewidths=0.5)
    )
    if len(cells) <= MAX_NUMBERS:
        points = _points(of, ax)
        for cell in cells:
            color = "#aaaaaa" if cell.is_padding else INK
            ax.text(
                cell.column, cell.row, str(cell.element),
                ha="center", va="center", size=points, color=color,
            )  # fmt: skip
    _frame(of, ax)
    padding = f", {100 * of.padding_bytes / of.nbytes:.0f} % of it padding"
    title(ax, f"{of}: {of.nbytes} bytes{padding if of.padding_bytes else ''}")
    return ax


def _points(of: Placement, ax: Axes) -> float:
    """A font size in which the largest number fits its cell."""
    box = ax.get_window_extent()
    # Pixels of a cell; a digit of a 1-point font is about 0.62 points wide.
    width, height = box.width / of.padded[1], box.height / of.padded[0]
    fitting = min(height * 0.6, width / (0.62 * len(str(of.count)) + 0.4))
    return min(TEXT_POINTS, 72 / ax.figure.get_dpi() * fitting)


def _frame(of: Placement, ax: Axes) -> None:
    """Lines between fractals, and the axes."""
    rows_padded, cols_padded = of.padded
    height, width = of.fractal or of.padded
    for y in range(0, rows_padded + 1, height):
        ax.plot([-0.5, cols_padded - 0.5], [y - 0.5] * 2, color=INK, linewidth=1)
    for x in range(0, cols_padded + 1, width):
        ax.plot([x - 0.5] * 2, [-0.5, rows_padded - 0.5], color=INK, linewidth=1)
    ax.set_xlim(-0.6, cols_padded - 0.4)
    ax.set_ylim(rows_padded - 0.4, -0.6)
    ax.set_xlabel("column; each cell says how many elements lie before it", color=INK)
    ax.set_ylabel("row", color=INK)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelsize=TEXT_POINTS, labelcolor=INK)
    ax.tick_params(color=GRID)
