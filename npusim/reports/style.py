"""The style of pictures: a colour and a position for each pipe, names of cores, text sizes."""

from __future__ import annotations

import re
from functools import cache
from textwrap import wrap
from typing import TYPE_CHECKING

from npusim.data.text import printable
from npusim.devices.schema import Pipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

__all__ = [
    "COLORS",
    "GRID",
    "INK",
    "LABEL_POINTS",
    "MANY_COLORS",
    "PIPES",
    "TEXT_POINTS",
    "Look",
    "bare",
    "cores_named",
    "header",
    "legend_below",
    "look",
    "new_axes",
    "ops_named",
    "percent",
    "plain",
    "points",
    "rate_named",
    "seen_on",
    "size_named",
    "span_named",
    "time_named",
    "tint",
    "title",
]

# Okabe and Ito, "Color Universal Design" (2008): distinct for every kind of colour vision, and all
# light enough for black text.
COLORS: dict[Pipe, str] = {
    "scalar": "#999999",
    "mte2": "#56B4E9",
    "mte1": "#CC79A7",
    "cube": "#D55E00",
    "vector": "#E69F00",
    "fixpipe": "#F0E442",
    "mte3": "#009E73",
}

PIPES: tuple[Pipe, ...] = tuple(COLORS)
"""From top to bottom, in the order in which data pass through a core."""

# Paul Tol, "Colour Schemes" (SRON/EPS/TN/09-002, 2021), muted, then most of vibrant: distinct for
# every kind of colour vision, especially with different markers.
MANY_COLORS = (
    *("#332288", "#CC6677", "#117733", "#DDCC77", "#88CCEE", "#882255", "#44AA99", "#999933"),
    *("#AA4499", "#EE7733", "#0077BB", "#CC3311", "#222222", "#EE3377", "#999999", "#8B5A2B"),
)
MARKERS = "os^Dv<>PXphdH8"

Look = tuple[str, str]
"""A colour and a marker."""

INK = "#222222"
GRID = "#DDDDDD"
TITLE_POINTS = 12.0
TEXT_POINTS = 10.0
LABEL_POINTS = 8.0
LEGEND_POINTS = 19.0
"""The distance from the axis down to the legend, which is level with the axis label."""
LINE_POINTS = 15.0
ENTRY_POINTS = 40.0
"""The width of a legend entry without its text: its patch, and the space before the next."""
LEGEND_SHARE = 0.85
"""The share of the width of a figure for the axis label and the legend."""
LONG_TITLE = 94
"""Characters that fit above a picture of the usual width."""


MAX_RUNS = 4
"""The most runs of cores that a label lists; it only counts more."""


def look(place: int) -> Look:
    """The style of the item at index *place*, so that it differs from the others."""
    return MANY_COLORS[place % len(MANY_COLORS)], MARKERS[place % len(MARKERS)]


def new_axes() -> Axes:
    """Axes of a new figure without a window or global state; notebooks display it."""
    from matplotlib.figure import Figure

    from npusim.reports.axes import ShownAxes

    return Figure((10, 5), layout="constrained").add_subplot(axes_class=ShownAxes)


def tint(color: str, share: float = 0.35) -> str:
    """*color* mixed with white: *share* of *color*, the rest white.

    >>> tint("#000000", 0.5)
    '#808080'
    """
    parts = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(255 - share * (255 - part)):02x}" for part in parts)


def seen_on(color: str, paper: str) -> str:
    """*color*, made lighter or darker until it contrasts with *paper*, "#" and six digits each.

    Text needs a contrast of 4.5 (W3C, Web Content Accessibility Guidelines 2.2, 1.4.3).

    >>> seen_on("#332288", "#ffffff"), seen_on("#332288", "#191919")
    ('#332288', '#857ab8')
    """
    end = 0 if _luminance(paper) > MIDDLE else 255
    parts = [int(color[start : start + 2], 16) for start in (1, 3, 5)]
    for percent_mixed in range(0, 101, 5):
        mixed = [round(part + (end - part) * percent_mixed / 100) for part in parts]
        found = "#" + "".join(f"{part:02x}" for part in mixed)
        lighter, darker = sorted((_luminance(found), _luminance(paper)), reverse=True)
        if (lighter + 0.05) / (darker + 0.05) >= CONTRAST:
            break
    return found


CONTRAST = 4.5
MIDDLE = 0.18
"""The luminance above which black has more contrast than white."""


def _luminance(color: str) -> float:
    """Relative luminance, as the same guidelines define it."""
    shares = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def cores_named(cores: tuple[int, ...], kind: str) -> str:
    """Cores, in the form used in labels.

    >>> cores_named((0, 1, 2, 5), "aiv")
    'cores 0-2, 5 (aiv)'
    """
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:MAX_RUNS]]
    left = sum(len(run) for run in runs[MAX_RUNS:])
    more = f" and {left} more" if left else ""
    word = "core" if len(cores) == 1 else "cores"
    return f"{word} {', '.join(parts)}{more} ({kind})"


