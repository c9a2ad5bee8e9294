"""The picture of a sweep: times over its axis, a line for each chip and template, or bars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from npusim.reports import style
from npusim.sweeps.crossovers import Line, axis_of, crossovers, label_of, lines
from npusim.sweeps.rows import VENDOR, Row, Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = ["PICTURE", "draw", "figure_of", "write"]

PICTURE = "sweep.png"
WIDTH_INCHES, LEAST_INCHES, LINE_INCHES = 10.0, 5.0, 0.24
"""The width, the height with lines, and the height of an entry of the legend, or of a bar."""
WIDE = 12
"""If the ratio of the largest to the smallest number is at least this, an axis is logarithmic."""
MOST_TICKS = 10
LONG_US = 1e4
"""From this time on, milliseconds are easier to read."""


def write(sweep: Rows, folder: Path) -> str:
    """Write the picture into *folder*; returns the name of the file."""
    figure_of(sweep).savefig(folder / PICTURE, dpi=100)
    return PICTURE


def figure_of(sweep: Rows) -> Figure:
    """The picture on a new figure of the required height."""
    from matplotlib.figure import Figure

    if axis_of(sweep):
        inches = max(LEAST_INCHES, 1.5 + LINE_INCHES * len(lines(sweep)))
    else:
        inches = 1.0 + LINE_INCHES * len(_timed(sweep))
    figure = Figure((WIDTH_INCHES, inches), layout="constrained")
    draw(sweep, ax=figure.subplots())
    return figure


def draw(sweep: Rows, *, ax: Axes | None = None) -> Axes:
    """Draw the times of *sweep* on *ax*, or on a new figure.

    The axis is the variable with the most numbers; there is a line for each combination of the
    others, and a ring where another line becomes the fastest. Without such a variable there is one
    bar per cell. Raises ValueError if every cell was refused.
    """
    if not _timed(sweep):
        raise ValueError(
            f"sweep: a cell at least must have a time to be drawn, but all {len(sweep.rows)} were "
            f"refused; see their messages"
        )
    ax = ax or style.new_axes()
    axis = axis_of(sweep)
    if axis is None:
        _bars(ax, sweep)
    else:
        _lines(ax, sweep, axis)
    style.title(ax, _title(sweep))
    return ax


def _timed(sweep: Rows) -> list[Row]:
    return [row for row in sweep.rows if row.outcome.time_us is not None]


def _title(sweep: Rows) -> str:
    same = {name: of for name, of in sweep.rows[0].coordinates.items() if name not in sweep.varied}
    if same.get("template") == VENDOR:
        del same["template"]
    parts = (
        str(value) if name in ("device", "template") else f"{name} = {value}"
        for name, value in same.items()
    )
    return f"{sweep.op}: {', '.join(parts)}" if same else sweep.op


# ---- lines ----


def _lines(ax: Axes, sweep: Rows, axis: str) -> None:
    every = lines(sweep)
    for place, line in enumerate(every):
        _line(ax, line, place, has_label=len(every) > 1)
    marked, name = crossovers(sweep), label_of(sweep, axis)
    values = sorted({value for line in every for value in line.times_us})
    for at in sorted({each.at for each in marked}):
        # Along the bottom, where no line is; in the right half it extends to the left, to fit.
        is_right = values.index(at) > len(values) / 2
        ax.axvline(at, color=style.INK, linewidth=0.8, linestyle=":", zorder=1)
        ax.annotate(
            *(style.plain(f"{name} = {at:g}"), (at, 0)),
            xycoords=ax.get_xaxis_transform(),
            xytext=(-6 if is_right else 6, 5),
            ha="right" if is_right else "left",
            textcoords="offset points",
            color=style.INK,
            size=style.LABEL_POINTS,
            zorder=6,
        )
    for each in marked:
        ax.scatter(
            *(each.at, each.time_us, 110),
            *("none",),
            edgecolor=style.INK,
            linewidth=1.2,
            zorder=5,
        )
    times = [time for line in every for time in line.times_us.values()]
    _scale_across(ax, values)
    _scale_up(ax, times)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(which="both", length=0, labelsize=style.TEXT_POINTS, labelcolor=style.INK)
    ax.grid(color=style.GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set_xlabel(style.plain(name), size=style.TEXT_POINTS, color=style.INK, loc="left")
    ax.set_ylabel(
        f"time, {_numbered(ax.yaxis, max(times))}",
        size=style.TEXT_POINTS,
        color=style.INK,
        loc="bottom",
    )
    if len(every) > 1:
        _legend(ax, has_rings=bool(marked))


def _line(ax: Axes, line: Line, place: int, *, has_label: bool) -> None:
    color, marker = style.look(place)
    is_choice = line.coordinates.get("template") == VENDOR
    ax.plot(
        *(list(line.times_us), list(line.times_us.values())),
        color=style.tint(color) if is_choice else color,
        # The vendor's choice is drawn behind the line of the template that it chose.
        linewidth=7 if is_choice else 1.6,
        marker=None if is_choice and len(line.times_us) > 1 else marker,
        markersize=0 if len(line.times_us) > 40 else 5,
        markeredgecolor="white",
        markeredgewidth=0.5,
        label=style.plain(line.label) if has_label else None,
        solid_capstyle="round",
        zorder=2 if is_choice else 3,
    )


def _scale_across(ax: Axes, values: list[int | float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    if values[0] <= 0 or values[-1] / values[0] < WIDE:
        return
    ax.set_xscale("log", base=2)
    if len(values) <= MOST_TICKS:
        ax.xaxis.set_major_locator(FixedLocator(values))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _scale_up(ax: Axes, times: list[float]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    if min(times) <= 0 or max(times) / min(times) < WIDE:
        ax.set_ylim(0, 1.08 * max(max(times), 1e-9))
        return
    ax.set_yscale("log")
    axis: Axis = ax.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())


def _numbered(axis: Axis, longest_us: float) -> str:
    """Write the numbers of *axis*, and return the unit: milliseconds if the axis is long."""
    from matplotlib.ticker import FuncFormatter

    unit, us = ("ms", 1e3) if longest_us >= LONG_US else ("us", 1.0)
    axis.set_major_formatter(FuncFormatter(lambda time_us, _: f"{time_us / us:g}"))
    return unit


def _legend(ax: Axes, *, has_rings: bool) -> None:
    """Write a legend of lines and rings to the right of the picture."""
    from matplotlib.lines import Line2D

    marks, _ = ax.get_legend_handles_labels()
    if has_rings:
        ring = Line2D(
            *([], []),
            linestyle=":",
            color=style.INK,
            marker="o",
            markersize=9,
            markerfacecolor="none",
            label="crossover",
        )
        marks = [*marks, ring]
    ax.legend(
        handles=marks,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        fontsize=style.TEXT_POINTS,
        labelcolor=style.INK,
        handletextpad=0.6,
        handlelength=1.8,
    )


# ---- bars ----


def _bars(ax: Axes, sweep: Rows) -> None:
    timed = _timed(sweep)
    labels = [
        Line({name: of for name, of in row.coordinates.items() if name in sweep.varied}, {}).label
        for row in timed
    ]
    times = [row.outcome.time_us or 0.0 for row in timed]
    places = range(len(timed))
    ax.barh(places, times, color=style.MANY_COLORS[0], height=0.6)
    for place, time_us in zip(places, times, strict=True):
        ax.text(
            *(time_us, place, f" {style.span_named(time_us)}"),
            va="center",
            color=style.INK,
            size=style.LABEL_POINTS,
        )
    ax.set_yticks(places, [style.plain(label) for label in labels])
    ax.invert_yaxis()
    ax.set_xlim(0, 1.15 * max(max(times), 1e-9))
    style.bare(ax)
    ax.set_xlabel(
        f"time, {_numbered(ax.xaxis, max(times))}",
        size=style.TEXT_POINTS,
        color=style.INK,
        loc="left",
    )
