"""The traces of `msprof op simulator`, as MindStudio Insight reads them.

One file has all cores, with a lane for each pipe; a micro-op lasts until its pipe is free again, so
that nothing overlaps, and the time of its result is one of its arguments. Each core also has a
separate file, where micro-ops last until their results are available, on as many lanes as needed.

Sources: Ascend/msopprof, timeline_visualizer (what is written), and Ascend/msinsight, EventParser
and JsonFileProcess (what is read: X, B and E of flags, s, t, M and C). Arrow ids are whole numbers;
the vendor's have a name as prefix, which Perfetto drops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from shutil import copyfile

from npusim.exports.arrows import Arrow, Arrows
from npusim.exports.listing import Event, Listing
from npusim.exports.names import COLORS, LANES, PROCESSES, Place, lane_of
from npusim.exports.shown import Shown
from npusim.exports.throughput import throughput
from npusim.exports.tracks import Stretch, Tracks
from npusim.exports.writing import Clock, TraceFile, quoted
from npusim.isa import SetFlag, WaitFlag
from npusim.trace import LaneTrace, Trace
from npusim.trace.summary import Joined

__all__ = ["write_all", "write_each"]

Report = Callable[[int], None]
ALL_CORES, ONE_CORE = 2, 1
"""Versions of the schema."""


def _head(version: int, shown: Shown) -> dict[str, object]:
    head = {"displayTimeUnit": "ns", "profilingType": "op", "schemaVersion": version}
    return head if shown.is_whole else head | {"otherData": shown.facts}


class FlagWords:
    """The names of flags: events, before arch 2201."""

    def __init__(self, arch: str) -> None:
        is_old = arch == "2002"
        self.set = "set_event" if is_old else "SET_FLAG"
        self.wait = "wait_event" if is_old else "WAIT_FLAG"


def write_all(
    trace: Trace,
    listing: Listing,
    places: dict[int, Place],
    shown: Shown,
    path: Path,
    words: FlagWords,
    report: Report,
) -> None:
    """Write the trace of all cores; *report* is called with the number of micro-ops written."""
    clock = Clock(trace.clock_hz)
    arrows = Arrows(trace, listing, places, is_whole=shown.is_whole)
    with TraceFile(path, _head(ALL_CORES, shown)) as out:
        for lane in sorted(trace.lanes, key=lambda lane: lane.cores[0]):
            for core in lane.cores:
                place = places[core]
                out.name("process_sort_index", place.name, "NA", place.order)
                for name in _used(lane, listing):
                    out.name("thread_sort_index", place.name, name, LANES[name])
        writer = EventWriter(out, listing, words)
        for name, at, megabytes_per_s in throughput(trace, clock):
            out.counter("MTE Throughput", name, at, "throughput(MB/s)", megabytes_per_s)
        for lane in sorted(trace.lanes, key=lambda lane: lane.cores[0]):
            for core in lane.cores:
                name, tracks = places[core].name, Tracks(clock)
                for number, one in enumerate(shown.of(lane)):
                    if isinstance(one, SetFlag | WaitFlag):
                        arrows.skip(core, one)
                        continue
                    own = lane_of(one.line if isinstance(one, Event) else one.pipe)
                    feet = arrows.of(core, one.line.op) if isinstance(one, Event) else []
                    after = max((foot.after for foot in feet), default=0)
                    drawn = tracks.take(own, one.start, one.free, after)
                    where = f'"pid":"{name}","tid":"{own}"'
                    flag = f"{name}_{number}"
                    writer.write(one, drawn, where, flag, feet)
                    for foot in feet:
                        arrows.draw(foot, drawn.start)
                report(len(lane.program))


def write_each(
    trace: Trace,
    listing: Listing,
    places: dict[int, Place],
    shown: Shown,
    folder: Path,
    words: FlagWords,
    report: Report,
) -> None:
    """Write the trace of each core into the folder of its name; equal traces are generated once."""
    clock = Clock(trace.clock_hz)
    for lane in trace.lanes:
        paths = [folder / places[core].name / "trace.json" for core in lane.cores]
        for path in paths:
            path.parent.mkdir()
        _write_one(lane, listing, shown, paths[0], clock, words)
        report(len(lane.program))
        for path in paths[1:]:
            copyfile(paths[0], path)
            report(len(lane.program))


def _used(lane: LaneTrace, listing: Listing) -> list[str]:
    """The names of the lanes with events, in order."""
    used = {lane_of(line) for call in lane.program.calls for line in listing.of(call)}
    return sorted(used, key=LANES.__getitem__)


def _write_one(
    lane: LaneTrace, listing: Listing, shown: Shown, path: Path, clock: Clock, words: FlagWords
) -> None:
    tracks = Tracks(clock)
    with TraceFile(path, _head(ONE_CORE, shown)) as out:
        writer = EventWriter(out, listing, words)
        for name in _used(lane, listing):
            out.name("process_name", PROCESSES[name], 0, name)
            out.name("process_sort_index", PROCESSES[name], 0, LANES[name])
        for count, one in enumerate(shown.of(lane)):
            if isinstance(one, SetFlag | WaitFlag):
                continue  # flags are counted for arrows, and there are no arrows here
            name = lane_of(one.line if isinstance(one, Event) else one.pipe)
            is_whole = isinstance(one, Event) and not isinstance(one.line.op, SetFlag | WaitFlag)
            drawn = tracks.take(name, one.start, one.end if is_whole else one.free)
            pid, tid = PROCESSES[name], drawn.track + 1
            if drawn.is_first:
                out.name("thread_name", pid, tid, f"{name}_{tid}")
                out.name("thread_sort_index", pid, tid, tid)
            writer.write(one, drawn, f'"pid":{pid},"tid":{tid}', str(count), ())


class EventWriter:
    """Writes micro-ops in the form of the vendor's simulator."""

    def __init__(self, out: TraceFile, listing: Listing, words: FlagWords) -> None:
        self._out, self._listing, self._words = out, listing, words

    def write(
        self, event: Event | Joined, drawn: Stretch, where: str, flag: str, arrows: Iterable[Arrow]
    ) -> None:
        """*event* as *drawn*, in process and lane *where*; a flag is identified by *flag*."""
        if isinstance(event, Joined):
            self._write_joined(event, drawn, where)
            return
        line, out = event.line, self._out
        if isinstance(line.op, SetFlag | WaitFlag):
            is_set = isinstance(line.op, SetFlag)
            name, color = (self._words.set, "set") if is_set else (self._words.wait, "wait")
            more = f'"id":"{flag}","cname":"{COLORS[color]}"'
            out.point(quoted(name), "B", drawn.start, where, f"{more},{self._args(event)}")
            _point_arrows(out, drawn, where, arrows)
            out.point(quoted(name), "E", drawn.end, where, more)
        else:
            more = f'"cname":"{COLORS[lane_of(line)]}",{self._args(event)}'
            out.slice(quoted(line.name.upper()), drawn.start, drawn.end, where, more)
            _point_arrows(out, drawn, where, arrows)

    def _write_joined(self, joined: Joined, drawn: Stretch, where: str) -> None:
        nbytes = f',"process_bytes":"{joined.nbytes}"' if joined.nbytes else ""
        self._out.slice(
            *(quoted(joined.text), drawn.start, drawn.end, where),
            f'"cname":"{COLORS[lane_of(joined.pipe)]}","args":{{"held_cycles":"{joined.held}",'
            f'"result_cycle":"{joined.end}"{nbytes}}}',
        )

    def _args(self, event: Event) -> str:
        line = event.line
        nbytes = f',"process_bytes":"{line.nbytes}"' if line.nbytes else ""
        return (
            f'"args":{{"pc_addr":"{line.address}","code":{quoted(self._listing.code(line))},'
            f'"detail":{quoted(event.text)},"result_cycle":"{event.end}"{nbytes}}}'
        )


def _point_arrows(out: TraceFile, drawn: Stretch, where: str, arrows: Iterable[Arrow]) -> None:
    """A time before the last nanosecond ends, so that Perfetto finds the flag still open."""
    for arrow in arrows:
        phase, at = ("s", drawn.start) if arrow.is_start else ("t", drawn.end - 1)
        out.point('"flow"', phase, at, where, f'"id":{arrow.number},"cat":"{arrow.title}"')
