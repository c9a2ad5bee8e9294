"""What bounds a run: its critical path, and where the time of each pipe of the slowest cores went.

A pipe is busy while a micro-op holds it. For a copy this includes moving bytes at the full rate of
its port, being slowed by a link that all cores share, converting rows one after the other, and
issuing the copy. Otherwise it waits: for a flag (of which pipe, and for data or room in which
buffer), for a flag from another core, at a barrier, or because the scalar unit has not issued its
next micro-op. The parts of a pipe add up to the whole time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from npusim.devices.schema import Pipe
from npusim.isa import Barrier, CrossCoreWaitFlag, WaitFlag
from npusim.reports import style
from npusim.reports.causes import CAUSES, Bound, bound_by, causes, path_causes
from npusim.reports.flags import matches, what
from npusim.reports.picture import Picture
from npusim.reports.roofline import verdict
from npusim.reports.subject import (
    Subject,
    Timed,
    elapsed_us,
    remembered,
    slowest_lanes,
    title_start,
    trace_of,
)
from npusim.trace import ORDERING, LaneTrace, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MIN_SHARE", "PICTURE", "Row", "bounded_by", "bounds", "finding", "headline", "rows"]

MIN_SHARE = 0.05
"""A share of the time: a cause with less is not named next to the largest."""
GAINS_LITTLE = 0.25
"""If a cause gains less than this part of its share of the critical path, the text says so."""

Cause = Literal[
    "work", "link", "rows", "issue", "flag", "core", "barrier", "order", "issue wait", "finished"
]
"""The first four are busy time: the work of the pipe, slowed by a shared link, slowed by row
conversion, and issuing a copy. The others are stalls: for a flag, for another core, at a barrier,
while flags are set, for the next micro-op, and the drain at the end with nothing left to do."""
WORKS: tuple[Cause, ...] = ("work", "link", "rows", "issue")


@dataclass(frozen=True, slots=True)
class Row:
    """A part of the time of one pipe."""

    kind: str
    core: int
    pipe: Pipe
    cause: Cause
    reason: str
    """For a flag, the pipe that sets it and what it signals: `mte2: data in ub`."""
    us: float
    share: float
    """Its share of the time of the slowest core."""


@remembered
def rows(subject: Subject) -> list[Row]:
    """The parts of each active pipe, by kind of core and pipe; the longest waits first."""
    trace = trace_of(subject)
    found = []
    for lane in slowest_lanes(trace):
        parts = _parts(lane, trace)
        for pipe in style.PIPES:
            own = [(key, cycles) for key, cycles in parts.items() if key[0] == pipe and cycles]
            if not any(cause in WORKS for (_, cause, _), _ in own):
                continue
            own.sort(key=lambda part: (ORDER.index(part[0][1]), -part[1], part[0][2]))
            for (_, cause, reason), cycles in own:
                us = cycles / trace.clock_hz * 1e6
                share = cycles / trace.cycles
                found.append(Row(lane.kind, lane.cores[0], pipe, cause, reason, us, share))
    return found


ORDER: tuple[Cause, ...] = (
    *WORKS,
    *("flag", "core", "barrier", "order", "issue wait", "finished"),
)
_Parts = dict[tuple[Pipe, Cause, str], int]


def _parts(lane: LaneTrace, trace: Trace) -> _Parts:
    parts: _Parts = {}
    before: dict[Pipe, int] = {}

    def add(pipe: Pipe, cause: Cause, reason: str, cycles: int) -> None:
        parts[pipe, cause, reason] = parts.get((pipe, cause, reason), 0) + cycles

    carried = what(lane.program, matches(lane.program))
    copies = {index: row for row, index in enumerate(lane.copies.index.tolist())}
    times = zip(lane.ops, lane.start.tolist(), lane.free.tolist(), strict=True)
    for index, (op, start, free) in enumerate(times):
        pipe = op.pipe
        add(pipe, "issue wait", "not issued yet", start - before.get(pipe, 0))
        before[pipe] = free
        took = free - start
        if isinstance(op, WaitFlag):
            about = carried.get(index, "")
            add(pipe, "flag", f"{op.src}: {about}" if about else op.src, took)
        elif isinstance(op, CrossCoreWaitFlag):
            add(pipe, "core", "another core", took)
        elif isinstance(op, Barrier):
            add(pipe, "barrier", "barrier", took)
        elif isinstance(op, ORDERING):
            add(pipe, "order", "raising flags", took)
        else:
            for cause, reason, cycles in _held(lane, copies.get(index)):
                add(pipe, cause, reason, cycles)
                took -= cycles
            add(pipe, "work", "work", took)
    for pipe, free in before.items():
        add(pipe, "finished", "nothing left to do", trace.cycles - free)
    return parts


def _held(lane: LaneTrace, row: int | None) -> list[tuple[Cause, str, int]]:
    """What delayed a copy apart from moving its bytes: cause, reason and cycles."""
    if row is None:
        return []
    copies = lane.copies
    index, moved = copies.index[row], int(copies.moved[row])
    # Its instruction can hold the pipe before its bytes are requested, and after they have moved.
    issue = int(copies.asked[row] - lane.start[index]) + max(0, int(lane.free[index]) - moved)
    return [
        ("link", "bandwidth of GM", int(copies.gm_narrow[row])),
        ("link", "bandwidth of L2 reads", int(copies.l2_read_narrow[row])),
        ("link", "bandwidth of L2 writes", int(copies.l2_write_narrow[row])),
        ("rows", "ND to NZ", int(copies.turning[row])),
        ("issue", "issuing copies", issue),
    ]


def finding(subject: Subject) -> str:
    """What bounds the run: the text of :func:`headline`, then the vendor's term."""
    words = verdict(subject)
    sentence = headline(subject)
    return f"{sentence} (in msopprof's words: {words})" if words else sentence


