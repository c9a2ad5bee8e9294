"""Rooflines: for each memory, pipe and path, the attainable and the achieved performance.

.. code-block:: text

    allowed = min(peak operations per second, operations per byte x bytes per second)

There is one picture for each of the seven titles of the vendor's profiler (msopprof, roofline.cpp),
except titles without traffic or without operations. Its terms for what bounds a run are used too:
a share above 0.8 of what is allowed is "memory bound" or "compute bound"; otherwise, if no pipe is
busy for 0.8 of the time, "latency bound:pipeline caused"; otherwise the latency is caused by memory
or by computing, depending on what the busiest pipe does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from npusim.devices.schema import DeviceSpec
from npusim.reports import limits, style
from npusim.reports.limits import Limit
from npusim.reports.picture import Picture
from npusim.reports.subject import (
    Subject,
    Timed,
    busiest,
    device_of,
    title_start,
    trace_of,
)
from npusim.reports.traffic import Work, duration_s, work
from npusim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.axes import Axes

__all__ = ["PICTURES", "TITLES", "Row", "roofline", "rows", "slug", "verdict"]

TITLES = (
    "GM/L2",
    "Memory Unit(Cube)",
    "Memory Unit(Vector)",
    "Pipeline(Cube)",
    "Pipeline(Vector)",
    "Memory Transfer(Cube)",
    "Memory Transfer(Vector)",
)
BOUND = 0.8
CUBE_BUFFERS = ("l1", "l0a", "l0b", "l0c")


@dataclass(frozen=True, slots=True)
class Row:
    """One roof with its point."""

    title: str
    name: str
    """The name of the memory, the pipe or the path."""
    unit: str
    """`cube` or `vector`, whose peak is the flat part of the roof."""
    elements: str
    """The type of the peak: `float16`, or `16 bits` for the vector unit."""
    flat: Limit
    """The peak, in operations per second."""
    slanted: Limit
    """The bandwidth, in bytes per second."""
    intensity: float
    """The arithmetic intensity, in operations per byte."""
    ops_per_s: float
    """The achieved operations per second."""

    @property
    def peak_ops_per_s(self) -> float:
        """The limit of the flat part of the roof."""
        return self.flat.per_s

    @property
    def bytes_per_s(self) -> float:
        """The limit of the slanted part of the roof."""
        return self.slanted.per_s

    @property
    def allowed_ops_per_s(self) -> float:
        """The height of the roof above the point."""
        return min(self.peak_ops_per_s, self.intensity * self.bytes_per_s)

    @property
    def share(self) -> float:
        """The achieved share of what is allowed."""
        return self.ops_per_s / self.allowed_ops_per_s

    @property
    def is_memory(self) -> bool:
        """Whether the roof above the point is the slanted part."""
        return self.intensity * self.bytes_per_s < self.peak_ops_per_s


def rows(subject: Timed) -> list[Row]:
    """The rows of all titles that apply, in the order of TITLES.

    Raises ValueError for a run that was not timed or had nothing to do.
    """
    trace, device = trace_of(subject), subject.device
    done, seconds = work(trace), duration_s(trace)
    dtype = max(done.cube_dtypes, key=lambda name: done.cube_dtypes[name], default="float16")
    bits = max(16, min(done.vector_bits, 32))
    units = {
        "cube": (done.cube_ops, dtype, limits.cube(device, dtype)),
        "vector": (done.vector_ops, f"{bits} bits", limits.vector(device, bits)),
    }
    main = "cube" if done.cube_ops else "vector"
    paths = _Paths(device, trace)
    found = []
    for title, unit, name, nbytes, slanted in (
        *(("GM/L2", main, *entry) for entry in _far(trace, device)),
        *(("Memory Unit(Cube)", "cube", *entry) for entry in _cube_memories(paths, done)),
        *(("Memory Unit(Vector)", "vector", *entry) for entry in _vector_memories(paths, done)),
        *_pipelines(paths, done),
        *_transfers(paths, done),
    ):
        ops, elements, flat = units[unit]
        if ops and nbytes and slanted.per_s and flat.per_s:
            reached = ops / nbytes, ops / seconds
            found.append(Row(title, name, unit, elements, flat, slanted, *reached))
    return found


def slug(title: str) -> str:
    """A title in the form used in file names and URLs.

    >>> slug("Memory Unit(Cube)")
    'memory_unit_cube'
    """
    words = "".join(letter if letter.isalnum() else "_" for letter in title.lower())
    return words.strip("_")


def verdict(subject: Subject) -> str:
    """What bounds the run, in the vendor's terms; empty for a trace without a chip."""
    device = device_of(subject)
    if device is None or isinstance(subject, Trace):
        return ""
    trace = trace_of(subject)
    highest = max(rows(subject), key=lambda row: row.share, default=None)
    if highest is not None and highest.share > BOUND:
        return "memory bound" if highest.is_memory else "compute bound"
    pipe, share = busiest(trace)
    if share < BOUND:
        return "latency bound:pipeline caused"
    return f"latency bound:{'memory' if pipe.startswith('mte') else 'compute'} caused"


