"""Where tables and summaries go: stdout, with lines broken only where a terminal is too narrow."""

from __future__ import annotations

from pathlib import Path

import typer
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table

from npusim.data.text import printable

__all__ = ["open_page", "show", "table"]

UNFOLDED_COLUMNS = 1000
"""Width where nobody looks at a screen: every row stays on its line, for grep and friends."""


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
