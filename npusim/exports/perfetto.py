"""A lossless trace for Perfetto: every micro-op until its result is available, and every arrow.

For a long run it may be a summary with joined micro-ops (:mod:`npusim.trace.summary`).

The limits of Perfetto's trace processor were tested with version 52: it drops a slice that overlaps
another one on its track, so micro-ops whose results are still pending move to a separate track;
flow ids must be whole numbers; times are whole nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from npusim.devices.schema import Pipe
from npusim.exports.arrows import Arrows
from npusim.exports.listing import Event, Listing
from npusim.exports.names import Place
from npusim.exports.shown import Shown
from npusim.exports.throughput import STEP_NS, throughput
from npusim.exports.tracks import Stretch, Tracks
from npusim.exports.writing import Clock, Scale, TraceFile, quoted
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag, SetFlag, WaitFlag
from npusim.reports.style import PIPES
from npusim.trace import ORDERING, Trace
from npusim.trace.summary import Joined

__all__ = ["write"]

SETS, WAITS = (SetFlag, CrossCoreSetFlag), (WaitFlag, CrossCoreWaitFlag)
MAX_TRACKS = 1000
"""The most tracks of a pipe: no more micro-ops can be in flight at once."""
TAKEN = "flag taken"
TRAFFIC = 1
"""The process number of the counters; cores follow."""


def write(
    trace: Trace,
    listing: Listing,
    places: dict[int, Place],
    shown: Shown,
    path: Path,
    scale: Scale,
    report: Callable[[int], None],
) -> None:
    """Write *path*; *report* is called for each core with the number of micro-ops written.

    With *scale* "cycles" a nanosecond of the trace is a cycle.
    """
    clock = Clock(trace.clock_hz, scale)
    arrows = Arrows(trace, listing, places, is_whole=shown.is_whole)
    unit = {"us": "ns", "cycles": "1ns=1cycle"}[scale]
    head = {"displayTimeUnit": "ns", "otherData": {"time_unit": unit} | shown.facts}
    with TraceFile(path, head) as out:
        out.name("process_name", TRAFFIC, 1, "global memory")
        out.name("process_sort_index", TRAFFIC, 1, 0)
        for name, at, nbytes in throughput(trace, clock):
            if scale == "us":
                out.counter(TRAFFIC, name, at, "MB/s", nbytes)
            else:
                out.counter(TRAFFIC, name, at, "bytes a cycle", nbytes / STEP_NS)
        for lane in sorted(trace.lanes, key=lambda lane: lane.cores[0]):
            for core in lane.cores:
                _name(out, core, lane.kind, places[core])
                tracks = Tracks(clock)
                for one in shown.of(lane):
                    if isinstance(one, Event):
                        _event(out, core, one, tracks, arrows)
                    elif isinstance(one, Joined):
                        _joined(out, core, one, tracks)
                    else:
                        arrows.skip(core, one)
                report(len(lane.program))


def _name(out: TraceFile, core: int, kind: str, place: Place) -> None:
    pid = core + 2
    out.name("process_name", pid, pid * 10 * MAX_TRACKS, f"core {core} ({kind}, {place.name})")
    out.name("process_sort_index", pid, pid * 10 * MAX_TRACKS, place.order)


def _track(pid: int, pipe: Pipe, number: int) -> int:
    """A number that is unique among all tracks of the trace, including those of other cores."""
    return (pid * 10 + PIPES.index(pipe) + 1) * MAX_TRACKS + number


def _event(out: TraceFile, core: int, event: Event, tracks: Tracks, arrows: Arrows) -> None:
    line, pid = event.line, core + 2
    feet = arrows.of(core, line.op)
    after = max((foot.after for foot in feet), default=0)
    drawn = tracks.take(line.pipe, event.start, _last(event), after)
    where = _where(out, pid, line.pipe, drawn)
    # Perfetto points arrows at the slice that began later, so the end of a long wait is separate.
    has_waited = isinstance(line.op, WAITS) and drawn.end > drawn.start + 1
    out.slice(
        quoted(event.text if isinstance(line.op, ORDERING) else line.name),
        *(drawn.start, drawn.end - has_waited, where),
        f'"args":{{"micro-op":{quoted(event.text)},"line":{line.number},'
        f'"start_cycle":{event.start},"free_cycle":{event.free},"end_cycle":{event.end},'
        f'"gm_bytes":{line.nbytes}}}',
    )
    if has_waited:
        out.slice(quoted(TAKEN), drawn.end - 1, drawn.end, where, '"args":{}')
    for foot in feet:
        # An arrow binds to the slice that is open on its track, so it follows that in the file.
        phase, at = ("s", drawn.start) if foot.is_start else ("f", drawn.end - 1)
        binding = "" if foot.is_start else ',"bp":"e"'
        out.point('"flow"', phase, at, where, f'"id":{foot.number},"cat":"{foot.title}"{binding}')
        arrows.draw(foot, at)


def _joined(out: TraceFile, core: int, joined: Joined, tracks: Tracks) -> None:
    """Micro-ops as one slice, until the pipe is free again."""
    drawn = tracks.take(joined.pipe, joined.start, joined.free)
    out.slice(
        quoted(joined.text),
        *(drawn.start, drawn.end, _where(out, core + 2, joined.pipe, drawn)),
        f'"args":{{"micro-ops":{joined.micro_ops},"held_cycles":{joined.held},'
        f'"start_cycle":{joined.start},"free_cycle":{joined.free},"end_cycle":{joined.end},'
        f'"gm_bytes":{joined.nbytes}}}',
    )


def _where(out: TraceFile, pid: int, pipe: Pipe, drawn: Stretch) -> str:
    """The track on which it is *drawn*; the track is named on first use."""
    tid = _track(pid, pipe, drawn.track)
    if drawn.is_first:
        name = pipe if drawn.track == 0 else f"{pipe} +{drawn.track}"
        out.name("thread_name", pid, tid, name)
        out.name("thread_sort_index", pid, tid, tid)
    return f'"pid":{pid},"tid":{tid}'


def _last(event: Event) -> int:
    """The end of the slice: flags stay set for long, but hold no pipe."""
    return event.free if isinstance(event.line.op, SETS + WAITS) else event.end