class _Paths:
    """What the cores of a chip can move on each path, in a run.

    Bytes of global memory use the path from or to the L2 if they go through it; which of them do is
    known only for whole cores.
    """

    def __init__(self, device: DeviceSpec, trace: Trace) -> None:
        self.device = device
        self._by_l2 = {
            "read": trace.l2_bytes > trace.l2_written_bytes,
            "write": trace.l2_written_bytes > 0,
        }

    def limit(self, way: str) -> Limit:
        """The limit of *way*, named as in a device file, in bytes per second."""
        ends = way.split("_to_")
        by_l2 = "gm" in ends and self._by_l2["read" if ends[0] == "gm" else "write"]
        return limits.path(self.device, (way, way.replace("gm", "l2")) if by_l2 else (way,))

    def widest(self, ways: Iterable[str]) -> Limit:
        """The same for the fastest of *ways*."""
        return max(map(self.limit, ways), key=lambda limit: limit.per_s, default=Limit(()))


Entry = tuple[str, int, Limit]
"""Name, bytes moved, and the limit in bytes per second."""


def _far(trace: Trace, device: DeviceSpec) -> list[Entry]:
    """Global memory and the L2: each link with its bytes and the limit of the device file."""
    gm, l2 = device.gm, device.l2
    from_gm = limits.link("gm.read_bytes_per_s", gm.read_bytes_per_s)
    if gm.bus == "shared":
        far = [("GM", trace.gm_bytes, from_gm)]
    else:
        to_gm = limits.link("gm.write_bytes_per_s", gm.write_bytes_per_s)
        far = [
            ("GM read", trace.gm_read_bytes, from_gm),
            ("GM write", trace.gm_written_bytes, to_gm),
        ]
    return [
        *far,
        ("L2 read", trace.l2_bytes - trace.l2_written_bytes,
         limits.link("l2.read_bytes_per_s", l2.read_bytes_per_s)),
        ("L2 write", trace.l2_written_bytes,
         limits.link("l2.write_bytes_per_s", l2.write_bytes_per_s)),
    ]  # fmt: skip


def _cube_memories(paths: _Paths, done: Work) -> list[Entry]:
    found: dict[str, list[str]] = {}
    for way in CUBE_WAYS:
        for name, buffer in zip(("read", "write"), way.split("_to_"), strict=True):
            if buffer in CUBE_BUFFERS and way in done.path_bytes:
                found.setdefault(f"{buffer.upper()} {name}", []).append(way)
    return [
        (name, sum(done.path_bytes[way] for way in ways), paths.widest(ways))
        for name, ways in sorted(found.items())
    ]


CUBE_WAYS = (
    *("gm_to_l1", "ub_to_l1", "l1_to_l0a", "l1_to_l0b"),
    *("l0c_to_gm", "l0c_to_l1", "l0c_to_ub", "ub_to_l0c"),
)
VECTOR_WAYS = ("gm_to_ub", "ub_to_gm", "l0c_to_ub", "ub_to_l1", "ub_to_l0c")


def _vector_memories(paths: _Paths, done: Work) -> list[Entry]:
    # A repeat reads two operands and writes one.
    return [
        ("UB read by vector", done.vector_read_bytes, limits.vector_bytes(paths.device, 2)),
        ("UB written by vector", done.vector_written_bytes, limits.vector_bytes(paths.device, 1)),
        ("UB written by mte2", done.path_bytes.get("gm_to_ub", 0), paths.limit("gm_to_ub")),
        ("UB read by mte3", done.path_bytes.get("ub_to_gm", 0), paths.limit("ub_to_gm")),
    ]


def _pipelines(paths: _Paths, done: Work) -> list[tuple[str, str, str, int, Limit]]:
    found: list[tuple[str, str, str, int, Limit]] = []
    for unit, ways in (("cube", CUBE_WAYS), ("vector", VECTOR_WAYS)):
        for pipe in style.PIPES:
            own = dict.fromkeys(
                way
                for core in paths.device.cores.values()
                for way, facts in core.paths.items()
                if facts.pipe == pipe and way in ways
            )
            nbytes = sum(done.path_bytes.get(way, 0) for way in own)
            found.append((f"Pipeline({unit.title()})", unit, pipe, nbytes, paths.widest(own)))
    return found


