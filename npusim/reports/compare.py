"""One operator across devices, and one operator over shapes: pictures of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npusim.reports import style
from npusim.reports.subject import Timed, named

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Device", "Size", "across", "device_rows", "scaling", "size_rows"]


@dataclass(frozen=True, slots=True)
class Device:
    """A run on one chip."""

    name: str
    launch_us: float
    cores_us: float
    """Microseconds of the slowest core."""

    @property
    def time_us(self) -> float:
        """The sum of both."""
        return self.launch_us + self.cores_us


@dataclass(frozen=True, slots=True)
class Size:
    """A run of one size."""

    size: float
    time_us: float
    launch_us: float


def device_rows(runs: Sequence[Timed]) -> list[Device]:
    """One row per run, the fastest first.

    Raises ValueError if there is no run, or one was not timed.
    """
    found = [Device(run.device.name, run.launch_us, _time(run) - run.launch_us) for run in runs]
    _check(found)
    return sorted(found, key=lambda row: (row.time_us, row.name))


def size_rows(runs: Sequence[Timed], sizes: Sequence[float]) -> list[Size]:
    """One row per run, the smallest first.

    Raises ValueError like `device_rows`, and if the numbers of *sizes* and *runs* differ.
    """
    if len(runs) != len(sizes):
        raise ValueError(
            f"reports: sizes must be as many as runs, {len(runs)}, not {len(sizes)}; give one each"
        )
    found = [
        Size(float(size), _time(run), run.launch_us) for run, size in zip(runs, sizes, strict=True)
    ]
    _check(found)
    return sorted(found, key=lambda row: row.size)


def _time(run: Timed) -> float:
    if run.time_us is None:
        raise ValueError(
            "reports: every run must have been timed, but one was not; run it with timing=True"
        )
    return run.time_us


def _check(found: Sequence[Device | Size]) -> None:
    if not found:
        raise ValueError("reports: one run at least must be given, not none; run the operator")


def across(runs: Sequence[Timed], *, ax: Axes | None = None) -> Axes:
    """Draw runs of one operator on several chips on *ax* or on a new figure."""
    found = device_rows(runs)
    ax = ax or style.new_axes()
    places = list(range(len(found)))
    launches, cores = [row.launch_us for row in found], [row.cores_us for row in found]
    ax.barh(places, launches, 0.64, color="#BBBBBB", label="launch and completion", zorder=2)
    bars = ax.barh(places, cores, 0.64, left=launches, color="#009E73", label="cores", zorder=2)
    ax.bar_label(
        bars,
        [style.time_named(row.time_us) for row in found],
        padding=6,
        size=style.TEXT_POINTS,
        color=style.INK,
    )
    ax.set_yticks(places, [style.plain(row.name) for row in found])
    ax.set_ylim(len(found) - 0.4, -0.6)
    ax.set_xlim(0, 1.12 * max(row.time_us for row in found))
    style.bare(ax)
    first, last = found[0], found[-1]
    finding = f"{style.time_named(first.time_us)} on {first.name}"
    if len(found) > 1:
        finding = f"{first.name} takes {style.time_named(first.time_us)}, {last.name} "
        finding += f"{last.time_us / first.time_us:.3g} times as long"
    style.title(ax, f"{runs[0].op}: {finding}")
    style.legend_below(ax, ax.get_legend_handles_labels()[0], "time (us)")
    return ax


def scaling(
    runs: Sequence[Timed], sizes: Sequence[float], *, unit: str = "elements", ax: Axes | None = None
) -> Axes:
    """Draw the time of runs of one operator over their *sizes* in *unit*, both logarithmic."""
    found = size_rows(runs, sizes)
    ax = ax or style.new_axes()
    across_sizes = np.array([row.size for row in found])
    times = np.array([row.time_us for row in found])
    launches = np.array([row.launch_us for row in found])
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ideal = times[-1] * across_sizes / across_sizes[-1]
    ax.plot(across_sizes, ideal, color="#999999", linewidth=1, linestyle="--", zorder=2,
            label="time in proportion to size, from the largest")  # fmt: skip
    ax.plot(across_sizes, launches, color="#E69F00", linewidth=1.6, zorder=2,
            label="launch and completion")  # fmt: skip
    ax.plot(across_sizes, times, "o-", color="#0072B2", linewidth=1.8, markersize=7,
            markeredgecolor="white", zorder=3, label="time")  # fmt: skip
    for size, time in zip(across_sizes, times, strict=True):
        ax.annotate(style.time_named(time), (size, time), xytext=(0, 9), ha="center",
                    textcoords="offset points", size=style.LABEL_POINTS)  # fmt: skip
    _frame(ax, float(min(launches.min(), times.min())), float(times.max()))
    grown = across_sizes[-1] / across_sizes[0]
    style.title(
        ax,
        f"{named(runs[0])}: {grown:,.0f} times the {unit} take "
        f"{times[-1] / times[0]:.3g} times the time",
    )
    ax.set_xlabel(style.plain(unit), size=style.TEXT_POINTS, color=style.INK, loc="left")
    ax.set_ylabel("time (us)", size=style.TEXT_POINTS, color=style.INK, loc="bottom")
    ax.legend(loc="upper left", frameon=False, fontsize=style.TEXT_POINTS, labelcolor=style.INK)
    return ax


def _frame(ax: Axes, low: float, high: float) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    ax.set_ylim(low / 2 or None, high * 3)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(which="both", length=0, labelsize=style.TEXT_POINTS, labelcolor=style.INK)
    ax.grid(color=style.GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _count(value)))


def _count(value: float) -> str:
    for power, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if value >= 1 << power:
            return f"{value / (1 << power):g} {unit}"
    return f"{value:g}"
