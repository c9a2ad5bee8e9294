"""Pictures of errors: simulated against measured times, and how errors spread.

The data are computed first, then drawn on given axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from npusim.reports import style
from npusim.reports.model.works import work_of
from npusim.validation.errors import SHORT_US
from npusim.validation.measure import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "BANDS",
    "PICTURES",
    "errors",
    "looks",
    "predicted_against_measured",
    "square_inches",
    "write",
]

PICTURES = ("predicted_against_measured.png", "errors.png")
"""The files that :func:`write` creates."""
BANDS = {0.25: "#F1F1F1", 0.10: "#DFDFDF"}
"""Error -> the shade of its band, the wider one first."""

LEAST_INCHES, WIDE_INCHES = 7.0, 5.0
"""The least height of a figure with square axes, and of one with wide axes."""
LINE_INCHES, LEGEND_INCHES = 0.22, 3.5
"""The height of a line of the legend, and the width of the legend and the axis labels."""
EDGE = 0.6
"""The limit of the histogram: larger errors are in its last bins."""
BIN = 0.05


MOST_FAMILIES = 20
"""With more families, those of one kind of work share a colour, since no more can be told apart."""


def looks(results: Sequence[Result]) -> dict[str, style.Look]:
    """Name in the legend -> its style, for rows with a time, in the order of first rows."""
    timed = [result for result in results if result.time_us is not None]
    names = dict.fromkeys(_names(timed))
    return {name: style.look(place) for place, name in enumerate(names)}


def _names(found: Sequence[Result]) -> list[str]:
    """The family of each row, or the kind of work if there are too many families."""
    families = [result.row.family for result in found]
    if len(set(families)) <= MOST_FAMILIES:
        return families
    return [work_of(result.row.op) for result in found]


def write(results: Sequence[Result], folder: Path) -> list[str]:
    """Write both pictures into *folder*; returns the names of the files."""
    from matplotlib.figure import Figure

    width, height = square_inches(results)
    wide = width, max(WIDE_INCHES, _legend_inches(results))
    drawings = (predicted_against_measured, (width, height)), (errors, wide)
    for name, (picture, inches) in zip(PICTURES, drawings, strict=True):
        figure = Figure(inches, layout="constrained")
        picture(results, ax=figure.subplots())
        figure.savefig(folder / name, dpi=100)
    return list(PICTURES)


def square_inches(results: Sequence[Result]) -> tuple[float, float]:
    """Width and height of a figure with square axes and a legend of all names."""
    height = max(LEAST_INCHES, _legend_inches(results))
    return height + LEGEND_INCHES, height


def _legend_inches(results: Sequence[Result]) -> float:
    """The height of a figure with room for the legend: names, bands, and margins."""
    return (len(looks(results)) + len(BANDS) + 1) * LINE_INCHES


def predicted_against_measured(results: Sequence[Result], *, ax: Axes | None = None) -> Axes:
    """Draw each row as a point, on two equal logarithmic axes.

    Raises ValueError if no row has a simulated time.
    """
    found = _timed(results)
    ax = ax or style.new_axes()
    measured = np.array([result.row.latency_us for result in found])
    simulated = np.array([result.time_us for result in found], np.float64)
    names = np.array(_names(found))
    low = min(measured.min(), simulated.min()) / 1.4
    high = max(measured.max(), simulated.max()) * 1.4
    _bands(ax, np.array([low, high]))
    for name, (color, marker) in looks(found).items():
        own = names == name
        ax.scatter(
            *(measured[own], simulated[own], 42),
            color=color,
            marker=marker,
            edgecolor="white",
            linewidth=0.6,
            label=style.plain(f"{name}  {own.sum()}"),
            zorder=3,
        )
    _logarithmic(ax, low, high)
    _bare_axes(ax)
    ax.set_xlabel("measured, us", size=style.TEXT_POINTS, color=style.INK, loc="left")
    ax.set_ylabel("simulated, us", size=style.TEXT_POINTS, color=style.INK, loc="bottom")
    _title(ax, _summary(found))
    _legend(ax)
    return ax


def errors(results: Sequence[Result], *, ax: Axes | None = None) -> Axes:
    """Draw a histogram of the errors of rows from SHORT_US on, stacked by family or kind of work.

    Raises ValueError if no row has a simulated time.
    """
    timed = _timed(results)
    look, of_all = looks(timed), _names(timed)
    rows = [row for row in zip(timed, of_all, strict=True) if row[0].row.latency_us >= SHORT_US]
    found = [result for result, _ in rows]
    ax = ax or style.new_axes()
    edges = np.linspace(-EDGE, EDGE, round(2 * EDGE / BIN) + 1)
    for band, color in BANDS.items():
        ax.axvspan(-100 * band, 100 * band, color=color, lw=0, label=_named(band), zorder=0)
    under = np.zeros(edges.size - 1)
    for name, (color, _) in look.items():
        own = [result.error or 0.0 for result, its_name in rows if its_name == name]
        if not own:
            continue
        # Clip to half a bin inside, since the last edges belong to no bin.
        kept = np.clip(own, -EDGE + BIN / 2, EDGE - BIN / 2)
        counts, _ = np.histogram(kept, edges)
        ax.bar(
            *(100 * edges[:-1], counts, 100 * BIN),
            bottom=under,
            align="edge",
            color=color,
            edgecolor="white",
            linewidth=0.6,
            label=style.plain(f"{name}  {len(own)}"),
            zorder=2,
        )
        under += counts
    ax.axvline(0, color=style.INK, linewidth=0.8, zorder=3)
    _spread(ax, float(under.max()))
    _bare_axes(ax)
    ax.grid(visible=False, axis="x")
    ax.set_xlabel(
        f"simulated less measured, % of measured; rows from {SHORT_US:g} us on",
        size=style.TEXT_POINTS,
        color=style.INK,
        loc="left",
    )
    ax.set_ylabel("rows", size=style.TEXT_POINTS, color=style.INK, loc="bottom")
    _title(ax, _summary(found))
    _legend(ax)
    return ax


def _timed(results: Sequence[Result]) -> list[Result]:
    found = [result for result in results if result.time_us is not None]
    if not found:
        raise ValueError(
            "validation: a row at least must have a simulated time, not none; "
            "choose families that npusim models"
        )
    return found


def _summary(found: Sequence[Result]) -> str:
    """The share of rows within each band."""
    sizes = np.array([abs(result.error or 0.0) for result in found])
    if not sizes.size:
        return "no rows"
    parts = (
        f"{style.percent(float((sizes <= band).mean()))} within {_named(band)}"
        for band in sorted(BANDS)
    )
    return f"{sizes.size} kernels: {', '.join(parts)}"


def _named(band: float) -> str:
    return f"±{style.percent(band)}"


def _bands(ax: Axes, ends: NDArray[np.float64]) -> None:
    for band, color in BANDS.items():
        low, high = ends * (1 - band), ends * (1 + band)
        ax.fill_between(ends, low, high, color=color, lw=0, label=_named(band), zorder=1)
    ax.plot(ends, ends, color=style.INK, linewidth=0.8, zorder=2)


def _spread(ax: Axes, max_count: float) -> None:
    """The axes of the histogram, whose first and last bins include everything beyond."""
    from matplotlib.ticker import MaxNLocator

    ends = round(100 * EDGE)
    ax.set_xlim(-ends - 1, ends + 1)
    ax.set_ylim(0, 1.05 * max(max_count, 1))
    inner = range(20 - ends, ends, 20)
    middles = ends - 50 * BIN
    ax.set_xticks(
        [-middles, *inner, middles],
        [f"< {round(100 * BIN) - ends}", *(f"{at:+d}" if at else "0" for at in inner),
         f"> +{ends - round(100 * BIN)}"],
    )  # fmt: skip
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))


def _logarithmic(ax: Axes, low: float, high: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_aspect("equal")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator())
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda us, _: f"{us:g}"))


def _bare_axes(ax: Axes) -> None:
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(which="both", length=0, labelsize=style.TEXT_POINTS, labelcolor=style.INK)
    ax.grid(color=style.GRID, linewidth=0.8)
    ax.set_axisbelow(True)


def _title(ax: Axes, text: str) -> None:
    ax.set_title(style.plain(text), loc="left", size=style.TITLE_POINTS, color=style.INK)


def _legend(ax: Axes) -> None:
    """Write a legend of families, then bands, to the right of the picture."""
    marks, texts = ax.get_legend_handles_labels()
    names = [_named(band) for band in BANDS]
    order = sorted(range(len(texts)), key=lambda place: texts[place] in names)
    ax.legend(
        handles=[marks[place] for place in order],
        labels=[texts[place] for place in order],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        fontsize=style.TEXT_POINTS,
        labelcolor=style.INK,
        handletextpad=0.6,
        handlelength=1.2,
    )
