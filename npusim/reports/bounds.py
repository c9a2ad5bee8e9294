"""What bounds a run: where the time of each pipe of the slowest cores went.

A pipe works, or it waits: for a flag (of which pipe, and for data or room in which buffer), for
bytes that other cores are in the way of, for a word from another core, at a barrier, or because the
scalar unit has not handed out its next micro-op. The parts of a pipe add up to the whole time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import Barrier, CrossCoreWaitFlag, WaitFlag, global_operand
from npusim.reports import style
from npusim.reports.flags import matches, what
from npusim.reports.picture import Picture
from npusim.reports.roofline import verdict
from npusim.reports.subject import (
    Subject,
    Timed,
    device_of,
    elapsed_us,
    slowest_lanes,
    title_start,
    trace_of,
)
from npusim.reports.traffic import far, path
from npusim.trace import ORDERING, LaneTrace, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PICTURE", "Row", "bounds", "finding", "rows"]

Cause = Literal["work", "link", "flag", "core", "barrier", "order", "issue", "over"]
"""work; a link that is shared; a flag; another core; a barrier; setting and taking flags; not
handed out yet; nothing left to do."""


@dataclass(frozen=True, slots=True)
class Row:
    """A part of the time of one pipe."""

    kind: str
    core: int
    pipe: Pipe
    cause: Cause
    reason: str
    """For a flag, who raises it and what it carries: `mte2: data in ub`."""
    us: float
    share: float
    """Of the time of the slowest core."""


def rows(subject: Subject) -> list[Row]:
    """The parts of each pipe that worked, by kind of core and pipe; the largest waits first."""
    trace, device = trace_of(subject), device_of(subject)
    found = []
    for lane in slowest_lanes(trace):
        parts = _parts(lane, trace, device)
        for pipe in style.PIPES:
            own = [(key, cycles) for key, cycles in parts.items() if key[0] == pipe and cycles]
            if not any(cause == "work" for (_, cause, _), _ in own):
                continue
            own.sort(key=lambda part: (ORDER.index(part[0][1]), -part[1], part[0][2]))
            for (_, cause, reason), cycles in own:
                us = cycles / trace.clock_hz * 1e6
                share = cycles / trace.cycles
                found.append(Row(lane.kind, lane.cores[0], pipe, cause, reason, us, share))
    return found


ORDER: tuple[Cause, ...] = ("work", "link", "flag", "core", "barrier", "order", "issue", "over")


def _parts(
    lane: LaneTrace, trace: Trace, device: DeviceSpec | None
) -> dict[tuple[Pipe, Cause, str], int]:
    parts: dict[tuple[Pipe, Cause, str], int] = {}
    before: dict[Pipe, int] = {}

    def add(pipe: Pipe, cause: Cause, reason: str, cycles: int) -> None:
        parts[pipe, cause, reason] = parts.get((pipe, cause, reason), 0) + cycles

    carried = what(lane.ops, matches(lane.ops))
    times = zip(lane.ops, lane.start.tolist(), lane.free.tolist(), strict=True)
    link = f"sharing {far(trace, device)}"
    for index, (op, start, free) in enumerate(times):
        pipe = op.pipe
        add(pipe, "issue", "not handed out yet", start - before.get(pipe, 0))
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
        elif global_operand(op) is not None and device is not None:
            alone = min(took, _alone(lane, index, device, trace))
            add(pipe, "work", "work", alone)
            add(pipe, "link", link, took - alone)
        else:
            add(pipe, "work", "work", took)
    for pipe, free in before.items():
        add(pipe, "over", "nothing left to do", trace.cycles - free)
    return parts


def _alone(lane: LaneTrace, index: int, device: DeviceSpec, trace: Trace) -> int:
    """Cycles that a copy would hold its pipe if its core had the memory to itself."""
    op = lane.ops[index]
    place, way = global_operand(op), path(op)
    assert place is not None
    assert way is not None
    core = device.cores[lane.kind]
    near = far(trace, device).lower()
    port = core.paths.get(way.replace("gm", near)) or core.paths[way]
    cycles = place.nbytes / port.bytes_per_cycle + port.startup_cycles
    occupied = max(
        cycles, device.transfer.issue_cycles, place.bursts * device.transfer.burst_cycles
    )
    return -int(-occupied * device.clock_hz // core.clock_hz)


def finding(subject: Subject) -> str:
    """What holds the run up, in a line: the pipe that is at it longest, and what slows it down."""
    found = rows(subject)
    took: dict[tuple[str, Pipe], float] = {}
    for row in found:
        if row.cause in ("work", "link"):
            took[row.kind, row.pipe] = took.get((row.kind, row.pipe), 0.0) + row.share
    kind, pipe = max(took, key=lambda key: took[key])
    kinds = {row.kind for row in found}
    sentence = (
        f"{pipe}{f' of {kind}' if len(kinds) > 1 else ''} works {style.percent(took[kind, pipe])}"
    )
    sentence += f" of {style.time_named(elapsed_us(trace_of(subject)))}"
    delays = [
        row
        for row in found
        if (row.kind, row.pipe) == (kind, pipe) and row.cause not in ("work", "order", "over")
    ]
    longest = max(delays, key=lambda row: row.share, default=None)
    if longest is not None and longest.share >= MIN_SHARE:
        share = style.percent(longest.share)
        sentence += (
            f", {share} of it slowed by {longest.reason}"
            if longest.cause == "link"
            else f" and waits {share} for {_awaited(longest)}"
        )
    words = verdict(subject)
    return f"{words}: {sentence}" if words else sentence


MIN_SHARE = 0.05


def _awaited(row: Row) -> str:
    """What the pipe waits for, in words."""
    if row.cause == "issue":
        return "its next micro-op"
    who, _, carried = row.reason.partition(": ")
    if not carried:
        return who
    return f"{carried} from {who}"


BAR_HEIGHT = 0.7
HEADER_HEIGHT = 0.7


def bounds(subject: Subject, *, ax: Axes | None = None) -> Axes:
    """Draw *subject*, a trace or a run, on *ax* or on a figure of its own.

    Raises ValueError for a run that was not timed or had nothing to do.
    """
    found = rows(subject)
    ax = ax or style.new_axes()
    depth, above = 0.0, ""
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
    ax.set_yticks(list(places.values()), [pipe for _, pipe in places])
    style.bare(ax)
    style.title(ax, f"{title_start(subject)}{finding(subject)}")
    ax.set_xlabel("% of the time of the cores", size=style.TEXT_POINTS, color=style.INK, loc="left")
    _legend(ax)
    return ax


def _draw(ax: Axes, row: Row, left: float, y: float) -> None:
    look = LOOKS[row.cause]
    source = row.reason.partition(":")[0]
    color = style.COLORS[row.pipe] if row.cause in ("work", "link") else look[0]
    if row.cause == "flag":
        color = style.tint(style.COLORS[source], 0.3)  # type: ignore[index]
    if row.cause == "link":
        color = style.tint(color, 0.6)
    ax.barh(
        *(y, 100 * row.share, BAR_HEIGHT),
        left=left,
        color=color,
        hatch=look[1],
        edgecolor="white",
        linewidth=0.8,
        zorder=2,
    )
    text = style.percent(row.share)
    if row.cause not in ("work", "over"):
        text = f"{row.reason} {text}" if row.cause != "issue" else f"not handed out {text}"
    if row.cause == "over":
        text = "" if row.share < 0.12 else "done"
    for label in (text, style.percent(row.share)):
        if label and len(label) * CHARACTER <= 100 * row.share:
            ax.text(
                *(left + 50 * row.share, y, label),
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
    "flag": ("", ""),
    "core": ("#CFE3D4", ".."),
    "barrier": ("#BBBBBB", ""),
    "order": ("#BBBBBB", ""),
    "issue": ("#E9E9E9", ""),
    "over": ("#FAFAFA", ""),
}
"""Cause -> colour, if it has one of its own, and hatch."""


def _legend(ax: Axes) -> None:
    from matplotlib.patches import Patch

    dark = style.COLORS["scalar"]
    style.legend_below(
        ax,
        [
            Patch(color=dark, label="works"),
            Patch(facecolor=style.tint(dark, 0.6), hatch="////", edgecolor="white",
                  label="shared link"),
            Patch(color=style.tint(dark, 0.3), label="waits, in the colour of whom it waits for"),
        ],
    )  # fmt: skip


def _height_inches(run: Timed) -> float:
    bars = {(row.kind, row.pipe) for row in rows(run)}
    return 0.42 * (len(bars) + len({kind for kind, _ in bars}))


PICTURE = Picture(
    name="bounds",
    heading="What bounds it",
    height_inches=_height_inches,
    draw=bounds,
)
