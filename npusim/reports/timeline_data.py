"""The data of the interactive timeline of a report, as plain numbers and strings.

Micro-ops of a body that several calls share are stored once; times are differences, which compress
well. For a summary, the joined micro-ops are stored as well, in chunks that are unpacked when the
reader zooms in on them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from npusim.kernel.program import Body, Line, Program
from npusim.reports import frame, style
from npusim.reports.bars import alike
from npusim.reports.critical_path import steps
from npusim.reports.cross_core_waits import handed
from npusim.reports.flags import NOBODY, matches, what
from npusim.reports.subject import slowest_lanes
from npusim.reports.traffic import moved, path
from npusim.trace import ORDERING, LaneTrace, Trace
from npusim.trace.summary import Joined, Level, Part, Summary, level_of

__all__ = ["MOST_SPANS", "has_details", "payload"]

MOST_SPANS = 120_000
"""With more micro-ops, a page has a summary by default: this many make a page of some megabytes,
which a browser can still redraw while the reader drags."""
MOST_HANDED = 20_000
"""The most flags between cores on a page."""
CHUNK_OPS = 1 << 16
"""Joined micro-ops per packed chunk: a browser unpacks a chunk in some milliseconds."""


class _Words:
    """Strings, each stored once and referred to by its index."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def number(self, word: str) -> int:
        """The index of *word*."""
        return self.known.setdefault(word, len(self.known))


def payload(trace: Trace, code: dict[Line, str], level: Level | None = None) -> dict[str, object]:
    """The lanes of *trace* at *level*, the slowest of each kind before the others.

    The default is a summary if there is no room for all micro-ops.
    """
    bodies = _Bodies(code)
    level = level_of(trace, level, MOST_SPANS)
    summary = Summary(trace, MOST_SPANS) if level == "summary" else None
    path = _path(trace)
    groups = _sorted(trace)
    lanes = [
        _lane(lane, cores, summary, bodies)
        | {"path": [stretch for core in cores for stretch in path.get(core, ())]}
        for lane, cores in groups
    ]
    return {
        "clock_hz": trace.clock_hz,
        "cycles": trace.cycles,
        "pipes": list(style.PIPES),
        "colors": list(style.COLORS.values()),
        "bodies": bodies.written,
        "chunks": list(bodies.chunks.known),
        "lanes": lanes,
        "handed": _handed(trace, groups),
        "level": level,
        "words": list(bodies.words.known),
    }


def has_details(found: dict[str, object]) -> bool:
    """Whether the page with this payload has every micro-op that its summary joins."""
    lanes = found["lanes"]
    assert isinstance(lanes, list)
    return all(lane["details"] or not lane["is_joined"] for lane in lanes)


def _sorted(trace: Trace) -> list[tuple[LaneTrace, tuple[int, ...]]]:
    """Lanes with the cores that share them, lanes with the slowest core of a kind first."""
    first = {lane.cores[0] for lane in slowest_lanes(trace)}
    return sorted(alike(trace), key=lambda group: (not set(group[1]) & first, group[1]))


def _path(trace: Trace) -> dict[int, list[list[int]]]:
    """First core of a lane -> its spans of the critical path: pipe, start and end."""
    found: dict[int, list[list[int]]] = {}
    for step in steps(trace):
        own, pipe = found.setdefault(step.core, []), style.PIPES.index(step.pipe)
        if own and own[-1][::2] == [pipe, step.since]:
            own[-1][2] = step.until
        elif step.cycles:
            own.append([pipe, step.since, step.until])
    return found


def _handed(trace: Trace, groups: list[tuple[LaneTrace, tuple[int, ...]]]) -> list[list[int]]:
    """Flags between lanes of the page: lane and pipe that set each flag and when, lane and pipe
    that stalled for it and until when. Empty if there is no room for all."""
    places = {core: place for place, (_, cores) in enumerate(groups) for core in cores}
    found = []
    for each in handed(trace.lanes, [lane for lane, _ in groups]):
        start, end = places[each.setter.cores[0]], places[each.waiter.cores[0]]
        if start != end:
            set_pipe = style.PIPES.index(each.setter.ops[each.set_index].pipe)
            wait_pipe = style.PIPES.index(each.waiter.ops[each.wait_index].pipe)
            set_at, passed_at = each.setter.end[each.set_index], each.waiter.free[each.wait_index]
            found.append([start, set_pipe, int(set_at), end, wait_pipe, int(passed_at)])
    return found if len(found) <= MOST_HANDED else []


