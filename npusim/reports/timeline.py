"""The timeline: what each pipe did when, with one lane for each active pipe.

A bar is solid while a micro-op holds its pipe, and light from then on until its result is
available: the latency of a copy, the tail of a vector instruction. Flags and barriers do no work
and are left out; they show as gaps. Micro-ops too short to be visible alone are joined into one
bar, as high as the share of the time that they hold the pipe. Cores with the same timeline share
their lanes.

An arrow is a flag for which a pipe stalled: it goes from the end of the work that had to come first
to the time when the other pipe continued. If there are too many arrows to follow, none is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from npusim.devices.schema import Pipe
from npusim.reports import style
from npusim.reports.bars import STEPS, Bar, rows, window
from npusim.reports.cross_core_waits import crossings
from npusim.reports.flags import rows as rows_of_flags
from npusim.reports.labels import Scale, labels
from npusim.reports.picture import Picture
from npusim.reports.subject import (
    Subject,
    Timed,
    busiest,
    elapsed_us,
    longest_us,
    title_start,
    trace_of,
)
from npusim.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PICTURE", "rows", "timeline"]

BAR_HEIGHT = 0.8
HEADER_HEIGHT = 0.6
"""The height of the line above each group of lanes, which names its cores; a lane is 1 high."""

HIGH = 0.9
"""If bars are lower than this share of the full height, the legend explains them."""

MAX_ARROWS = 60
MARGIN = 0.012
"""The margin to the right of the end of the run, as a share, for an arrow to its last moment."""
HALO_POINTS = 2.0
"""The outline of a label, which an arrow may cross."""
ARROW = {
    "arrowstyle": "-|>,head_length=3.5,head_width=1.8",
    "color": style.INK,
    "linewidth": 0.7,
    "alpha": 0.75,
    "shrinkA": 0,
    "shrinkB": 0,
    "connectionstyle": "arc3,rad=0.08",
    "zorder": 6,
}

LaneKey = tuple[tuple[int, ...], Pipe]


def timeline(
    subject: Subject,
    *,
    cores: Sequence[int] | None = None,
    start_us: float | None = None,
    end_us: float | None = None,
    flags: bool = True,
    name: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw *subject*, a trace or a run, on *ax* or on a new figure.

    The title begins with *name*, or with the operator and the chip of a run. Without *flags* there
    are no arrows. *cores* default to the slowest of each kind, as in other pictures; *start_us* and
    *end_us* select a time window, which may extend beyond the end, so that a shorter run can be
    compared with a longer one. Raises ValueError for cores that were not active, for an empty
    window, and for a run that was not timed or had nothing to do.
    """
    trace = trace_of(subject)
    shown = window(trace, start_us, end_us)
    lanes: dict[LaneKey, list[Bar]] = {}
    for bar in rows(trace, cores, start_us=start_us, end_us=end_us):
        lanes.setdefault((bar.cores, bar.pipe), []).append(bar)
    places, headers, depth = _places(lanes)
    ax = ax or style.new_axes()
    is_whole = shown[1] >= elapsed_us(trace)
    ax.set_xlim(shown[0], shown[1] + (MARGIN * (shown[1] - shown[0]) if is_whole else 0.0))
    ax.set_ylim(depth, 0)
    ax.set_yticks(list(places.values()), [pipe for _, pipe in places])
    style.bare(ax)
    for lane, bars in lanes.items():
        _draw_bars(ax, bars, places[lane], (shown[1] - shown[0]) / STEPS)
        _draw_labels(ax, bars, places[lane], ax.get_xlim()[1])
    if flags:
        _draw_flags(ax, trace, places, shown)
    for text, y in headers:
        style.header(ax, text, y)
    pipe, share = busiest(trace)
    who = title_start(subject) if name is None else f"{name}: "
    took = style.time_named(elapsed_us(trace))
    style.title(ax, f"{who}{pipe} busy {style.percent(share)} of {took}")
    _draw_legend(ax, any(bar.share < HIGH for bars in lanes.values() for bar in bars))
    return ax


def _places(
    lanes: dict[LaneKey, list[Bar]],
) -> tuple[dict[LaneKey, float], list[tuple[str, float]], float]:
    """The vertical position of each lane and header, and the total height."""
    places: dict[LaneKey, float] = {}
    headers: list[tuple[str, float]] = []
    depth = 0.0
    above: tuple[int, ...] = ()
    for (cores, pipe), bars in lanes.items():
        if cores != above:
            headers.append((style.cores_named(cores, bars[0].kind), depth + HEADER_HEIGHT / 2))
            depth += HEADER_HEIGHT
            above = cores
        places[cores, pipe] = depth + 0.5
        depth += 1
    return places, headers, depth


