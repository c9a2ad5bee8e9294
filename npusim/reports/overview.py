"""A summary of several runs: the time of each, compared with the first, and what bounds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from npusim.reports import answer, first_screen
from npusim.reports.answer import Part
from npusim.reports.bounds import bounded_by, headline
from npusim.reports.run_labels import Head, letters, listed
from npusim.reports.style import span_named
from npusim.reports.subject import Timed
from npusim.trace.record import Record

__all__ = [
    "Entry",
    "against",
    "differing",
    "errors",
    "finding",
    "key",
    "of_runs",
    "ranked",
    "section",
    "than",
    "tiles",
]

MANY = 2.0
"""From this ratio on, a factor is clearer than a difference in percent."""
MANY_WHOLE = 10.0
CLOSE_PERCENT = 10.0
"""Below it, a difference is printed to a tenth of a percent."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A run."""

    head: Head
    time_us: float
    parts: tuple[Part, ...]
    """The parts of the time."""
    bound: str
    """Its bottleneck, in a line."""


def against(first_us: float, us: float) -> str:
    """A time compared with the first one, in words.

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
    """The same with the letter of the first run: `12 % less than A`."""
    words = against(first_us, us)
    return f"{words} {'as' if words.endswith(('long', 'fast')) else 'than'} A"


# ---- runs of operators ----

MOST_SHARES = 3
"""With more runs, the screen has no room for the utilisation of each run."""


def of_runs(runs: Sequence[Record], heads: Sequence[Head]) -> str:
    """The first screen of *runs*: their times, where the time of each goes, how they differ.

    Raises ValueError for one that was not timed or had nothing to do.
    """
    found = [
        Entry(head, run.time_us or 0.0, tuple(first_screen.parts(run)), headline(run))
        for run, head in zip(runs, heads, strict=True)
    ]
    error = errors([first_screen.error(run) for run in runs])
    sentence = differing(*found) if len(found) == 2 else finding(runs)
    screen = [
        answer.tiles([*tiles(found), error]),
        f"<h2>Where the time goes</h2>{section(found)}{key(found)}<p>{escape(sentence)}</p>",
    ]
    if len(runs) <= MOST_SHARES:
        shares = answer.shares([first_screen.used(run) for run in runs], letters(len(runs)))
        screen.append(f"<h2>How much of each chip is used</h2>{shares}")
    return answer.screen(screen)


def tiles(found: Sequence[Entry]) -> list[tuple[str, str]]:
    """Two times and their ratio; for more runs the shortest and the longest time."""
    ordered = sorted(found, key=lambda entry: entry.time_us)
    shown = found if len(found) == 2 else (ordered[0], ordered[-1])
    first, last = found if len(found) == 2 else (ordered[-1], ordered[0])
    times = [(span_named(entry.time_us), str(entry.head)) for entry in shown]
    return [*times, _speedup(first, last)]


def _speedup(first: Entry, last: Entry) -> tuple[str, str]:
    """The speedup of *last* over *first*."""
    ratio = first.time_us / last.time_us if last.time_us else 0.0
    change_us = last.time_us - first.time_us
    more = "more" if change_us > 0 else "less"
    text = f"{ratio:,.0f}" if ratio >= MANY_WHOLE else f"{ratio:.2f}"
    names = f"{last.head.letter} over {first.head.letter}"
    return f"{text}x", f"speedup of {names}: {span_named(abs(change_us))} {more}"


def errors(found: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The expected error of each run, written once if all have the same."""
    if len(set(found)) == 1:
        return found[0]
    if len(found) > MOST_SHARES:
        return "various", "expected errors: the section Numbers has that of each run"
    return ", ".join(large for large, _ in found), "expected error of each in 9 of 10 cases"


def key(found: Sequence[Entry]) -> str:
    """The legend of the causes whose part of any bar is large enough to be visible."""
    longest_us = max(entry.time_us for entry in found)
    colors = {
        part.name: part.color
        for entry in found
        for part in entry.parts
        if part.us >= answer.LEAST_NAMED * longest_us
    }
    return answer.key(colors)


def differing(first: Entry, last: Entry) -> str:
    """A sentence with the parts of the time that make the difference between two runs."""
    whole_us = last.time_us - first.time_us
    if not whole_us:
        return f"{first.head.letter} and {last.head.letter} take equally long."
    names = dict.fromkeys(part.name for part in (*first.parts, *last.parts))
    before, after = ({part.name: part.us for part in own.parts} for own in (first, last))
    changes = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in names}
    largest = sorted(changes.items(), key=lambda item: -abs(item[1]))[:MOST_CHANGES]
    parts = [f"{name} {_changed(us)}" for name, us in largest
             if abs(us) >= LEAST_OF_CHANGE * abs(whole_us)]  # fmt: skip
    who = f"{last.head.letter} takes {_changed(whole_us)} than {first.head.letter}"
    return f"{who}: {listed(parts)}." if parts else f"{who}."


def _changed(us: float) -> str:
    return f"{span_named(abs(us))} {'more' if us > 0 else 'less'}"


MOST_CHANGES = 3
LEAST_OF_CHANGE = 0.1
"""Parts of the time whose change is less than this share of the difference are left out."""


def finding(runs: Sequence[Timed]) -> str:
    """The fastest and the slowest of *runs*, and what bounds them."""
    times = [run.time_us or 0.0 for run in runs]
    return f"{ranked(times)} {_bounds(runs)}"


def _bounds(runs: Sequence[Timed]) -> str:
    """What bounds each run, in a sentence that groups runs with the same bottleneck."""
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
    """The fastest and the slowest run, in words.

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
    """A bar for each run, all to one scale, with its time, and its bottleneck below."""
    longest_us = max(entry.time_us for entry in found) or 1.0
    lines = []
    for number, entry in enumerate(found):
        ratio = than(found[0].time_us, entry.time_us) if number else ""
        lines.append(
            f'<li><p class="who"><b>{entry.head.letter}</b> {escape(entry.head.who)}</p>'
            f"{answer.bar(entry.parts, longest_us)}"
            f'<p class="took"><b>{span_named(entry.time_us)}</b> <span>{ratio}</span></p>'
            f'<p class="note">{escape(entry.bound)}</p></li>'
        )
    return f'<ol class="glance">{"".join(lines)}</ol>'
