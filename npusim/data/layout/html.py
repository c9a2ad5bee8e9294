"""Matrices as HTML tables, coloured by fractal, for notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from typing import NamedTuple

from npusim.data.dtypes import Array

__all__ = ["DARK_SHADES", "MAX_SHOWN", "SHADES", "Note", "grid", "shown_of", "table"]

SHADES = ("#cfe8f7", "#fbe3bf", "#c9ebdd", "#f3d9e8", "#f9f5c4", "#e2e2e2")
"""Adjacent fractals differ; light tints of Okabe and Ito's colours."""
DARK_SHADES = ("#1d4763", "#5c4314", "#1b5140", "#5f2f4b", "#54511a", "#484848")
"""The same hues for light text on a dark page."""
PADDING_SHADE = "#f4f4f4"
MAX_SHOWN = 16
"""Most rows and columns that a table shows before it leaves some out."""
BEHIND_BORDER = 4
"""How many of these are in the next fractal if the first one is not small."""
CELL = "padding:1px 5px;text-align:right;border:1px solid #fff;font:11px monospace"
NAME = "padding:1px 5px;text-align:right;font:11px monospace;opacity:.7"
BORDER = "2px solid #555"


class Note(NamedTuple):
    """What a cell shows besides its number: its fractal, by colour, and a text."""

    fractal: int | None
    """Index of its fractal; None for padding, which is grey."""
    title: str = ""
    """The tooltip."""


def table(caption: str, rows: Iterable[str]) -> str:
    """*rows* of cells below a *caption*, which is plain text."""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<table style="border-collapse:collapse;color:inherit">'
        f'<caption style="text-align:left;white-space:nowrap">{escape(caption)}</caption>'
        f"{body}</table>"
    )


def shown_of(extent: int, fractal: int | None) -> tuple[int, ...]:
    """The rows or columns, out of *extent*, that a table shows: the first, and those at a border.

    *fractal* is the size of a fractal, None if there are none. If the first ones end before the
    next fractal has properly begun, some are left out before the border.

    >>> shown_of(40, 32)
    (0, 1, 2, 3, 4, 5, 6, 7, 28, 29, 30, 31, 32, 33, 34, 35)
    >>> shown_of(40, 8) == shown_of(40, None) == shown_of(16, 16) == tuple(range(16))
    True
    """
    first = tuple(range(min(extent, MAX_SHOWN)))
    if fractal is None or fractal + BEHIND_BORDER <= MAX_SHOWN or extent <= max(fractal, MAX_SHOWN):
        return first
    start, end = fractal - BEHIND_BORDER, min(fractal + BEHIND_BORDER, extent)
    return (*range(min(MAX_SHOWN - 2 * BEHIND_BORDER, start)), *range(start, end))


def grid(
    numbers: Array,
    extent: tuple[int, int],
    note: Callable[[int, int], Note],
    fractal: tuple[int, int] | None = None,
) -> Iterable[str]:
    """Rows of cells of a matrix whose rows and columns are *extent*: :func:`shown_of` each way.

    *numbers* has at least the rows and columns that are shown; `note(row, column)` gives a cell's
    colour and title. There is a line between fractals of *fractal* rows and columns.
    """
    height, width = fractal or (None, None)
    rows, columns = shown_of(extent[0], height), shown_of(extent[1], width)
    # Columns with their gaps: None stands for those that are left out.
    across, down = _with_gaps(columns, extent[1]), _with_gaps(rows, extent[0])
    yield _name("") + "".join(_name("…" if x is None else str(x)) for x in across)
    for row in down:
        cells = [_name("…" if row is None else str(row))]
        for column in across:
            if row is None or column is None:
                cells.append(f'<td style="{NAME}">…</td>')
                continue
            number, title = note(row, column)
            shade = PADDING_SHADE if number is None else SHADES[number % len(SHADES)]
            edges = _border("top", row, height) + _border("left", column, width)
            style = f"{shade};color:#222{edges}"
            cells.append(_cell(str(numbers[row, column]), style, title))
        yield "".join(cells)


def _with_gaps(shown: tuple[int, ...], extent: int) -> list[int | None]:
    """The rows or columns, with a None wherever some are left out."""
    found: list[int | None] = []
    for place, index in enumerate(shown):
        if place and index != shown[place - 1] + 1:
            found.append(None)
        found.append(index)
    return found if shown[-1] == extent - 1 else [*found, None]


def _border(side: str, index: int, size: int | None) -> str:
    """The line before a fractal, except the first one."""
    return f";border-{side}:{BORDER}" if size and index and index % size == 0 else ""


def _name(text: str) -> str:
    return f'<th style="{NAME}">{text}</th>'


def _cell(text: str, style: str, title: str) -> str:
    tip = f' title="{escape(title, quote=True)}"' if title else ""
    return f'<td style="{CELL};background:{style}"{tip}>{escape(text)}</td>'
