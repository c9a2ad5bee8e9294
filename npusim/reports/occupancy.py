"""Buffer occupancy over time: how much of each buffer of the slowest cores holds live bytes.

A byte is live from the start of the micro-op that writes it until the end of the last one that
reads it before it is overwritten; a byte that is never read is live only while it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from npusim.devices.schema import DeviceSpec
from npusim.isa import reads, writes
from npusim.reports import style
from npusim.reports.picture import Picture
from npusim.reports.subject import (
    Subject,
    Timed,
    device_of,
    elapsed_us,
    longest_us,
    remembered,
    slowest_lanes,
    title_start,
    trace_of,
)
from npusim.trace import LaneTrace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["BUFFERS", "PICTURE", "Row", "occupancy", "rows"]

BUFFERS = {
    "l1": "mte2",
    "l0a": "mte1",
    "l0b": "mte1",
    "bt": "mte1",
    "l0c": "cube",
    "fb": "fixpipe",
    "ub": "vector",
}
"""Buffer -> the pipe whose colour it has, in the order in which data pass through them."""
MAX_OPS = 200_000
"""The most micro-ops that are analysed; the picture of a longer program says so."""
HEADER_HEIGHT = 0.5
ROOM = 0.8
FAR_ABOVE = 5
"""A buffer this many times larger than its peak is not drawn to scale; its size is written."""

STEPS = 1000
"""The most changes that are drawn; more would be narrower than a pixel."""

Times = NDArray[np.float64]
Bytes = NDArray[np.int64]
Life = list[int]
"""First byte, end, cycle of the write, cycle of the last read."""


@dataclass(frozen=True, eq=False)
class Row:
    """One buffer of one core."""

    kind: str
    core: int
    buffer: str
    times_us: NDArray[np.float64]
    """The times of changes, `(changes,)`."""
    live_bytes: NDArray[np.int64]
    """The live bytes from each change on, `(changes,)`."""
    claimed_bytes: int
    """The bytes that the program claims of it; 0 if it does not declare them."""
    size_bytes: int | None
    """The size of the buffer; None without a chip."""

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were live at once."""
        return int(self.live_bytes.max(initial=0))


@remembered
def rows(subject: Subject) -> list[Row]:
    """The buffers that held data, by kind of core.

    Raises ValueError for a run that was not timed or had nothing to do.
    """
    trace, device = trace_of(subject), device_of(subject)
    found = []
    for lane in slowest_lanes(trace):
        lives = _lives(lane)
        for buffer in (name for name in BUFFERS if name in lives):
            changes, live = _steps(lives[buffer])
            found.append(
                Row(
                    lane.kind,
                    lane.cores[0],
                    buffer,
                    np.asarray(changes * (1e6 / trace.clock_hz), np.float64),
                    live,
                    lane.program.claimed_bytes.get(buffer, 0),
                    _size(device, lane.kind, buffer),
                )
            )
    return found


def _size(device: DeviceSpec | None, kind: str, buffer: str) -> int | None:
    return None if device is None else getattr(device.cores[kind], f"{buffer}_bytes")


def _lives(lane: LaneTrace) -> dict[str, list[Life]]:
    """Buffer -> its lifetimes of bytes."""
    ended: dict[str, list[Life]] = {}
    alive: dict[str, list[Life]] = {}
    starts, ends = lane.start.tolist(), lane.end.tolist()
    ops, numbers = lane.program.distinct()
    for index, number in enumerate(numbers[:MAX_OPS].tolist()):
        op = ops[number]
        for place in reads(op):
            for life in alive.get(place.buffer, ()):
                if life[0] < place.end_bytes and place.offset_bytes < life[1]:
                    life[3] = max(life[3], ends[index])
        for place in writes(op):
            first, end = place.offset_bytes, place.end_bytes
            kept: list[Life] = []
            for life in alive.get(place.buffer, ()):
                if life[1] <= first or end <= life[0]:
                    kept.append(life)
                    continue
                if life[0] < first:
                    kept.append([life[0], first, *life[2:]])
                if end < life[1]:
                    kept.append([end, life[1], *life[2:]])
                # An accumulation reads bytes while it writes them: one lifetime follows the other.
                over = max(life[2], min(life[3], starts[index]))
                cut = [max(first, life[0]), min(end, life[1]), life[2], over]
                ended.setdefault(place.buffer, []).append(cut)
            alive[place.buffer] = [*kept, [first, end, starts[index], ends[index]]]
    for buffer, left in alive.items():
        ended.setdefault(buffer, []).extend(left)
    return ended


