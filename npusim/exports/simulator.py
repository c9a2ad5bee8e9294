"""The traces of `msprof op simulator`, as MindStudio Insight reads them.

One file has all cores, a lane for each pipe, and a micro-op lasts until its pipe is free again, so
that nothing overlaps; when its result is there stands beside it. Each core also has a file of its
own, where micro-ops last until their results are there, on as many lanes as that takes.

Sources: Ascend/msopprof, timeline_visualizer (what is written), and Ascend/msinsight, EventParser
and JsonFileProcess (what is read: X, B and E of flags, s, t, M and C). Arrows have whole numbers,
where the vendor's have a name before them, which Perfetto drops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from shutil import copyfile

from npusim.exports.arrows import Arrow, Arrows
from npusim.exports.listing import Event, Listing
from npusim.exports.names import COLORS, LANES, PROCESSES, Place, lane_of
from npusim.exports.perfetto import Tracks
from npusim.exports.throughput import throughput
from npusim.exports.writing import Clock, TraceFile, quoted
from npusim.isa import SetFlag, WaitFlag
from npusim.trace import LaneTrace, Trace

__all__ = ["write_all", "write_each"]

Report = Callable[[int], None]
ALL_CORES, ONE_CORE = 2, 1
"""Versions of the schema."""


def _head(version: int) -> dict[str, str | int]:
    return {"displayTimeUnit": "ns", "profilingType": "op", "schemaVersion": version}


class FlagWords:
    """What flags are called: events, before arch 2201."""

    def __init__(self, arch: str) -> None:
        is_old = arch == "2002"
        self.set = "set_event" if is_old else "SET_FLAG"
        self.wait = "wait_event" if is_old else "WAIT_FLAG"


def write_all(
    trace: Trace,
    listing: Listing,
    places: dict[int, Place],
    path: Path,
    words: FlagWords,
    report: Report,
) -> None:
    """Write the trace of all cores; *report* hears how many micro-ops were written."""
    clock, arrows = Clock(trace.clock_hz), Arrows(trace, listing, places)
    with TraceFile(path, _head(ALL_CORES)) as out:
        for lane in sorted(trace.lanes, key=lambda lane: lane.cores[0]):
            used = {lane_of(line) for call in lane.program.calls for line in listing.of(call)}
            for core in lane.cores:
                place = places[core]
                out.name("process_sort_index", place.name, "NA", place.order)
                for name in sorted(used, key=LANES.__getitem__):
                    out.name("thread_sort_index", place.name, name, LANES[name])
        for name, at, megabytes_per_s in throughput(trace, listing, clock):
            out.counter("MTE Throughput", name, at, "throughput(MB/s)", megabytes_per_s)
        for lane in sorted(trace.lanes, key=lambda lane: lane.cores[0]):
            for core in lane.cores:
                name = places[core].name
                for number, event in enumerate(listing.events(lane)):
                    where = f'"pid":"{name}","tid":"{lane_of(event.line)}"'
                    times = clock.ns(event.start), clock.ns(event.free)
                    flag = f"{name}_{number}"
                    feet = arrows.of(core, event.line.op)
                    _event(out, event, listing, times, where, words, flag, feet)
                report(len(lane.program))


def write_each(
    trace: Trace,
    listing: Listing,
    places: dict[int, Place],
    folder: Path,
    words: FlagWords,
    report: Report,
) -> None:
    """Write the trace of each core into the folder of its name; those alike are written once."""
    clock = Clock(trace.clock_hz)
    for lane in trace.lanes:
        paths = [folder / places[core].name / "trace.json" for core in lane.cores]
        for path in paths:
            path.parent.mkdir()
        _write_one(lane, listing, paths[0], clock, words)
        report(len(lane.program))
        for path in paths[1:]:
            copyfile(paths[0], path)
            report(len(lane.program))


def _write_one(
    lane: LaneTrace, listing: Listing, path: Path, clock: Clock, words: FlagWords
) -> None:
    tracks = Tracks()
    with TraceFile(path, _head(ONE_CORE)) as out:
        for name in sorted(PROCESSES, key=LANES.__getitem__):
            out.name("process_name", PROCESSES[name], 0, name)
            out.name("process_sort_index", PROCESSES[name], 0, LANES[name])
        for count, event in enumerate(listing.events(lane)):
            name = lane_of(event.line)
            is_flag = isinstance(event.line.op, SetFlag | WaitFlag)
            times = clock.ns(event.start), clock.ns(event.free if is_flag else event.end)
            number, is_new = tracks.take(name, *times)
            if is_new:
                out.name("thread_name", PROCESSES[name], number + 1, f"{name}_{number + 1}")
                out.name("thread_sort_index", PROCESSES[name], number + 1, number + 1)
            where = f'"pid":{PROCESSES[name]},"tid":{number + 1}'
            _event(out, event, listing, times, where, words, str(count), ())


def _event(
    out: TraceFile,
    event: Event,
    listing: Listing,
    times: tuple[int, int],
    where: str,
    words: FlagWords,
    flag: str,
    arrows: Iterable[Arrow],
) -> None:
    line, (start, end) = event.line, times
    nbytes = f',"process_bytes":"{line.nbytes}"' if line.nbytes else ""
    args = (
        f'"args":{{"pc_addr":"{line.address}","code":{quoted(listing.code(line))},'
        f'"detail":{quoted(event.text)},"result_cycle":"{event.end}"{nbytes}}}'
    )
    feet = [
        ("s" if arrow.is_start else "t", f'"id":{arrow.number},"cat":"{arrow.title}"')
        for arrow in arrows
    ]
    if isinstance(line.op, SetFlag | WaitFlag):
        is_set = isinstance(line.op, SetFlag)
        name, color = (words.set, "set") if is_set else (words.wait, "wait")
        more = f'"id":"{flag}","cname":"{COLORS[color]}"'
        out.point(quoted(name), "B", start, where, f"{more},{args}")
        # Before the end, so that Perfetto finds the flag open when it comes to the arrow.
        for phase, foot in feet:
            out.point('"flow"', phase, end, where, foot)
        out.point(quoted(name), "E", end, where, more)
        return
    color = COLORS[lane_of(line)]
    out.slice(quoted(line.name.upper()), start, end, where, f'"cname":"{color}",{args}')
    for phase, foot in feet:
        out.point('"flow"', phase, end, where, foot)
