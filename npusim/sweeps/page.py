"""The page of a sweep, which opens from disk: which is the fastest where, the picture, the rows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from npusim.data.text import counted
from npusim.reports import answer, frame
from npusim.reports.style import span_named
from npusim.reports.svg import svg_of
from npusim.reports.tables import table
from npusim.sweeps.crossovers import Leaders, label_of, leaders
from npusim.sweeps.picture import figure_of
from npusim.sweeps.rows import Row, Rows

__all__ = ["PAGE", "glimpse", "page"]

PAGE = "sweep.html"
MOST_NAMES = 2
"""The most competing lines on the first screen."""
MOST_SENTENCES = 6
MOST_ROWS = 2000
HERE = "npusim.reports"


def page(sweep: Rows) -> str:
    """The whole page; raises ValueError if every cell was refused."""
    picture = svg_of(figure_of(sweep), "sweep")
    label = f'<svg role="img" aria-label="{escape(sweep.op)}: times"'
    found = leaders(sweep)
    screen = answer.screen(
        (
            _about(sweep),
            answer.tiles(_tiles(sweep, found)),
            "".join(f"<p>{escape(line)}</p>" for line in _sentences(found)),
            f'<figure tabindex="0">{picture.replace("<svg", label, 1)}</figure>',
        )
    )
    parts = {"rows": ("Every cell", _table(sweep.rows, sweep))}
    styles = frame.text_of(HERE, "page.css")
    body = screen + frame.sections(parts, ("rows",))
    return frame.document(f"Sweep of {sweep.op}", styles, "", body)


def glimpse(line: str, sweep: Rows) -> str:
    """A sweep as a notebook shows it: *line*, the picture, and which line is the fastest where."""
    lines = [line, *_sentences(leaders(sweep))]
    text = "".join(f"<p>{escape(each)}</p>" for each in lines)
    if all(row.outcome.time_us is None for row in sweep.rows):
        return text
    return text + svg_of(figure_of(sweep), "sweep")


def _about(sweep: Rows) -> str:
    """The common properties of all cells, and the properties in which they differ."""
    cell = sweep.rows[0].cell
    given = (f"{name} {word}" for name, word in cell.arguments.items() if _is_fixed(sweep, name))
    varied = f"varied: {', '.join(_named(sweep, name) for name in sweep.varied)}"
    chip = [] if "device" in sweep.varied else [cell.device]
    return f'<p class="soft">{escape(" · ".join((*chip, *given, varied)))}</p>'


def _is_fixed(sweep: Rows, name: str) -> bool:
    return len({row.cell.arguments.get(name) for row in sweep.rows}) == 1


def _named(sweep: Rows, name: str) -> str:
    return label_of(sweep, name) if name in sweep.variables else name


def _tiles(sweep: Rows, found: Sequence[Leaders]) -> list[tuple[str, str]]:
    """How often each competing line is the fastest, or else the extreme times; the cells."""
    timed = sorted(
        (row for row in sweep.rows if row.outcome.time_us is not None),
        key=lambda row: row.outcome.time_us or 0.0,
    )
    tiles = []
    if found:
        first = found[0]
        for name, where in list(first.fastest.items())[:MOST_NAMES]:
            among = f"{name}: the fastest at {first.axis} = {first.stretches(name)}"
            tiles.append((f"{len(where)} of {len(first.values)}", among))
    shortest, longest = timed[0], timed[-1]
    tiles.append((span_named(shortest.outcome.time_us or 0.0), f"shortest: {_of(sweep, shortest)}"))
    if len(tiles) <= MOST_NAMES:
        tiles.append(
            (span_named(longest.outcome.time_us or 0.0), f"longest: {_of(sweep, longest)}")
        )
    cells = counted(len(sweep.rows), "cell", "cells")
    return [*tiles, (str(len(timed)), f"of {cells} timed, {len(sweep.bad)} refused")]


def _of(sweep: Rows, row: Row) -> str:
    parts = (f"{_named(sweep, name)} {row.coordinates[name]}" for name in sweep.varied)
    return ", ".join(parts)


def _sentences(found: Sequence[Leaders]) -> list[str]:
    left = len(found) - MOST_SENTENCES
    return [*(f"{each}." for each in found[:MOST_SENTENCES]), *([f"and {left} more"] * (left > 0))]


def _table(rows: Sequence[Row], sweep: Rows) -> str:
    head = [*(_named(sweep, name) for name in sweep.varied), "time", "kernel", "bound, or refused"]
    lines = [
        [
            *(str(row.coordinates[name]) for name in sweep.varied),
            "" if row.outcome.time_us is None else span_named(row.outcome.time_us),
            row.outcome.template or "",
            row.outcome.error or row.outcome.why or "",
        ]
        for row in rows[:MOST_ROWS]
    ]
    left = len(rows) - len(lines)
    note = f'<p class="note">and {left:,} more in the CSV</p>' if left > 0 else ""
    return table(head, lines) + note
