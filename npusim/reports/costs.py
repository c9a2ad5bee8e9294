"""Where the time of a run went: launch, head, steady state, tail, completion.

The head lasts until the pipe that is busiest of all starts for the first time, the steady state
until its last result, the tail until the last result of the slowest core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npusim.reports import style
from npusim.reports.picture import Picture
from npusim.reports.subject import Timed, busiest_lane, title_start, trace_of
from npusim.trace import ORDERING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

__all__ = ["COLORS", "PICTURE", "Row", "costs", "rows"]

COLORS = {
    "launch": "#999999",
    "head": "#56B4E9",
    "steady state": "#009E73",
    "tail": "#E69F00",
    "completion": "#CCCCCC",
}
CHARACTER = 0.9
"""Width of a character of a label, in percent of the picture."""


@dataclass(frozen=True, slots=True)
class Row:
    """A part of the time of a run."""

    part: str
    us: float
    share: float
    """Of the whole time."""


def rows(run: Timed) -> list[Row]:
    """The five parts, in order; they add up to `time_us`.

    Raises ValueError for a run that was not timed or had nothing to do.
    """
    trace = trace_of(run)
    lane, pipe, _ = busiest_lane(trace)
    working = np.array(
        [op.pipe == pipe and not isinstance(op, ORDERING) for op in lane.ops], np.bool_
    )
    us = 1e6 / trace.clock_hz
    first, last = int(lane.start[working].min()) * us, int(lane.end[working].max()) * us
    completion = run.device.launch.completion_us
    parts = {
        "launch": run.launch_us - completion,
        "head": first,
        "steady state": last - first,
        "tail": trace.cycles * us - last,
        "completion": completion,
    }
    total = sum(parts.values())
    return [Row(part, took, took / total) for part, took in parts.items()]


def costs(runs: Timed | Sequence[Timed], *, ax: Axes | None = None) -> Axes:
    """Draw one run, or several below each other, on *ax* or on a figure of its own.

    Raises ValueError for a run that was not timed or had nothing to do.
    """
    from collections.abc import Sequence as Many

    shown: Sequence[Timed] = runs if isinstance(runs, Many) else (runs,)
    ax = ax or style.new_axes()
    table = [rows(run) for run in shown]
    longest = max(sum(row.us for row in own) for own in table)
    for y, own in enumerate(table):
        left = 0.0
        for row in own:
            _draw(ax, row, left, y, longest)
            left += row.us
    ax.set_xlim(0, longest)
    ax.set_ylim(len(table) - 0.4, -0.6)
    style.bare(ax)
    ax.set_yticks(range(len(table)), [f"{run.op}\n{run.device.name}" for run in shown])
    total = sum(row.us for row in table[0])
    largest = max(table[0], key=lambda row: row.us)
    style.title(
        ax,
        f"{title_start(shown[0])}{largest.part} takes {style.percent(largest.share)} "
        f"of {style.time_named(total)}",
    )
    ax.set_xlabel("time (us)", size=style.TEXT_POINTS, color=style.INK, loc="left")
    _legend(ax, table)
    return ax


def _draw(ax: Axes, row: Row, left: float, y: float, longest: float) -> None:
    ax.barh(y, row.us, 0.5, left=left, color=COLORS[row.part], edgecolor="white", zorder=2)
    for label in (f"{row.part} {style.time_named(row.us)}", style.time_named(row.us)):
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

    used = [
        part
        for part in COLORS
        if any(row.part == part and row.us for rows in table for row in rows)
    ]
    style.legend_below(ax, [Patch(color=COLORS[part], label=part) for part in used])


PICTURE = Picture(
    name="costs",
    heading="Where the time went",
    height_inches=lambda _: 1.0,
    draw=costs,
)
