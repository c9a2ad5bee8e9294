"""Numbers as tables of HTML, coloured by fractal, for notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from typing import NamedTuple

from npusim.data.dtypes import Array

__all__ = ["MAX_SHOWN", "SHADES", "Note", "grid", "table"]

SHADES = ("#cfe8f7", "#fbe3bf", "#c9ebdd", "#f3d9e8", "#f9f5c4", "#e2e2e2")
"""Fractals that follow each other differ; light tints of Okabe and Ito's colours."""
PADDING_SHADE = "#f4f4f4"
MAX_SHOWN = 16
"""Rows and columns that a table shows before it leaves the rest out."""
CELL = "padding:1px 5px;text-align:right;border:1px solid #fff;font:11px monospace"


class Note(NamedTuple):
    """What a cell shows in addition to its number: its fractal, by colour, and a text."""

    fractal: int | None
    """How many fractals lie before its own; None for padding, which is grey."""
    title: str = ""
    """What the pointer shows."""


def table(caption: str, rows: Iterable[str]) -> str:
    """*rows* of cells below a *caption*, which is plain text."""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<table style="border-collapse:collapse">'
        f'<caption style="text-align:left;white-space:nowrap">{escape(caption)}</caption>'
        f"{body}</table>"
    )


def grid(
    numbers: Array, extent: tuple[int, int], note: Callable[[int, int], Note]
) -> Iterable[str]:
    """Rows of cells that show the corner of a matrix whose rows and columns are *extent*.

    *numbers* has at least that corner; `note(row, column)` gives a cell's colour and its title.
    """
    rows, columns = extent
    rows_shown, columns_shown = min(MAX_SHOWN, rows), min(MAX_SHOWN, columns)
    dots = _cell("…", "none") if columns_shown < columns else ""
    for row in range(rows_shown):
        cells = []
        for column in range(columns_shown):
            fractal, title = note(row, column)
            shade = PADDING_SHADE if fractal is None else SHADES[fractal % len(SHADES)]
            cells.append(_cell(str(numbers[row, column]), shade, title))
        yield "".join(cells) + dots
    if rows_shown < rows:
        yield _cell("…", "none") * columns_shown + dots


def _cell(text: str, shade: str, title: str = "") -> str:
    tip = f' title="{escape(title, quote=True)}"' if title else ""
    return f'<td style="{CELL};background:{shade};color:#222"{tip}>{escape(text)}</td>'
