"""The page of a comparison, which opens from disk."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from npusim.profile.comparison import Comparison, Group
from npusim.profile.tables import GROUPS, findings, group_cells, shapes_of
from npusim.reports import answer, frame
from npusim.reports.style import span_named
from npusim.reports.tables import table

__all__ = ["page"]

MOST_ROWS = 300
"""A table on the page has at most so many; kernels.csv has all."""
MOST_BARS = 40
COLORS = {"measured": "#0072B2", "predicted, warm": "#009E73", "up to cold": "#A5DBC8"}
"""What is drawn -> its colour."""
GAPS = ("before", "after", "count", "time", "longest", "longest begins at")
HERE = "npusim.reports"


def page(found: Comparison) -> str:
    """The whole page."""
    first, *rest = (f'<p class="finding">{escape(line)}</p>' for line in findings(found))
    known = [group for group in found.groups if group.prediction is not None]
    parts = {
        "slow": ("Slower than they should be", _bars(found.slowest)),
        "kernels": ("Kernels", _table(known)),
        "drawn": ("Where the time goes", _bars(sorted(known, key=lambda own: -own.time_us))),
        "gaps": ("Gaps", _gaps(found)),
        "unknown": ("Not known", _table(found.unknown)),
    }
    script = frame.text_of(HERE, "link.js")
    title = f"{found.profile.path.name} held against {found.device.name}"
    body = first + "".join(rest) + frame.sections(parts)
    return frame.document(title, frame.text_of(HERE, "page.css"), script, body)


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
        measured = [answer.Part("measured", kernel.time_us, COLORS["measured"])]
        names = list(COLORS)[1:]
        times = known.warm_us, known.cold_us - known.warm_us
        simulated = [
            answer.Part(name, us, COLORS[name]) for name, us in zip(names, times, strict=True)
        ]
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
