"""Where tables and summaries go: stdout, with rows broken only where a terminal is too narrow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import typer
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from npusim.data.text import printable

__all__ = ["GAP", "INDENT", "PAGE_COLUMNS", "RemarkedTable", "folded", "open_page", "show", "table"]

UNFOLDED_COLUMNS = 1000
"""Width where nobody looks at a screen: every row stays on its line, for grep and friends."""
PAGE_COLUMNS = 100
"""Width of a page: what does not fit continues below."""
INDENT = "    "
"""Before what continues."""
GAP = 3
"""Columns between the columns of a table."""


class _Shown:
    """Something to print, in which no name can do anything to a terminal."""

    def __init__(self, part: RenderableType) -> None:
        self._part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._part, options):
            yield Segment(printable(segment.text), segment.style, segment.control)


def show(*parts: RenderableType) -> None:
    """Print *parts* one below the other, as they are, without markup."""
    screen = Console(markup=False, highlight=False)
    if not screen.is_terminal:
        screen.width = UNFOLDED_COLUMNS
    with screen.capture() as captured:
        screen.print(*map(_Shown, parts), sep="\n")
    # Cells are filled up with spaces, which would only be in the way behind the last one.
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def open_page(page: Path) -> None:
    """Open *page* in the browser that this machine opens pages with, and print where it is."""
    typer.echo(f"npusim: opens {page}", err=True)
    typer.launch(page.resolve().as_uri())


def table(*headings: str) -> Table:
    """An empty table with a rule below its *headings*."""
    empty = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for heading in headings:
        empty.add_column(heading, overflow="fold")
    return empty


class RemarkedTable:
    """A table in which the long words of a row stand below it, on indented lines."""

    def __init__(self, *headings: str, numbers: slice = slice(0)) -> None:
        self._table = table(*headings)
        self._remarks: list[str] = []
        for column in self._table.columns[numbers]:
            column.justify = "right"
            column.no_wrap = True

    def add_row(self, *cells: str | Text, remark: str = "") -> None:
        """Add *cells*, and *remark* below them."""
        row = Style(meta={"row": len(self._remarks)})
        shown = (Text(cell) if isinstance(cell, str) else cell for cell in cells)
        self._table.add_row(*shown, style=row)
        self._remarks.append(remark)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._table, options)
        rows = [_row(line) for line in lines]
        for line, row, following in zip(lines, rows, [*rows[1:], None], strict=True):
            yield from line
            yield Segment.line()
            if row is not None and row != following:
                remark = folded(self._remarks[row], options.max_width, INDENT, INDENT)
                if remark:
                    yield Segment(f"{remark}\n")


def _row(line: Sequence[Segment]) -> int | None:
    """Which row a line of a table belongs to; None for its head."""
    for segment in line:
        if segment.style is not None and "row" in segment.style.meta:
            return int(segment.style.meta["row"])
    return None


def folded(text: str, columns: int = PAGE_COLUMNS, first: str = "", then: str = "") -> str:
    """*text* in lines of at most so many columns, a page at most, which break between words alone.

    A line begins with *first*, and where it continues with *then*.
    """
    return "\n".join(
        "\n".join(
            wrap(
                line,
                min(columns, PAGE_COLUMNS),
                initial_indent=first,
                subsequent_indent=then,
                break_long_words=False,
                break_on_hyphens=False,
            )
        )
        for line in text.splitlines()
    )