class _Bodies:
    """Micro-ops of bodies, each body once, as rows of the page."""

    def __init__(self, code: dict[Line, str]) -> None:
        self.written: list[list[list[int]]] = []
        self.words = _Words()
        self.chunks = _Words()
        """Packed times of joined micro-ops, shared by cores that do the same."""
        self._code = code
        self._known: dict[tuple[Body, int, int], int] = {}

    def number(self, body: Body, own: slice) -> int:
        """The index of the part *own* of *body*."""
        key = body, own.start, own.stop
        if key not in self._known:
            self._known[key] = len(self.written)
            self.written.append([self._row(body, index) for index in range(own.start, own.stop)])
        return self._known[key]

    def has_room_for(self, program: Program) -> bool:
        """Whether the page has room for every distinct micro-op of *program*."""
        rows = sum(len(body.ops) for body in program.leaves)
        return rows <= MOST_SPANS

    def joined(self, spans: list[Joined], detail: int) -> int:
        """The index of a body of *spans*, which stand for micro-ops of their pipes.

        *detail* is the index of the part that has these micro-ops one by one, or -1.
        """
        self.written.append([[*self._joined(span), detail] for span in spans])
        return len(self.written) - 1

    def calls(self, lane: LaneTrace, part: Part) -> list[list[int]]:
        """Each call of a body in *part* of *lane*: the index of the body, and its shifts."""
        return [
            [
                self.number(call.body, own),
                self.words.number(_shifts(call.shifts)) if call.shifts else -1,
            ]
            for call, _, own in lane.program.between(part.first, part.last)
        ]

    def _row(self, body: Body, index: int) -> list[int]:
        """The pipe of a micro-op, its name, text, bytes, path, line and code, -1 for none; whether
        it orders others."""
        op, words = body.ops[index], self.words
        line = body.lines[index] if body.lines else None
        way = path(op)
        return [
            style.PIPES.index(op.pipe),
            words.number(str(op).partition(" ")[0]),
            words.number(str(op)),
            moved(op) if way else 0,
            words.number(way) if way else -1,
            words.number(f"{line[0]}:{line[1]}") if line else -1,
            words.number(self._code.get(line, "")) if line else -1,
            int(isinstance(op, ORDERING)),
        ]

    def _joined(self, span: Joined) -> list[int]:
        """The same for *span*, with its bytes of global memory; the last entry is the number of
        cycles that it held its pipe."""
        text = self.words.number(span.text)
        return [style.PIPES.index(span.pipe), text, text, span.nbytes, -1, -1, -1, 0, span.held]


def _lane(
    lane: LaneTrace, cores: tuple[int, ...], summary: Summary | None, bodies: _Bodies
) -> dict[str, object]:
    whole = Part(0, len(lane.program), len(lane.program.called), False)
    parts = (whole,) if summary is None else summary.parts(lane)
    joined: list[list[Joined]] = [[]] if summary is None else summary.joined(lane)
    has_detail = summary is not None and bodies.has_room_for(lane.program)
    details = _Details(lane, bodies)
    calls: list[list[int]] = []
    times = []
    places = np.full(len(lane.program), NOBODY)
    """The index of each micro-op on the page, if it is shown."""
    shown = []
    count = 0
    for part, spans in zip(parts, joined, strict=True):
        if part.is_joined:
            calls.append([bodies.joined(spans, details.add(part) if has_detail else -1), -1])
            own_times = [(span.start, span.free, span.end) for span in spans]
            times.append(np.array(own_times, np.int64).reshape(-1, 3).T)
        else:
            calls += bodies.calls(lane, part)
            rows = part.rows
            times.append(np.array([lane.start[rows], lane.free[rows], lane.end[rows]]))
            places[rows] = np.arange(count, count + part.last - part.first)
            shown.append([part.first, count])
        count += times[-1].shape[1]
    start, free, end = np.concatenate(times, axis=1)
    return {
        "name": style.cores_named(cores, lane.kind),
        "cores": list(cores),
        "kind": lane.kind,
        "calls": calls,
        "start": np.diff(start, prepend=0).tolist(),
        "free": (free - start).tolist(),
        "end": (end - free).tolist(),
        "waits": _waits(lane, places, bodies.words),
        "chunks": details.chunks(),
        "details": details.written,
        "shown": shown,
        "is_joined": any(part.is_joined for part in parts),
    }


class _Details:
    """The micro-ops of the joined parts of a lane, in chunks of neighbouring parts."""

    def __init__(self, lane: LaneTrace, bodies: _Bodies) -> None:
        self.written: list[list[object]] = []
        """For each part its chunk, the offset of its micro-ops in it, its calls, and its index in
        the program."""
        self._lane = lane
        self._bodies = bodies
        self._rows: list[list[slice]] = []
        self._ops = CHUNK_OPS

    def add(self, part: Part) -> int:
        """The index of *part* among the added parts."""
        count = part.last - part.first
        if self._ops + count > CHUNK_OPS:
            self._rows.append([])
            self._ops = 0
        calls = self._bodies.calls(self._lane, part)
        self.written.append([len(self._rows) - 1, self._ops, calls, part.first])
        self._rows[-1].append(part.rows)
        self._ops += count
        return len(self.written) - 1

    def chunks(self) -> list[list[int]]:
        """For each chunk the index of its packed times, their count, and the first start."""
        if not self._rows:
            return []
        matched = matches(self._lane.program)
        back = np.where(matched == NOBODY, 0, np.arange(len(matched)) - matched)
        return [self._chunk(rows, back) for rows in self._rows]

    def _chunk(self, rows: list[slice], back: NDArray[np.int64]) -> list[int]:
        """The same for the micro-ops *rows*; *back* is the distance from each wait to its set."""
        lane = self._lane
        start, free, end, sets = (np.concatenate([each[own] for own in rows])
                                  for each in (lane.start, lane.free, lane.end, back))  # fmt: skip
        first = int(start[0])
        planes = np.stack([np.diff(start, prepend=first), free - start, end - free, sets])
        packed = frame.deflated(planes.astype("<i4").tobytes())
        return [self._bodies.chunks.number(packed), len(start), first]


def _waits(lane: LaneTrace, places: NDArray[np.int64], words: _Words) -> list[list[int]]:
    """Each wait on the page: its index, the index of its set, and the meaning of the flag.

    Waits whose set is not on the page are left out; *places* are the indices of all micro-ops.
    """
    if (places == NOBODY).all():
        return []
    matched = matches(lane.program)
    matched[(places == NOBODY) | (places[matched] == NOBODY)] = NOBODY
    carried = what(lane.program, matched)
    shown = np.flatnonzero(matched != NOBODY)
    return [
        [int(places[wait]), int(places[matched[wait]]), words.number(carried.get(wait, ""))]
        for wait in shown.tolist()
    ]


def _shifts(shifts: dict[str, int]) -> str:
    return ", ".join(f"{name} + {nbytes} bytes" for name, nbytes in shifts.items())