def _draw_bars(ax: Axes, bars: list[Bar], y: float, step_us: float) -> None:
    color = style.COLORS[bars[0].pipe]
    top, bottom = y - BAR_HEIGHT / 2, y + BAR_HEIGHT / 2
    tails = [(bar.free_us, bar.end_us - bar.free_us) for bar in bars]
    tails = [tail for tail in tails if tail[1] >= step_us]
    light = style.tint(color)
    ax.broken_barh(tails, (top, BAR_HEIGHT), facecolor=light, linewidth=0, zorder=2)
    touching = [after.start_us - bar.free_us < step_us for bar, after in pairwise(bars)]
    # The shortest micro-op is still visible, if only as a line; and a gap that is too small to be
    # apart from others, between two bars that are several micro-ops, is left to their heights.
    ends = [max(bar.free_us, bar.start_us + 2 * step_us) for bar in bars]
    for index, (bar, after) in enumerate(pairwise(bars)):
        if touching[index] and max(bar.micro_ops, after.micro_ops) > 1:
            ends[index] = after.start_us
    drawn = ax.bar(
        [bar.start_us for bar in bars],
        [-BAR_HEIGHT * bar.share for bar in bars],
        [end - bar.start_us for bar, end in zip(bars, ends, strict=True)],
        bottom,
        align="edge",
        color=color,
        linewidth=0,
        zorder=3,
    )
    for patch, *beside in zip(drawn, [False, *touching], [*touching, False], strict=True):
        # Whole pixels leave no seam between neighbours, but turn isolated thin bars into bands.
        patch.set_snap(any(beside))
    apart = [
        after.start_us
        for (bar, after), near in zip(pairwise(bars), touching, strict=True)
        if near and bar.micro_ops == after.micro_ops == 1
    ]
    ax.vlines(apart, top, bottom, color="white", linewidth=0.8, zorder=4)


def _draw_flags(
    ax: Axes, trace: Trace, places: dict[LaneKey, float], shown: tuple[float, float]
) -> None:
    from matplotlib.patches import FancyArrowPatch

    alike = {core: cores for cores, _ in places for core in cores}
    lanes = [lane for lane in trace.lanes if lane.cores[0] in alike]
    firsts = [lane for lane in lanes if lane.cores[0] == alike[lane.cores[0]][0]]
    least = (shown[1] - shown[0]) / STEPS
    window = {"start_us": shown[0], "end_us": shown[1], "least_us": least}
    found = [flag for lane in firsts for flag in rows_of_flags(trace, lane, **window)]
    # Cores that share a lane set flags for their own groups; the first core waits for its own.
    found += crossings(trace, lanes, firsts)
    seen = [
        flag
        for flag in found
        if flag.held_us > least and flag.passed_us >= shown[0] and flag.set_us <= shown[1]
    ]
    if len(seen) > MAX_ARROWS:
        return
    for flag in seen:
        start = alike[flag.core], flag.src
        end = alike[flag.dst_core], flag.dst
        if start in places and end in places:
            ends_at = (flag.set_us, places[start]), (flag.passed_us, places[end])
            ax.add_artist(FancyArrowPatch(*ends_at, **ARROW))  # type: ignore[arg-type]


def _draw_labels(ax: Axes, bars: list[Bar], y: float, end_us: float) -> None:
    from matplotlib.patheffects import withStroke

    halo = withStroke(linewidth=HALO_POINTS, foreground="white", alpha=0.6)
    (left, top), (right, bottom) = ax.transData.transform([(0, y), (1, y + BAR_HEIGHT)])
    figure = ax.get_figure(root=True)
    assert figure is not None
    scale = Scale(right - left, abs(bottom - top), figure.dpi / 72, end_us)
    for label in labels(bars, scale):
        ax.text(
            *(label.x_us, y, style.plain(label.text)),
            rotation=90 if label.is_upright else 0,
            ha="center" if label.is_upright else "left",
            va="center",
            size=style.LABEL_POINTS,
            color="black",
            clip_on=True,
            path_effects=[halo],
            # Above the arrows, which would hide it.
            zorder=7,
        )


def _draw_legend(ax: Axes, has_low_bars: bool) -> None:
    """Write a legend of solid, light and low bars below the axis."""
    from matplotlib.patches import Patch

    dark = style.COLORS["scalar"]
    marks = [
        Patch(color=dark, label="holds its pipe"),
        Patch(color=style.tint(dark), label="result on its way"),
    ]
    if has_low_bars:
        marks.append(Patch(alpha=0, label="height: share of the time that it is held"))
    style.legend_below(ax, marks, "time since the cores started (us)")


def _height_inches(run: Timed) -> float:
    lanes = {(bar.cores, bar.pipe) for bar in rows(trace_of(run))}
    return 0.45 * (len(lanes) + len({cores for cores, _ in lanes}))


PICTURE = Picture(
    name="timeline",
    heading="What each pipe did when",
    height_inches=_height_inches,
    draw=timeline,
    draw_among=lambda run, runs, ax: timeline(run, end_us=longest_us(runs), ax=ax),
)
