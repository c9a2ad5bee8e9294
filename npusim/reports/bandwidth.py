"""Bandwidth over time: what moved on each path between memories, of all cores together."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from npusim.devices.schema import DeviceSpec
from npusim.reports import style
from npusim.reports.picture import Picture
from npusim.reports.subject import Subject, Timed, device_of, elapsed_us, title_start, trace_of
from npusim.reports.traffic import duration_s, moved_far, path, path_bytes_per_s, series, work
from npusim.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["BINS", "PICTURE", "Row", "bandwidth", "rows"]

BINS = 200
"""Parts of the run, each of which has one height."""
FAR_ABOVE = 8
"""A limit so many times the peak is only written, so that the rest can be seen."""
ROOM = 0.74
"""Of a lane, which is 1 high, that the highest peak takes."""


@dataclass(frozen=True, eq=False)
class Row:
    """One path."""

    path: str
    pipe: str
    nbytes: int
    """All that moved."""
    bytes_per_s: NDArray[np.float64]
    """`(BINS,)`, each for one part of the run."""
    mean_bytes_per_s: float
    limit_bytes_per_s: float | None
    """What the chip can move there; None without a chip."""
    limit: str
    """Whose that is: of `GM` or `L2`, which share the bytes, or of the `ports` of all cores."""


def rows(subject: Subject) -> list[Row]:
    """The paths that carried something, those of global memory first, by bytes.

    Raises ValueError for a run that was not timed or had nothing to do.
    """
    trace, device = trace_of(subject), device_of(subject)
    pipes = {
        path(op): op.pipe for lane in trace.lanes for body in lane.program.bodies for op in body
    }
    found = []
    for way, nbytes in work(trace).path_bytes.items():
        limit, name = _limit(trace, device, way) if device else (None, "")
        heights = series(trace, trace.lanes, way, BINS)
        mean = nbytes / duration_s(trace)
        found.append(Row(way, pipes[way], nbytes, heights, mean, limit, name))
    return sorted(found, key=lambda row: ("gm" not in row.path, -row.nbytes, row.path))


def _limit(trace: Trace, device: DeviceSpec, way: str) -> tuple[float, str]:
    ports = path_bytes_per_s(device, way)
    if "gm" not in way.split("_to_"):
        return ports, "ports"
    moved = moved_far(trace, device)
    is_read = way.startswith("gm")
    limits = {}
    for name, memory in (("GM", device.gm), ("L2", device.l2)):
        share = moved.get(name, 0) / max(1, sum(moved.values()))
        both = memory.read_bytes_per_s if is_read else memory.write_bytes_per_s
        ports = path_bytes_per_s(device, way.replace("gm", name.lower())) or ports
        limits[name] = both / share if share else inf
        limits[f"{name} ports"] = ports / share if share else inf
    name = min(limits, key=lambda name: limits[name])
    return limits[name], name


def bandwidth(subject: Subject, *, ax: Axes | None = None) -> Axes:
    """Draw *subject*, a trace or a run, on *ax* or on a figure of its own.

    Raises ValueError for a run that was not timed or had nothing to do.
    """
    trace = trace_of(subject)
    found = rows(subject)
    ax = ax or style.new_axes()
    edges = np.linspace(0, elapsed_us(trace), BINS + 1)
    for place, row in enumerate(found):
        top = float(row.bytes_per_s.max())
        is_seen = row.limit_bytes_per_s is not None and row.limit_bytes_per_s <= FAR_ABOVE * top
        if is_seen:
            top = max(top, row.limit_bytes_per_s or 0.0)
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
    ax.set_xlim(0, edges[-1])
    ax.set_ylim(len(found), 0)
    ax.set_yticks([place + 0.6 for place in range(len(found))], [row.path for row in found])
    style.bare(ax)
    style.title(ax, f"{title_start(subject)}{_finding(found)}")
    ax.set_xlabel(
        "time since the cores started (us); dashed: what the chip can move there",
        size=style.TEXT_POINTS,
        color=style.INK,
        loc="left",
    )
    return ax


def _annotate(ax: Axes, row: Row, place: int) -> None:
    """Peak and limit, right of the lane."""
    label = f"peak {_rate(float(row.bytes_per_s.max()))}\nmean {_rate(row.mean_bytes_per_s)}"
    if row.limit_bytes_per_s:
        label += f"\n{row.limit} {_rate(row.limit_bytes_per_s)}"
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
    sentence = f"{row.path} carries {_rate(row.mean_bytes_per_s)} on average"
    if not row.limit_bytes_per_s:
        return sentence
    share = style.percent(row.mean_bytes_per_s / row.limit_bytes_per_s)
    return f"{sentence}, {share} of what {row.limit} can"


def _rate(bytes_per_s: float) -> str:
    if bytes_per_s >= 1e12:
        return f"{bytes_per_s / 1e12:.3g} TB/s"
    return f"{bytes_per_s / 1e9:.3g} GB/s"


def _height_inches(run: Timed) -> float | None:
    return 0.7 * len(rows(run)) or None


PICTURE = Picture(
    name="bandwidth",
    heading="Bandwidth over time",
    height_inches=_height_inches,
    draw=bandwidth,
)