def headline(subject: Subject) -> str:
    """The bottleneck and the next cause in a line; without a bottleneck, the longest part."""
    found, longest = causes(subject), path_causes(subject)[0]
    total = style.time_named(longest.path_us / longest.path_share)
    where = _where(longest, trace_of(subject))
    first, *others = found or [longest]
    if first.share < MIN_SHARE:
        return (
            f"no number of the chip bounds it, but the order of the kernel, strides or banks; the "
            f"longest part of its critical path is {longest.words}: "
            f"{style.percent(longest.path_share)} of {total}{where}"
        )
    sentence = f"bound by {_words(subject, first)}: {style.percent(first.share)} of {total}"
    sentence += _where(first, trace_of(subject))
    if others and others[0].share >= MIN_SHARE:
        sentence += f"; next {others[0].words}, {style.percent(others[0].share)}"
    reported = {cause: bound.share for bound in found for cause in bound.causes}
    if reported.get(longest.cause, 0.0) < GAINS_LITTLE * longest.path_share:
        share = style.percent(longest.path_share)
        sentence += (
            f"; {longest.words}, {share} of the critical path{where}, gains little if faster"
        )
    return sentence


def bounded_by(subject: Subject) -> str:
    """What bounds the run, without figures."""
    first = bound_by(subject)
    return first.words if first.share >= MIN_SHARE else "the order of the kernel, strides or banks"


def _words(subject: Subject, bound: Bound) -> str:
    """What bounds *subject*; if it is the kernels launched before the main kernel, their names."""
    if bound.cause != "earlier" or isinstance(subject, Trace):
        return bound.words
    names = list(dict.fromkeys(launch.op for launch in subject.launches[:-1]))
    kernel = f"a kernel that runs before {subject.op}" if len(names) == 1 else bound.words
    return f"{' and '.join(names)}, {kernel}"


def _where(bound: Bound, trace: Trace) -> str:
    """The pipe that it delayed longest, with the kind of core if there are several."""
    if not bound.where:
        return ""
    kind, pipe = bound.where[0]
    kinds = {lane.kind for lane in trace.lanes}
    return f", on {pipe} of {kind}" if len(kinds) > 1 else f", on {pipe}"


BAR_HEIGHT = 0.7
HEADER_HEIGHT = 0.7


def bounds(subject: Subject, *, ax: Axes | None = None) -> Axes:
    """Draw *subject*, a trace or a run, on *ax* or on a new figure.

    Raises ValueError for a run that was not timed or had nothing to do.
    """
    found = rows(subject)
    ax = ax or style.new_axes()
    style.header(ax, "critical path: what the last result waited for", HEADER_HEIGHT / 2)
    depth, above = HEADER_HEIGHT + 1, ""
    _draw_path(ax, subject, HEADER_HEIGHT + 0.5)
    places: dict[tuple[int, Pipe], float] = {}
    ends: dict[tuple[int, Pipe], float] = {}
    for row in found:
        if row.kind != above:
            text = f"core {row.core}, the slowest {row.kind}"
            style.header(ax, text, depth + HEADER_HEIGHT / 2)
            depth, above = depth + HEADER_HEIGHT, row.kind
        key = row.core, row.pipe
        if key not in places:
            places[key] = depth + 0.5
            depth += 1
        left = ends.get(key, 0.0)
        ends[key] = left + 100 * row.share
        _draw(ax, row, left, places[key])
    ax.set_xlim(0, 100)
    ax.set_ylim(depth, 0)
    heights = [HEADER_HEIGHT + 0.5, *places.values()]
    ax.set_yticks(heights, ["path", *(pipe for _, pipe in places)])
    style.bare(ax)
    style.title(ax, f"{title_start(subject)}{finding(subject)}")
    _legend(ax)
    return ax


