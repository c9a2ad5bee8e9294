"""Bandwidth over time: bytes per second on each path between memories, summed over all cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from npusim.devices.schema import DeviceSpec
from npusim.reports import limits, style
from npusim.reports.picture import Picture
from npusim.reports.subject import (
    Subject,
    Timed,
    device_of,
    elapsed_us,
    longest_us,
    remembered,
    title_start,
    trace_of,
)
from npusim.reports.traffic import duration_s, fetched, path, series, work
from npusim.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["BINS", "PICTURE", "Row", "bandwidth", "rows"]

BINS = 200
"""Bins of the time axis; the curve has one height per bin."""
FAR = "from GM"
FAR_ABOVE = 8
"""A limit this many times the peak is written but not drawn, so that the curve stays visible."""
ROOM = 0.74
"""The height of the highest peak in a lane, which is 1 high."""


@dataclass(frozen=True, eq=False)
class Row:
    """One path, or the reads from global memory for all paths."""

    path: str
    pipe: str
    nbytes: int
    """All bytes that moved."""
    bytes_per_s: NDArray[np.float64]
    """`(BINS,)`, one for each bin of the run."""
    mean_bytes_per_s: float
    limit_bytes_per_s: float | None
    """The limit of the chip on this path; None without a chip."""
    limit: str
    """Where the limit comes from: the link of `GM` or `L2`, or the `ports` of all cores."""


@remembered
def rows(subject: Subject) -> list[Row]:
    """The reads from global memory, then the paths that carried data, most bytes first.

    Raises ValueError for a run that was not timed or had nothing to do.
    """
    trace, device = trace_of(subject), device_of(subject)
    pipes = {
        path(op): op.pipe for lane in trace.lanes for body in lane.program.bodies for op in body
    }
    found = _far(trace, device)
    for way, nbytes in work(trace).path_bytes.items():
        limit, name = _limit(trace, device, way) if device else (None, "")
        heights = series(trace, trace.lanes, way, BINS, limit)
        mean = nbytes / duration_s(trace)
        found.append(Row(way, pipes[way], nbytes, heights, mean, limit, name))
    return sorted(
        found, key=lambda row: (row.path != FAR, "gm" not in row.path, -row.nbytes, row.path)
    )


def _far(trace: Trace, device: DeviceSpec | None) -> list[Row]:
    """Reads from global memory, most of them into the L2: whole lines, each counted once."""
    limit = device.gm.read_bytes_per_s if device else None
    heights = fetched(trace, BINS, limit)
    if not heights.any():
        return []
    mean = trace.gm_read_bytes / duration_s(trace)
    return [Row(FAR, "mte2", trace.gm_read_bytes, heights, mean, limit, "GM" if device else "")]


def _limit(trace: Trace, device: DeviceSpec, way: str) -> tuple[float, str]:
    """The limit of the bytes on *way*: a link of the device file, or the ports of all cores."""
    if "gm" not in way.split("_to_"):
        return limits.path(device, (way,)).per_s, "ports"
    is_read = way.startswith("gm")
    # Everything goes through the L2, except reads that bypass it.
    by_l2 = not is_read or trace.l2_bytes > trace.l2_written_bytes
    name, memory = ("L2", device.l2) if by_l2 else ("GM", device.gm)
    link = memory.read_bytes_per_s if is_read else memory.write_bytes_per_s
    ports = limits.path(device, (way.replace("gm", name.lower()),)).per_s
    return (ports, "ports") if 0 < ports < link else (link, name)


def bandwidth(subject: Subject, *, among: Sequence[Timed] = (), ax: Axes | None = None) -> Axes:
    """Draw *subject*, a trace or a run, on *ax* or on a new figure.

    The time axis ends with the run, or with the longest of *among*; a path has one scale in the
    pictures of all of *among*. Raises ValueError for a run that was not timed or had nothing to do.
    """
    trace = trace_of(subject)
    found = rows(subject)
    highest: dict[str, float] = {}
    for row in (*found, *(row for run in among for row in rows(run))):
        highest[row.path] = max(highest.get(row.path, 0.0), _top(row))
    ax = ax or style.new_axes()
    edges = np.linspace(0, elapsed_us(trace), BINS + 1)
    for place, row in enumerate(found):
        top = highest[row.path]
        is_seen = row.limit_bytes_per_s is not None and row.limit_bytes_per_s <= top
        base = place + 1.0
        ax.stairs(
            *(base - ROOM * row.bytes_per_s / top, edges),
            baseline=base,
            fill=True,
            color=style.COLORS[row.pipe],  # type: ignore[index]
            zorder=2,
        )
        ax.hlines(base, *edges[[0, -1]], color=style.GRID, lw=0.8, zorder=1)
        if is_seen and row.limit_bytes_per_s:
            height = base - ROOM * row.limit_bytes_per_s / top
            ax.hlines(height, *edges[[0, -1]], color=style.INK, lw=0.8, linestyle="--", zorder=3)
        _annotate(ax, row, place)
    ax.set_xlim(0, longest_us(among) if among else edges[-1])
    ax.set_ylim(len(found), 0)
    ax.set_yticks(
        [place + 0.6 for place in range(len(found))], [style.plain(row.path) for row in found]
    )
    style.bare(ax)
    style.title(ax, f"{title_start(subject)}{_finding(found)}")
    ax.set_xlabel(
        "time since the cores started (us); dashed: what the chip can move there",
        size=style.TEXT_POINTS,
        color=style.INK,
        loc="left",
    )
    return ax


def _top(row: Row) -> float:
    """The top of the scale of *row*: its limit, or its peak if that is far below the limit."""
    peak = float(row.bytes_per_s.max())
    limit = row.limit_bytes_per_s or 0.0
    return limit if peak <= limit <= FAR_ABOVE * peak else peak


def _annotate(ax: Axes, row: Row, place: int) -> None:
    """Write peak and limit to the right of the lane."""
    peak = style.rate_named(float(row.bytes_per_s.max()))
    label = f"peak {peak}\nmean {style.rate_named(row.mean_bytes_per_s)}"
    if row.limit_bytes_per_s:
        label += f"\n{row.limit} {style.rate_named(row.limit_bytes_per_s)}"
    ax.text(
        *(1.01, place + 0.6, label),
        transform=ax.get_yaxis_transform(),
        va="center",
        size=style.LABEL_POINTS,
        color=style.INK,
    )


def _finding(found: list[Row]) -> str:
    if not found:
        return "nothing moved between memories"
    row = found[0]
    sentence = f"{row.path} carries {style.rate_named(row.mean_bytes_per_s)} on average"
    if not row.limit_bytes_per_s:
        return sentence
    share = style.percent(row.mean_bytes_per_s / row.limit_bytes_per_s)
    return f"{sentence}, {share} of what {row.limit} can"


def _height_inches(run: Timed) -> float | None:
    return 0.7 * len(rows(run)) or None


PICTURE = Picture(
    name="bandwidth",
    heading="Bandwidth over time",
    height_inches=_height_inches,
    draw=bandwidth,
    draw_among=lambda run, runs, ax: bandwidth(run, among=runs, ax=ax),
)
