"""How busy each pipe was: on the slowest core, and on average over the cores of its kind.

.. code-block:: text

    busy = cycles with at least one micro-op under way / cycles that the slowest core takes

The vendor's profiler calls this the ratio of a pipe; here launch and completion, which belong to no
pipe, are left out of the elapsed time.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from npusim.devices.schema import Pipe
from npusim.reports import style
from npusim.reports.picture import Picture
from npusim.reports.subject import Subject, Timed, busiest, elapsed_us, title_start, trace_of
from npusim.trace import LaneTrace, Trace

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

__all__ = ["PICTURE", "Row", "pipes", "rows"]

BAR_HEIGHT = 0.64
LABEL = "busy, % of the time of the cores"
HEADER_HEIGHT = 0.7
"""The height of the line above each kind of core; the place of a bar is 1 high."""


@dataclass(frozen=True, slots=True)
class Row:
    """One pipe of one kind of core."""

    kind: str
    core: int
    """The slowest core of its kind."""
    cores: int
    """The number of active cores of this kind."""
    pipe: Pipe
    busy: float
    """Its share of the elapsed time on *core*, from 0 to 1."""
    mean: float
    """The same, averaged over all active cores of the kind."""


def rows(trace: Trace) -> list[Row]:
    """The active pipes of each kind of core, in the order of their first cores."""
    kinds: dict[str, list[LaneTrace]] = {}
    for lane in sorted(trace.lanes, key=lambda lane: lane.cores[0]):
        kinds.setdefault(lane.kind, []).append(lane)
    found = []
    for kind, lanes in kinds.items():
        counted = [(len(lane.cores), lane.counters()) for lane in lanes]
        slowest = max(lanes, key=lambda lane: int(lane.end.max(initial=0)))
        cores, own = sum(count for count, _ in counted), slowest.counters()
        for pipe in style.PIPES:
            if any(pipe in counters for _, counters in counted):
                shares = [
                    (counters[pipe].busy_cycles if pipe in counters else 0) / trace.cycles
                    for count, counters in counted
                    for _ in range(count)
                ]
                busy = own[pipe].busy_cycles / trace.cycles if pipe in own else 0.0
                found.append(Row(kind, slowest.cores[0], cores, pipe, busy, fmean(shares)))
    return found


def pipes(subject: Subject, *, ax: Axes | None = None) -> Axes:
    """Draw *subject*, a trace or a run, on *ax* or on a new figure.

    Raises ValueError for a run that was not timed or had nothing to do.
    """
    trace = trace_of(subject)
    found = rows(trace)
    ax = ax or style.new_axes()
    places, depth, above = [], 0.0, ""
    for row in found:
        if row.kind != above:
            text = f"core {row.core}, the slowest of {row.cores} ({row.kind})"
            if row.cores == 1:
                text = f"core {row.core} ({row.kind})"
            style.header(ax, text, depth + HEADER_HEIGHT / 2)
            depth += HEADER_HEIGHT
            above = row.kind
        places.append(depth + 0.5)
        depth += 1
    _draw(ax, found, places)
    ax.set_xlim(0, 100)
    ax.set_ylim(depth, 0)
    ax.set_yticks(places, [row.pipe for row in found])
    style.bare(ax)
    pipe, share = busiest(trace)
    style.title(
        ax,
        f"{title_start(subject)}{pipe} is the busiest pipe, {style.percent(share)} "
        f"of {style.time_named(elapsed_us(trace))}",
    )
    ax.set_xlabel(LABEL, size=style.TEXT_POINTS, color=style.INK, loc="left")
    return ax


def _draw(ax: Axes, found: list[Row], places: list[float]) -> None:
    from matplotlib.patches import Patch

    colors = [style.COLORS[row.pipe] for row in found]
    ax.barh(places, [100 * row.busy for row in found], BAR_HEIGHT, color=colors, zorder=2)
    marks: list[Artist] = [Patch(color=style.COLORS["scalar"], label="slowest core")]
    if any(row.cores > 1 for row in found):
        means = [100 * row.mean for row in found]
        marks += ax.plot(
            *(means, places, "D"),
            color=style.INK,
            markeredgecolor="white",
            markersize=7,
            label="mean of cores",
            clip_on=False,
            zorder=3,
        )
        style.legend_below(ax, marks, LABEL)
    for row, y in zip(found, places, strict=True):
        # To the right of the bar and of the mark, so that the text overlaps neither.
        end = 100 * max(row.busy, row.mean if row.cores > 1 else 0)
        ax.annotate(
            style.percent(row.busy),
            (end, y),
            xytext=(9, 0),
            textcoords="offset points",
            ha="left",
            va="center",
            size=style.TEXT_POINTS,
            color="black",
            zorder=4,
        )


def _height_inches(run: Timed) -> float:
    bars = rows(trace_of(run))
    return 0.4 * (len(bars) + len({row.kind for row in bars}))


PICTURE = Picture(
    name="pipes",
    heading="How busy the pipes were",
    height_inches=_height_inches,
    draw=pipes,
)
