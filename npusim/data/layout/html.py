"""Layouts and matrices as tables of HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from npusim.data.dtypes import Array

if TYPE_CHECKING:
    from npusim.data.layout.orders import Layout, Shape
    from npusim.data.layout.placement import Placement

__all__ = ["MOST", "SHADES", "corner", "order", "placement", "table", "values"]

SHADES = ("#cfe8f7", "#fbe3bf", "#c9ebdd", "#f3d9e8", "#f9f5c4", "#e2e2e2")
"""Fractals that follow each other differ; light tints of Okabe and Ito's colours."""
MOST = 16
"""Rows and columns that a table shows before it leaves the rest out."""
CELL = "padding:1px 5px;text-align:right;border:1px solid #fff;font:11px monospace"


def table(caption: str, rows: Iterable[str]) -> str:
    """*rows* of cells below a *caption*, which is plain text."""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<table style="border-collapse:collapse">'
        f'<caption style="text-align:left;white-space:nowrap">{escape(caption)}</caption>'
        f"{body}</table>"
    )


def _cell(text: str, shade: str, title: str = "") -> str:
    told = f' title="{escape(title, quote=True)}"' if title else ""
    return f'<td style="{CELL};background:{shade};color:#222"{told}>{escape(text)}</td>'


def order(layout: Layout) -> str:
    """The order of the elements of 2 x 2 fractals of 4 x 4."""
    fractal: Shape = (4, 4)
    offsets = layout.offsets((8, 8), fractal)
    return table(
        f"{layout.name}: how many elements lie before each one, fractals drawn as 4 x 4",
        ("".join(_cell(str(n), _shade(n // 16)) for n in line) for line in offsets.tolist()),
    )


def placement(of: Placement) -> str:
    """The corner of a matrix: how many elements lie before each one, padding in grey."""
    return table(
        f"{of}: {of.nbytes} bytes, how many elements lie before each one",
        corner(of, of.elements, of.padded),
    )


def values(of: Placement, matrix: Array, caption: str) -> str:
    """The corner of *matrix* `(rows, columns)`, or of less; each cell says where it lies."""
    return table(caption, corner(of, matrix, (of.rows, of.columns)))


def corner(of: Placement, numbers: Array, extent: Shape) -> Iterable[str]:
    """Rows of cells that show *numbers*, coloured by fractal."""
    down, across = min(MOST, extent[0]), min(MOST, extent[1])
    dots = _cell("…", "none") if across < extent[1] else ""
    for row in range(down):
        cells = []
        for column in range(across):
            if row >= of.rows or column >= of.columns:
                cells.append(_cell(str(numbers[row, column]), "#f4f4f4", "padding"))
                continue
            spot = of.where(row, column)
            inside = f"({row}, {column}) at byte {spot.byte}" + (
                f" bit {spot.bit}" * (spot.bit > 0)
            )
            cells.append(_cell(str(numbers[row, column]), _shade(spot.fractal or 0), inside))
        yield "".join(cells) + dots
    if down < extent[0]:
        yield _cell("…", "none") * across + dots


def _shade(fractal: int) -> str:
    return SHADES[fractal % len(SHADES)]