def percent(share: float) -> str:
    """A share as text, in whole percent.

    >>> percent(0.837), percent(0.002), percent(0.0)
    ('84 %', '< 1 %', '0 %')
    """
    return "< 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def time_named(us: float) -> str:
    """A time, in the form used in titles.

    >>> time_named(1.195), time_named(162.853)
    ('1.20 us', '162.9 us')
    """
    return f"{us:.2f} us" if us < 10 else f"{us:.1f} us"


def rate_named(bytes_per_s: float) -> str:
    """The bandwidth of a memory as text.

    >>> rate_named(1.6e12), rate_named(2.04e11)
    ('1.6 TB/s', '204 GB/s')
    """
    if bytes_per_s >= 1e12:
        return f"{bytes_per_s / 1e12:.4g} TB/s"
    return f"{bytes_per_s / 1e9:.4g} GB/s"


def ops_named(per_s: float, unit: str) -> str:
    """Operations per second as text, in *unit* with a suitable prefix.

    >>> ops_named(707.8e12, "OPS"), ops_named(2.35e5, "FLOPS"), ops_named(12.0, "OPS")
    ('707.8 TOPS', '235 kFLOPS', '12 OPS')
    """
    for power, prefix in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if per_s >= 10**power:
            return f"{per_s / 10**power:.4g} {prefix}{unit}"
    return f"{per_s:.4g} {unit}"


def span_named(us: float) -> str:
    """A time that may be long, as text.

    >>> span_named(0.5), span_named(162.853), span_named(15123.4), span_named(2.5e6)
    ('0.50 us', '162.9 us', '15.12 ms', '2.50 s')
    """
    if us < 1e3:
        return time_named(us)
    return f"{us / 1e3:.2f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


def size_named(nbytes: float) -> str:
    """A number of bytes as text.

    >>> size_named(0), size_named(1536), size_named(15.23e9)
    ('0 B', '1.54 kB', '15.2 GB')
    """
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if nbytes >= 10**power:
            return f"{nbytes / 10**power:.3g} {unit}"
    return f"{nbytes:.0f} B"


def bare(ax: Axes) -> None:
    """Leave only the bottom line of the frame, with light vertical lines behind the bars."""
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params("y", pad=8)
    ax.tick_params(length=0, labelsize=TEXT_POINTS, labelcolor=INK)
    ax.grid(axis="x", color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)


def plain(text: str) -> str:
    """*text* escaped, so that matplotlib does not read the text between dollar signs as a formula.

    The name of a chip or of a family of rows may contain any character.

    >>> plain("from $5 to $9")
    'from \\\\$5 to \\\\$9'
    """
    return printable(text).replace("$", r"\$")


def title(ax: Axes, text: str, longest: int = LONG_TITLE) -> None:
    """Write *text* at the left above the picture; a long text is wrapped after its first colon.

    No line has more than *longest* characters; longer ones break between clauses if possible.
    """
    if len(text) > longest:
        text = text.replace(": ", ":\n", 1)
    lines = [part for line in text.split("\n") for part in _wrapped(line, longest)]
    ax.set_title(plain("\n".join(lines)), loc="left", size=TITLE_POINTS, color=INK)


def _wrapped(line: str, longest: int) -> list[str]:
    """*line* in several lines, which end with a clause unless they would be too long.

    >>> _wrapped("busy for 9 us; next copies (in few words: slow)", 30)
    ['busy for 9 us; next copies', '(in few words: slow)']
    """
    first, *others = re.split(r"(?<=;) | (?=\()", line)
    found = [first]
    for clause in others:
        if len(found[-1]) + 1 + len(clause) <= longest:
            found[-1] += f" {clause}"
        else:
            found.append(clause)
    return [part for own in found for part in wrap(own, longest) or [""]]


@cache
def points(text: str, size: float) -> float:
    """The width in points of *text* in a font of *size* points."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), plain(text), size=size).get_extents().width)


def header(ax: Axes, text: str, y: float) -> None:
    """Write *text* at the left above a group of bars, centred vertically at *y*."""
    place = ax.get_yaxis_transform()
    ax.text(
        0, y, plain(text), transform=place, va="center", color=INK, size=TEXT_POINTS, weight="bold"
    )


def legend_below(ax: Axes, marks: Sequence[Artist], label: str) -> None:
    """Write *label* below the axis, and a legend of *marks* next to it, or below if too wide."""
    from matplotlib.transforms import ScaledTranslation

    ax.set_xlabel(label, size=TEXT_POINTS, color=INK, loc="left")
    figure = ax.get_figure(root=True)
    assert figure is not None
    entries = (points(str(mark.get_label()), TEXT_POINTS) + ENTRY_POINTS for mark in marks)
    wide = points(label, TEXT_POINTS) + sum(entries)
    beside = wide <= LEGEND_SHARE * 72 * figure.get_figwidth()
    # The same distance below the axis for every height of the picture.
    depth = LEGEND_POINTS + (0 if beside else LINE_POINTS)
    lower = ScaledTranslation(0, -depth / 72, figure.dpi_scale_trans)
    ax.legend(
        handles=marks,
        loc="upper right",
        bbox_to_anchor=(0.5, 0, 0.5, 0),
        bbox_transform=ax.transAxes + lower,
        ncols=len(marks),
        frameon=False,
        fontsize=TEXT_POINTS,
        labelcolor=INK,
        borderaxespad=0,
        handlelength=1.2,
    )
