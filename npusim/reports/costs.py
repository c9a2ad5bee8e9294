"""Where the time of a run went: launch, the phases of one pipe, completion.

The pipe is the busiest one of the slowest cores of any kind. The start delay lasts until its first
micro-op; the drain lasts from the end of its last micro-op to the last result of the slowest core.
Between them it is active, or stalled: for data, for room, or for its next micro-op.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npusim.devices.schema import Pipe
from npusim.reports import style
from npusim.reports.picture import Picture
from npusim.reports.subject import Timed, kernel_named, slowest_lanes, title_start, trace_of
from npusim.trace import ORDERING, LaneTrace, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLORS", "EARLIER", "PICTURE", "Row", "costs", "rows"]

EARLIER = "launches before"
"""Kernels that torch_npu launches before the one of the trace, each with its own launch."""
COLORS = {
    EARLIER: "#CC79A7",
    "launch": "#999999",
    "head": "#56B4E9",
    "work": "#009E73",
    "waits": "#B3E2D5",
    "tail": "#E69F00",
    "completion": "#CCCCCC",
}
NAMES = {"head": "start delay", "work": "active", "waits": "stalled", "tail": "drain"}
"""Part of the time of a pipe -> its name, which follows the name of that pipe."""
STACKED_NAMES = 60
"""Characters in a line of the title if names are to the left of the bars."""
CHARACTER = 0.9
"""Width of a character of a label, in percent of the picture."""


@dataclass(frozen=True, slots=True)
class Row:
    """A part of the time of a run."""

    part: str
    pipe: str
    """The pipe that is active longest: `mte2`, with its kind of core if there are several."""
    us: float
    share: float
    """Its share of the whole time."""

    @property
    def label(self) -> str:
        """The name of the part, or what the pipe does in it."""
        name = NAMES.get(self.part)
        return f"{self.pipe} {name}" if name else self.part


@dataclass(frozen=True, slots=True)
class _Stay:
    """How one pipe of the slowest core of a kind spent its time, in cycles."""

    kind: str
    pipe: Pipe
    first: int
    """When its first micro-op starts."""
    last: int
    """When its last micro-op leaves it free."""
    held: int
    """How long micro-ops held it between these two times."""


def rows(run: Timed) -> list[Row]:
    """The kernels launched before, then the six parts of the kernel, in order: all of `time_us`.

    Raises ValueError for a run that was not timed or had nothing to do.
    """
    trace = trace_of(run)
    stay = _longest(trace)
    us = 1e6 / trace.clock_hz
    completion = run.device.launch.completion_us
    *earlier, own = run.launches
    parts = {EARLIER: sum(launch.time_us or 0.0 for launch in earlier)} if earlier else {}
    parts |= {
        "launch": own.launch_us - completion,
        "head": stay.first * us,
        "work": stay.held * us,
        "waits": (stay.last - stay.first - stay.held) * us,
        "tail": (trace.cycles - stay.last) * us,
        "completion": completion,
    }
    kinds = {lane.kind for lane in trace.lanes}
    pipe = f"{stay.pipe} of {stay.kind}" if len(kinds) > 1 else stay.pipe
    total = sum(parts.values())
    return [Row(part, pipe, took, took / total) for part, took in parts.items()]


def _longest(trace: Trace) -> _Stay:
    """The phases of the busiest pipe; ties go to the first kind of core and the first pipe."""
    found = [stay for lane in slowest_lanes(trace) for stay in _stays(lane)]
    return max(found, key=lambda stay: stay.held)


def _stays(lane: LaneTrace) -> list[_Stay]:
    none = len(style.PIPES)
    pipes = np.array(
        [none if isinstance(op, ORDERING) else style.PIPES.index(op.pipe) for op in lane.ops]
    )
    found = []
    for number, pipe in enumerate(style.PIPES):
        own = pipes == number
        if own.any():
            start, free = lane.start[own], lane.free[own]
            held = int((free - start).sum())
            found.append(_Stay(lane.kind, pipe, int(start.min()), int(free.max()), held))
    return found


def costs(
    runs: Timed | Sequence[Timed], *, end_us: float | None = None, ax: Axes | None = None
) -> Axes:
    """Draw one run, or several below each other, on *ax* or on a new figure.

    The axis ends with the longest one, or at *end_us*. Raises ValueError for a run that was not
    timed or had nothing to do.
    """
    shown: Sequence[Timed] = runs if isinstance(runs, Sequence) else (runs,)
    ax = ax or style.new_axes()
    table = [rows(run) for run in shown]
    longest = max(_whole_us(own) for own in table) if end_us is None else end_us
    for y, own in enumerate(table):
        left = 0.0
        for row in own:
            _draw(ax, row, left, y, longest)
            left += row.us
    ax.set_xlim(0, longest)
    ax.set_ylim(len(table) - 0.4, -0.6)
    style.bare(ax)
    # If there is one run, the title names it.
    names = [style.plain(f"{kernel_named(run)}\n{run.device.name}") for run in shown]
    ax.set_yticks(range(len(table)), names if len(shown) > 1 else [""])
    total = _whole_us(table[0])
    largest = max(table[0], key=lambda row: row.us)
    style.title(
        ax,
        f"{title_start(shown[0])}{_finding(largest)} of {style.time_named(total)}",
        style.LONG_TITLE if len(shown) == 1 else STACKED_NAMES,
    )
    _legend(ax, table)
    return ax


def _whole_us(own: list[Row]) -> float:
    return sum(row.us for row in own)


def _finding(largest: Row) -> str:
    """The largest part, as the start of a title."""
    share = style.percent(largest.share)
    if largest.part in NAMES:
        return f"{largest.label} {share}"
    return f"{largest.label} {'take' if largest.part == EARLIER else 'takes'} {share}"


def _draw(ax: Axes, row: Row, left: float, y: float, longest: float) -> None:
    ax.barh(y, row.us, 0.5, left=left, color=COLORS[row.part], edgecolor="white", zorder=2)
    for label in (f"{row.label} {style.time_named(row.us)}", style.time_named(row.us)):
        if len(label) * CHARACTER <= 100 * row.us / longest:
            ax.text(
                *(left + row.us / 2, y, label),
                ha="center",
                va="center",
                size=style.LABEL_POINTS,
                color="black",
                zorder=3,
            )
            return


def _legend(ax: Axes, table: list[list[Row]]) -> None:
    from matplotlib.patches import Patch

    used = {
        part: {row.label for own in table for row in own if row.part == part and row.us}
        for part in COLORS
    }
    # Runs with different pipes share the colours, so only the bars carry the names.
    marks = [
        Patch(color=COLORS[part], label=labels.pop() if len(labels) == 1 else part)
        for part, labels in used.items()
        if labels
    ]
    style.legend_below(ax, marks, "time (us)")


PICTURE = Picture(
    name="costs",
    heading="Where the time went",
    height_inches=lambda _: 1.0,
    draw=costs,
    draw_among=lambda run, runs, ax: costs(
        run, end_us=max(_whole_us(rows(each)) for each in runs), ax=ax
    ),
)
