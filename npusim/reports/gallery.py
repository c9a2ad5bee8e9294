"""All pictures of one run, each with the name of its file and its size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from npusim.reports import bandwidth, bounds, costs, occupancy, pipes, roofline, timeline
from npusim.reports.subject import Timed, trace_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Picture", "pictures"]

WIDTH = 10.0
FRAME = 1.3
"""Inches of title and axis."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that is still to be drawn."""

    name: str
    heading: str
    inches: tuple[float, float]
    draw: Callable[[Axes], object]

    def figure(self) -> Figure:
        """It on a figure of its own, which belongs to no window."""
        from matplotlib.figure import Figure

        figure = Figure(self.inches, layout="constrained")
        self.draw(figure.subplots())
        return figure


def pictures(run: Timed) -> list[Picture]:
    """The pictures that apply to *run*.

    Raises ValueError for a run that was not timed or had nothing to do.
    """
    trace = trace_of(run)
    bars = {(row.kind, row.pipe) for row in bounds.rows(run)}
    kinds = {kind for kind, _ in bars}
    lanes = {(bar.cores, bar.pipe) for bar in timeline.rows(trace)}
    shown = {
        "costs": ("Where the time went", 1.0, partial(costs.costs, run)),
        "bounds": (
            "What bounds it",
            0.42 * (len(bars) + len(kinds)),
            partial(bounds.bounds, run),
        ),
        "pipes": (
            "How busy the pipes were",
            0.4 * (len(bars) + len(kinds)),
            partial(pipes.pipes, run),
        ),
        "timeline": (
            "What each pipe did when",
            0.45 * (len(lanes) + len({cores for cores, _ in lanes})),
            partial(timeline.timeline, run),
        ),
        "bandwidth": (
            "Bandwidth over time",
            0.7 * len(bandwidth.rows(run)),
            partial(bandwidth.bandwidth, run),
        ),
        "occupancy": (
            "What buffers hold",
            0.7 * len(occupancy.rows(run)) + 0.4 * len(kinds),
            partial(occupancy.occupancy, run),
        ),
    }
    found = [
        Picture(name, heading, (WIDTH, FRAME + max(height, 0.7)), _on(draw))
        for name, (heading, height, draw) in shown.items()
        if name not in ("bandwidth", "occupancy") or height
    ]
    for title in dict.fromkeys(row.title for row in roofline.rows(run)):
        name = "roofline_" + "".join(c if c.isalnum() else "_" for c in title.lower()).strip("_")
        draw = partial(roofline.roofline, run, title=title)
        found.append(Picture(name, f"Roofline: {title}", (WIDTH, 4.6), _on(draw)))
    return found


def _on(draw: Callable[..., object]) -> Callable[[Axes], object]:
    return lambda ax: draw(ax=ax)