def _steps(lives: list[Life]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When the live bytes change, and their values."""
    table = np.array(lives, np.int64)
    sizes = table[:, 1] - table[:, 0]
    when = np.concatenate((table[:, 2], table[:, 3]))
    by = np.concatenate((sizes, -sizes))
    changes, place = np.unique(when, return_inverse=True)
    total = np.zeros(len(changes), np.int64)
    np.add.at(total, place, by)
    return changes, np.cumsum(total)


def occupancy(subject: Subject, *, among: Sequence[Timed] = (), ax: Axes | None = None) -> Axes:
    """Draw *subject*, a trace or a run, on *ax* or on a new figure.

    The time axis ends with the run, or with the longest of *among*; a buffer has one scale in the
    pictures of all of *among*. Raises ValueError for a run that was not timed or had nothing to do.
    """
    trace = trace_of(subject)
    found = rows(subject)
    highest: dict[tuple[str, str], int] = {}
    for row in (*found, *(row for run in among for row in rows(run))):
        place = row.kind, row.buffer
        highest[place] = max(highest.get(place, 1), _top(row))
    ax = ax or style.new_axes()
    depth, above, places = 0.0, "", []
    for row in found:
        if row.kind != above:
            text = f"core {row.core}, the slowest {row.kind}"
            style.header(ax, text, depth + HEADER_HEIGHT / 2)
            depth, above = depth + HEADER_HEIGHT, row.kind
        _draw(ax, row, depth + 1, elapsed_us(trace), highest[row.kind, row.buffer])
        places.append(depth + 0.6)
        depth += 1
    ax.set_xlim(0, longest_us(among) if among else elapsed_us(trace))
    ax.set_ylim(depth, 0)
    ax.set_yticks(places, [row.buffer for row in found])
    style.bare(ax)
    style.title(ax, f"{title_start(subject)}{_finding(found)}")
    label = "time since the cores started (us); light: at times; dashed: claimed; line: size"
    if any(len(lane.program) > MAX_OPS for lane in slowest_lanes(trace)):
        label += f"; of {MAX_OPS:,} micro-ops a core"
    ax.set_xlabel(
        label,
        size=style.TEXT_POINTS,
        color=style.INK,
        loc="left",
    )
    return ax


def _top(row: Row) -> int:
    """The top of the scale of *row* in bytes: its size, or its peak if that is far below."""
    peak = max(row.claimed_bytes, row.peak_bytes, 1)
    size = row.size_bytes or 0
    return size if peak <= size <= FAR_ABOVE * peak else peak


def _draw(ax: Axes, row: Row, base: float, end_us: float, top: int) -> None:
    """Draw *row* above *base*, in a lane whose height is *top* bytes."""
    edges = np.append(row.times_us, max(end_us, float(row.times_us[-1])))
    color = style.COLORS[BUFFERS[row.buffer]]  # type: ignore[index]
    edges, lowest, highest = seen(edges, row.live_bytes)
    for live, shade in ((highest, style.tint(color, 0.45)), (lowest, color)):
        heights = base - ROOM * live / top
        ax.stairs(heights, edges, baseline=base, fill=True, color=shade, zorder=2)
    if row.claimed_bytes:
        claimed = base - ROOM * row.claimed_bytes / top
        ax.hlines(claimed, 0, end_us, color=style.INK, lw=0.8, linestyle="--", zorder=3)
    ax.hlines(base, 0, end_us, color=style.GRID, lw=0.8, zorder=1)
    if row.size_bytes is not None and row.size_bytes <= top:
        size = base - ROOM * row.size_bytes / top
        ax.hlines(size, 0, end_us, color=style.INK, lw=0.8, zorder=3)
    label = f"peak {_bytes(row.peak_bytes)}"
    if row.claimed_bytes:
        label += f"\nclaimed {_bytes(row.claimed_bytes)}"
    if row.size_bytes:
        label += f"\nof {_bytes(row.size_bytes)}"
    ax.text(
        *(1.01, base - 0.4, label),
        transform=ax.get_yaxis_transform(),
        va="center",
        size=style.LABEL_POINTS,
        color=style.INK,
    )


def seen(edges: Times, live: Bytes) -> tuple[Times, Bytes, Bytes]:
    """Join changes into at most STEPS steps: their edges `(n + 1,)`, minima and maxima `(n,)`."""
    if len(live) <= STEPS:
        return edges, live, live
    places = np.searchsorted(edges[:-1], np.linspace(edges[0], edges[-1], STEPS + 1)[:-1])
    places = np.unique(np.minimum(places, len(live) - 1))
    lowest = np.minimum.reduceat(live, places)
    highest = np.maximum.reduceat(live, places)
    return np.append(edges[places], edges[-1]), lowest, highest


def _finding(found: list[Row]) -> str:
    sized = [row for row in found if row.size_bytes]
    if not sized:
        return "bytes that each buffer holds"
    row = max(sized, key=lambda row: row.peak_bytes / (row.size_bytes or 1))
    share = style.percent(row.peak_bytes / (row.size_bytes or 1))
    return f"{row.buffer} is the fullest buffer, {share} of its {_bytes(row.size_bytes or 0)}"


def _bytes(count: int) -> str:
    return f"{count / 1024:.4g} KiB" if count >= 1024 else f"{count} B"


def _height_inches(run: Timed) -> float | None:
    found = rows(run)
    return 0.7 * len(found) + 0.4 * len({row.kind for row in found}) or None


PICTURE = Picture(
    name="occupancy",
    heading="What buffers hold",
    height_inches=_height_inches,
    draw=occupancy,
    draw_among=lambda run, runs, ax: occupancy(run, among=runs, ax=ax),
)
