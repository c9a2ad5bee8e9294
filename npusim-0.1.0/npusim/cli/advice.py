"""Advice as `npusim run --advice` prints it: what to do, and the times that came out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from npusim.reports.advice import NOTHING
from npusim.run.advice import Advice

__all__ = ["advice_lines"]


def advice_lines(pieces: Sequence[Advice]) -> Group:
    """What to do, what it gave and why; what no caller can change at the end."""
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="bold")
    lines.add_column(overflow="fold")
    if not any(each.kind == "change" for each in pieces):
        lines.add_row("advice", NOTHING)
    for each in pieces:
        if each.kind == "change":
            lines.add_row("advice", each.change)
            lines.add_row("", each.times)
            lines.add_row("", f"because {each.text}")
        else:
            lines.add_row("what if", f"{each.text}: {each.change}, {each.times}")
    return Group(Text(), lines)
