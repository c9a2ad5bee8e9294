"""The page of a comparison, which opens from disk."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from npusim.data.text import counted
from npusim.profile.comparison import Comparison, Group
from npusim.profile.tables import GROUPS, group_cells, shapes_of
from npusim.reports import answer, frame
from npusim.reports.answer import Part
from npusim.reports.style import percent, span_named
from npusim.reports.tables import table

__all__ = ["page"]

MOST_ROWS = 300
"""A table on the page has at most so many; kernels.csv has all."""
MOST_BARS = 40
MOST_SLOW = 5
"""The first screen has room for so many kernels."""
ALL_WELL = "No kernel is slower than it should be."
PARTS = {
    "as predicted": "#009E73",
    "lost by slow kernels": "#D55E00",
    "not known": "#B3B3B3",
    "communication": "#2F4B7C",
    "gaps": "#E5E5E5",
}
"""Part of the measured time -> its colour."""
COLORS = {"measured": "#0072B2", "predicted, warm": "#009E73", "up to cold": "#A5DBC8"}
"""What is drawn -> its colour."""
GAPS = ("before", "after", "count", "time", "longest", "longest begins at")
HERE = "npusim.reports"


def page(found: Comparison) -> str:
    """The whole page."""
    known = [group for group in found.groups if group.prediction is not None]
    parts = {
        "drawn": ("Measured and predicted", _bars(sorted(known, key=lambda own: -own.time_us))),
        "kernels": ("Kernels", _table(known)),
        "gaps": ("Gaps", _gaps(found)),
        "unknown": ("Not known", _table(found.unknown)),
    }
    title = f"{found.profile.path.name} compared with {found.device.name}"
    body = _screen(found) + frame.sections(parts, ("kernels", "gaps", "unknown"))
    return frame.document(title, frame.text_of(HERE, "page.css"), "", body)


# ---- the first screen ----


def _screen(found: Comparison) -> str:
    parts = _parts(found)
    whole_us = sum(part.us for part in parts) or 1.0
    bar = answer.bar(parts, whole_us) + answer.key(answer.named(parts, whole_us))
    slow = found.slowest
    left = len(slow) - MOST_SLOW
    more = f'<p class="note">and {counted(left, "more kind", "more kinds")}</p>' if left > 0 else ""
    kernels = _bars(slow[:MOST_SLOW]) + more if slow else f"<p>{ALL_WELL}</p>"
    return answer.screen(
        (
            answer.tiles(_tiles(found)),
            f"<h2>Where the time goes</h2>{bar}<p>{escape(_sentence(found))}</p>",
            f"<h2>Kernels that are slower than they should be</h2>{kernels}",
        )
    )


def _tiles(found: Comparison) -> list[tuple[str, str]]:
    total_us = found.measured_us or 1.0
    kernels = counted(len(found.kernels), "kernel", "kernels")
    slow = counted(len(found.slowest), "kind", "kinds")
    ratio = found.known_us / found.predicted_us if found.predicted_us else 0.0
    both = f"{span_named(found.known_us)} measured, {span_named(found.predicted_us)} predicted"
    return [
        (span_named(found.span_us), f"from the first kernel to the last: {kernels}"),
        (span_named(_lost_us(found)), f"lost by {slow} of kernels, slower than predicted"),
        (f"{ratio:.2f}x", f"of the predicted time: {both}"),
        (percent(found.known_us / total_us), "coverage: of the time of kernels, predicted"),
    ]


def _lost_us(found: Comparison) -> float:
    return sum(group.lost_us for group in found.slowest)


def _parts(found: Comparison) -> list[Part]:
    """What the measured time is made of."""
    lost_us = _lost_us(found)
    times = {
        "as predicted": found.known_us - lost_us,
        "lost by slow kernels": lost_us,
        "not known": sum(group.time_us for group in found.unknown),
        "communication": found.communication_us,
        "gaps": found.gaps_us,
    }
    return [Part(name, us, PARTS[name]) for name, us in times.items()]


def _sentence(found: Comparison) -> str:
    """What loses most time: a slow kernel or the gaps, and where."""
    slow, gaps = found.slowest, found.gaps
    words = []
    if slow:
        kernel = slow[0].middle.kernel
        words.append(
            f"{kernel.type} {shapes_of(kernel.inputs)} loses most, {span_named(slow[0].lost_us)}; "
            f"likely cause: {slow[0].cause}."
        )
    if gaps:
        words.append(
            f"Most of the gaps, {span_named(gaps[0].time_us)}, is between {gaps[0].before} and "
            f"{gaps[0].after}."
        )
    return " ".join(words)


# ---- sections ----


def _table(groups: Sequence[Group]) -> str:
    if not groups:
        return '<p class="note">none</p>'
    rows = [group_cells(group) for group in groups[:MOST_ROWS]]
    marked = [group.is_slow for group in groups[:MOST_ROWS]]
    more = len(groups) - len(rows)
    note = f'<p class="note">and {more:,} more in kernels.csv</p>' if more > 0 else ""
    return table(GROUPS, rows, marked) + note


def _bars(groups: Sequence[Group]) -> str:
    """For each group what one launch took above what it should take, to one scale."""
    if not groups:
        return '<p class="note">none</p>'
    shown = groups[:MOST_BARS]
    longest_us = max(_longest_us(group) for group in shown)
    lines = []
    for group in shown:
        kernel, known = group.middle.kernel, group.prediction
        assert known is not None
        measured = [Part("measured", kernel.time_us, COLORS["measured"])]
        names = list(COLORS)[1:]
        times = known.warm_us, known.cold_us - known.warm_us
        simulated = [Part(name, us, COLORS[name]) for name, us in zip(names, times, strict=True)]
        what = f"{len(group.launches)} x {kernel.type} {shapes_of(kernel.inputs)}"
        lines.append(
            f'<li><p class="who">{escape(what)}</p>'
            f"<div>{answer.bar(measured, longest_us)}{answer.bar(simulated, longest_us)}</div>"
            f'<p class="took"><b>{span_named(kernel.time_us)}</b> '
            f"<span>ratio {group.ratio or 0.0:.2f}</span></p>"
            f'<p class="note">{escape(group.cause)}</p></li>'
        )
    return f'{answer.key(COLORS)}<ol class="glance">{"".join(lines)}</ol>'


def _longest_us(group: Group) -> float:
    known = group.prediction
    return max(group.middle.kernel.time_us, known.cold_us if known else 0.0)


def _gaps(found: Comparison) -> str:
    if not found.gaps:
        return '<p class="note">none</p>'
    rows: list[list[str | int]] = []
    for gap in found.gaps[:MOST_ROWS]:
        times = [span_named(us) for us in (gap.time_us, gap.longest_us, gap.at_us)]
        rows.append([gap.before, gap.after, gap.count, *times])
    return table(GAPS, rows)
