"""Several runs in short: how long each takes, against the first one, and what bounds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from npusim.reports import costs
from npusim.reports.bounds import bounded_by, headline
from npusim.reports.run_labels import Head, letters, listed
from npusim.reports.style import span_named
from npusim.reports.subject import Timed

__all__ = [
    "Entry",
    "Part",
    "against",
    "bar",
    "finding",
    "key",
    "of_runs",
    "ranked",
    "section",
    "than",
]

MANY = 2.0
"""From this ratio on, times say more than a difference in percent."""
MANY_WHOLE = 10.0
CLOSE_PERCENT = 10.0
"""Below it, a tenth of a percent is printed."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a bar."""

    name: str
    us: float
    color: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A run."""

    head: Head
    time_us: float
    parts: tuple[Part, ...]
    """What the time goes into."""
    bound: str
    """What bounds it, in a line."""


def against(first_us: float, us: float) -> str:
    """How a time is against the first one, in words.

    >>> against(8.0, 26.4), against(100.0, 88.0), against(1.0, 1.0), against(60.0, 1.0)
    ('3.3 times as long', '12 % less', 'as long', '60 times as fast')
    """
    if us == first_us:
        return "as long"
    if not first_us or not us:
        return "more" if us else "less"
    ratio = us / first_us
    if ratio >= MANY:
        return f"{_times(ratio)} times as long"
    if ratio <= 1 / MANY_WHOLE:
        return f"{_times(1 / ratio)} times as fast"
    share = 100 * abs(ratio - 1)
    text = f"{share:.1f} %" if share < CLOSE_PERCENT else f"{share:.0f} %"
    return f"{'a little' if text == '0.0 %' else text} {'more' if ratio > 1 else 'less'}"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= MANY_WHOLE else f"{ratio:.1f}"


def than(first_us: float, us: float) -> str:
    """The same with the first one's letter: `12 % less than A`."""
    words = against(first_us, us)
    return f"{words} {'as' if words.endswith(('long', 'fast')) else 'than'} A"


# ---- runs of operators ----


COLORS = {
    "launches before": costs.COLORS[costs.EARLIER],
    "launch": costs.COLORS["launch"],
    "before the pipe that works longest starts": costs.COLORS["head"],
    "it works": costs.COLORS["work"],
    "it waits": costs.COLORS["waits"],
    "after its end": costs.COLORS["tail"],
    "completion": costs.COLORS["completion"],
}
"""Parts of the time of a run, in their order -> their colours."""


def of_runs(runs: Sequence[Timed], heads: Sequence[Head]) -> str:
    """The bars of *runs*; raises ValueError for one that was not timed or had nothing to do."""
    found = []
    for run, head in zip(runs, heads, strict=True):
        parts = [Part(row.label, row.us, costs.COLORS[row.part]) for row in costs.rows(run)]
        found.append(Entry(head, run.time_us or 0.0, tuple(parts), headline(run)))
    there = {part.color for entry in found for part in entry.parts if part.us}
    return section(found) + key({name: own for name, own in COLORS.items() if own in there})


def finding(runs: Sequence[Timed]) -> str:
    """Which of *runs* is quickest and which slowest, and what bounds them."""
    times = [run.time_us or 0.0 for run in runs]
    return f"{ranked(times)} {_bounds(runs)}"


def _bounds(runs: Sequence[Timed]) -> str:
    """What bounds each, in a sentence that names together those that are alike."""
    by: dict[str, list[str]] = {}
    for run, letter in zip(runs, letters(len(runs)), strict=True):
        by.setdefault(bounded_by(run), []).append(letter)
    if len(by) == 1:
        return f"{'Both' if len(runs) == 2 else 'All'} are bound by {next(iter(by))}."
    (words, first), *others = by.items()
    parts = [f"{listed(first)} {'is' if len(first) == 1 else 'are'} bound by {words}"]
    return "; ".join([*parts, *(f"{listed(own)} by {words}" for words, own in others)]) + "."


# ---- in words and as bars ----


def ranked(times_us: Sequence[float]) -> str:
    """Which is quickest and which slowest.

    >>> ranked([40.0, 10.0, 20.0])
    'B is the quickest: 10.0 us. A is the slowest: 40.0 us, 4.0 times as long.'
    >>> ranked([5.0, 5.0])
    'Both take 5.00 us.'
    """
    names = letters(len(times_us))
    quick, slow = min(times_us), max(times_us)
    if quick == slow:
        return f"{'Both' if len(names) == 2 else f'All {len(names)}'} take {span_named(quick)}."
    return (
        f"{names[times_us.index(quick)]} is the quickest: {span_named(quick)}. "
        f"{names[times_us.index(slow)]} is the slowest: {span_named(slow)}, {against(quick, slow)}."
    )


def section(found: Sequence[Entry]) -> str:
    """A bar for each, all to one scale, with its time, and what bounds it below."""
    longest_us = max(entry.time_us for entry in found) or 1.0
    lines = []
    for number, entry in enumerate(found):
        ratio = than(found[0].time_us, entry.time_us) if number else ""
        lines.append(
            f'<li><p class="who"><b>{entry.head.letter}</b> {escape(entry.head.who)}</p>'
            f"{bar(entry.parts, longest_us)}"
            f'<p class="took"><b>{span_named(entry.time_us)}</b> <span>{ratio}</span></p>'
            f'<p class="note">{escape(entry.bound)}</p></li>'
        )
    return f'<ol class="glance">{"".join(lines)}</ol>'


def bar(parts: Sequence[Part], full_us: float) -> str:
    """A bar of *parts*, as long as their share of *full_us*."""
    pieces = "".join(
        f'<i style="width:{100 * part.us / full_us:.4f}%;background:{part.color}" '
        f'title="{escape(part.name)}: {span_named(part.us)}"></i>'
        for part in parts
        if part.us
    )
    return f'<div class="stack">{pieces}</div>'


def key(colors: Mapping[str, str]) -> str:
    """What the colours of bars stand for: names -> colours."""
    marks = (
        f'<span><i class="swatch" style="background:{color}"></i>{escape(name)}</span>'
        for name, color in colors.items()
    )
    return f'<p class="key">{"".join(marks)}</p>'