def _transfers(paths: _Paths, done: Work) -> list[tuple[str, str, str, int, Limit]]:
    return [
        (f"Memory Transfer({unit.title()})", unit, way, done.path_bytes.get(way, 0),
         paths.limit(way))
        for unit, ways in (("cube", CUBE_WAYS), ("vector", VECTOR_WAYS))
        for way in ways
    ]  # fmt: skip


# ---- the picture ----

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222", "#999999")
"""Colours of Okabe and Ito."""


def roofline(
    subject: Timed,
    *,
    title: str = TITLES[0],
    runs: Sequence[Timed] = (),
    ax: Axes | None = None,
) -> Axes:
    """Draw the roofs of one *title* out of TITLES.

    The axes have room for the roofs and points of *runs* too, so that pictures can be compared.
    Raises ValueError for a title that does not apply to the run, and for a run without times.
    """
    found = [row for row in rows(subject) if row.title == title]
    if not found:
        names = dict.fromkeys(row.title for row in rows(subject))
        raise ValueError(
            f"reports: a roofline must have one of the titles {', '.join(names)}, not {title}; "
            f"choose one of them"
        )
    ax = ax or style.new_axes()
    held = [*found, *(row for run in runs for row in rows(run) if row.title == title)]
    low = min(min(row.intensity, row.peak_ops_per_s / row.bytes_per_s) for row in held) / 8
    high = max(max(row.intensity, row.peak_ops_per_s / row.bytes_per_s) for row in held) * 8
    highest = max(row.peak_ops_per_s for row in held)
    lowest = min(min(row.ops_per_s for row in held) / 4, highest / 100)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(low, high)
    ax.set_ylim(lowest / 1e12, highest * 3 / 1e12)
    for row, color in zip(found, COLORS, strict=False):
        _draw(ax, row, color, low, high)
    best = max(found, key=lambda row: row.share)
    style.title(
        ax,
        f"{title_start(subject)}{title}: {style.percent(best.share)} of what {best.name} allows, "
        f"{_ops_named(best.ops_per_s)}",
    )
    _frame(ax, found[0])
    return ax


def _draw(ax: Axes, row: Row, color: str, low: float, high: float) -> None:
    ridge = row.peak_ops_per_s / row.bytes_per_s
    heights = [min(row.peak_ops_per_s, x * row.bytes_per_s) / 1e12 for x in (low, ridge, high)]
    label = f"{row.name}  {style.rate_named(row.bytes_per_s)}, {style.percent(row.share)} reached"
    ax.plot([low, ridge, high], heights, color=color, linewidth=1.6, label=label, zorder=2)
    ax.vlines(
        *(row.intensity, row.ops_per_s / 1e12, row.allowed_ops_per_s / 1e12),
        color=color,
        linewidth=0.8,
        linestyle=":",
        zorder=2,
    )
    ax.plot(
        *([row.intensity], [row.ops_per_s / 1e12], "o"),
        color=color,
        markeredgecolor="white",
        markersize=9,
        zorder=4,
    )


def _frame(ax: Axes, row: Row) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(which="both", length=0, labelsize=style.TEXT_POINTS, labelcolor=style.INK)
    ax.grid(color=style.GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.annotate(
        f"{row.unit} peak {_ops_named(row.peak_ops_per_s)}",
        (0.995, row.peak_ops_per_s / 1e12),
        xycoords=ax.get_yaxis_transform(),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        size=style.LABEL_POINTS,
        color=style.INK,
    )
    ax.set_xlabel("operations a byte", size=style.TEXT_POINTS, color=style.INK, loc="left")
    ax.set_ylabel("TOPS", size=style.TEXT_POINTS, color=style.INK, loc="bottom")
    ax.legend(loc="best", frameon=False, fontsize=style.LABEL_POINTS, labelcolor=style.INK)


def _ops_named(ops_per_s: float) -> str:
    if ops_per_s >= 1e12:
        return f"{ops_per_s / 1e12:.3g} TOPS"
    return f"{ops_per_s / 1e9:.3g} GOPS"


# ---- the pictures that a report shows ----


def _picture(title: str) -> Picture:
    return Picture(
        name=f"roofline_{slug(title)}",
        heading=f"Roofline: {title}",
        height_inches=lambda run: HEIGHT_INCHES if _applies(run, title) else None,
        draw=partial(roofline, title=title),
        draw_among=lambda run, runs, ax: roofline(run, title=title, runs=runs, ax=ax),
    )


def _applies(run: Timed, title: str) -> bool:
    return any(row.title == title for row in rows(run))


HEIGHT_INCHES = 3.3
PICTURES = tuple(_picture(title) for title in TITLES)