def _draw_path(ax: Axes, subject: Subject, y: float) -> None:
    """The causes on the critical path, each in the colour of the pipe that it delayed longest."""
    cores_us = elapsed_us(trace_of(subject))
    left = 0.0
    for bound in path_causes(subject):
        if bound.where:
            share = bound.path_us / cores_us
            color, hatch = style.COLORS[bound.where[0][1]], ""
            if bound.cause in LINKS:
                color, hatch = style.tint(color, 0.6), LOOKS["link"][1]
            elif bound.cause not in UNITS:
                color = style.tint(color, 0.3)
            _bar(ax, left, y, share, color, hatch)
            percent = style.percent(share)
            _label(ax, left, y, share, (f"{CAUSES[bound.cause].short} {percent}", percent))
            left += 100 * share


LINKS = ("gm", "l2 reads", "l2 writes", "rows")
UNITS = ("port", "cube", "vector", "buffers", "scalar")


def _draw(ax: Axes, row: Row, left: float, y: float) -> None:
    own, hatch = LOOKS[row.cause]
    source = row.reason.partition(":")[0]
    color = own or style.COLORS[row.pipe]
    if row.cause == "flag":
        color = style.tint(style.COLORS[source], 0.3)  # type: ignore[index]
    if row.cause in ("link", "rows", "issue"):
        color = style.tint(color, 0.6)
    _bar(ax, left, y, row.share, color, hatch)
    percent = style.percent(row.share)
    text = f"{row.reason} {percent}"
    if row.cause in ("work", "finished"):
        text = percent if row.cause == "work" else "done" if row.share >= 0.12 else ""
    _label(ax, left, y, row.share, (text, percent))


def _bar(ax: Axes, left: float, y: float, share: float, color: str, hatch: str) -> None:
    ax.barh(
        *(y, 100 * share, BAR_HEIGHT),
        left=left,
        color=color,
        hatch=hatch,
        edgecolor="white",
        linewidth=0.8,
        zorder=2,
    )


def _label(ax: Axes, left: float, y: float, share: float, labels: tuple[str, ...]) -> None:
    """Write the first of *labels* that fits."""
    for label in labels:
        if label and len(label) * CHARACTER <= 100 * share:
            ax.text(
                *(left + 50 * share, y, label),
                ha="center",
                va="center",
                size=style.LABEL_POINTS,
                color="black",
                clip_on=True,
                zorder=4,
            )
            return


CHARACTER = 0.86
"""Width of a character of a label, in percent of the picture."""

LOOKS: dict[Cause, tuple[str, str]] = {
    "work": ("", ""),
    "link": ("", "////"),
    "rows": ("", "////"),
    "issue": ("", ""),
    "flag": ("", ""),
    "core": ("#CFE3D4", ".."),
    "barrier": ("#BBBBBB", ""),
    "order": ("#BBBBBB", ""),
    "issue wait": ("#E9E9E9", ""),
    "finished": ("#FAFAFA", ""),
}
"""Cause -> colour, if any, and hatch."""


def _legend(ax: Axes) -> None:
    from matplotlib.patches import Patch

    dark = style.COLORS["scalar"]
    style.legend_below(
        ax,
        [
            Patch(color=dark, label="active"),
            Patch(facecolor=style.tint(dark, 0.6), hatch="////", edgecolor="white",
                  label="held up by a link or by rows"),
            Patch(color=style.tint(dark, 0.3), label="stalled, in the colour of whom it waits for"),
        ],
        "% of the time of the cores",
    )  # fmt: skip


def _height_inches(run: Timed) -> float:
    bars = {(row.kind, row.pipe) for row in rows(run)}
    return 0.42 * (len(bars) + len({kind for kind, _ in bars}) + 2)


PICTURE = Picture(
    name="bounds",
    heading="What bounds it",
    height_inches=_height_inches,
    draw=bounds,
)
