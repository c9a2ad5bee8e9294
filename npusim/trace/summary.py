"""The timeline of a long run: some parts in full, the others as one span per pipe.

Micro-ops repeat: a product of 8192 cubed has 1.5 million of them, with a few thousand distinct
ones. A summary shows those of the slowest core of each kind individually at the beginning, in the
middle, where the run is steady, and at the end; everything else becomes one span on each pipe per
call of a body, or per several short calls. Spans keep their times, and their figures add up to
those of the micro-ops.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from npusim.data.integers import ceil_div
from npusim.devices.schema import Pipe
from npusim.isa import ORDERING, copied_place
from npusim.kernel.program import Body
from npusim.trace.lanes import LaneTrace, Trace

__all__ = ["LEVELS", "WORDS", "Joined", "Level", "Part", "Summary", "level_of"]

Level = Literal["full", "summary"]
"""Whether a timeline shows every micro-op, or a summary of them."""
LEVELS: tuple[Level, ...] = get_args(Level)
WORDS = (
    "a summary: micro-ops are shown one by one only for the slowest core of each kind, and of long "
    "programs only at the beginning, in the middle and at the end; other cores are summarised: one "
    "bar per loop iteration or for several; numbers and tables are those of the whole run"
)
"""How a summary describes itself."""
LEAST_OPS = 500
"""Calls of bodies are joined up to this many micro-ops, about as many as a tile of a product."""
MOST_OPS = 2_000
"""Longer calls are cut, so that a program without repeats keeps its shape."""
SHOWN_STRETCHES = 3
"""At the beginning, in the middle, at the end."""
PIPES: tuple[Pipe, ...] = get_args(Pipe)
NO_WORK = -1

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring micro-ops of a lane."""

    first: int
    """Index of the first micro-op."""
    last: int
    """End index."""
    calls: int
    """Number of calls of bodies; 0 for a piece of one."""
    is_joined: bool
    """Whether it is shown as one span on each pipe."""

    @property
    def rows(self) -> slice:
        """The slice of its micro-ops in the arrays of the lane."""
        return slice(self.first, self.last)


@dataclass(frozen=True, slots=True)
class Joined:
    """The activity of one pipe in a part, in cycles, without flags and barriers."""

    pipe: Pipe
    micro_ops: int
    calls: int
    """See :attr:`Part.calls`."""
    start: int
    free: int
    """When the pipe can start its next micro-op."""
    end: int
    """When the last result is available."""
    held: int
    """Cycles for which micro-ops held the pipe, without gaps."""
    nbytes: int
    """Bytes moved between global memory and the core."""

    @property
    def text(self) -> str:
        """A description of what was joined."""
        ops = f"{self.micro_ops} instruction{'s' if self.micro_ops > 1 else ''}"
        return f"{ops} ({self.calls} iterations)" if self.calls > 1 else ops


def level_of(trace: Trace, level: Level | None, most_spans: int) -> Level:
    """How to show *trace*: as *level* says, or in full if that is at most *most_spans* spans.

    Raises ValueError for an unknown level.
    """
    if level is None:
        return "full" if trace.micro_ops <= most_spans else "summary"
    if level not in LEVELS:
        raise ValueError(
            f"trace: level must be one of {', '.join(LEVELS)}, not {level!r}; use one of these"
        )
    return level


class Summary:
    """The parts of each lane that a summary of *trace* shows, in about *most_spans* spans."""

    def __init__(self, trace: Trace, most_spans: int) -> None:
        slowest = trace.slowest_of_kinds
        # Half of the spans are joined ones, at most one per pipe; the others are micro-ops.
        self._joined_ops = max(LEAST_OPS, ceil_div(2 * len(PIPES) * trace.micro_ops, most_spans))
        self._shown_ops = most_spans // 2 // max(1, len(slowest))
        self._slowest = slowest
        self._parts: dict[LaneTrace, tuple[Part, ...]] = {}
        self._works: dict[Body, Ints] = {}
        self._bytes: dict[Body, Ints] = {}

    def parts(self, lane: LaneTrace) -> tuple[Part, ...]:
        """The micro-ops of *lane*, each in one part, in program order."""
        if lane not in self._parts:
            shown_ops = self._shown_ops if lane in self._slowest else 0
            self._parts[lane] = _parts(lane, self._joined_ops, shown_ops)
        return self._parts[lane]

    def joined(self, lane: LaneTrace) -> list[list[Joined]]:
        """The spans for each part of *lane*; none where micro-ops are shown."""
        parts = self.parts(lane)
        found: list[list[Joined]] = [[] for _ in parts]
        places = [number for number, part in enumerate(parts) if part.is_joined]
        pipes = lane.program.laid_out(self._work)
        nbytes = lane.program.laid_out(self._moved)
        for pipe, name in enumerate(PIPES):
            works = np.flatnonzero(pipes == pipe)
            firsts = np.searchsorted(works, [parts[place].first for place in places])
            lasts = np.searchsorted(works, [parts[place].last for place in places])
            for place, first, last in zip(places, firsts.tolist(), lasts.tolist(), strict=True):
                if first < last:
                    rows = works[first:last]
                    span = _joined(lane, name, rows, parts[place].calls, nbytes)
                    found[place].append(span)
        return found

    def _work(self, body: Body) -> Ints:
        """Index of the pipe on which each micro-op works, or NO_WORK; `(ops,)`."""
        if body not in self._works:
            found = [NO_WORK if isinstance(op, ORDERING) else PIPES.index(op.pipe) for op in body]
            self._works[body] = np.array(found, np.int64)
        return self._works[body]

    def _moved(self, body: Body) -> Ints:
        """Bytes that each micro-op moves from or to global memory, `(ops,)`."""
        if body not in self._bytes:
            places = [copied_place(op) for op in body]
            self._bytes[body] = np.array(
                [place.nbytes if place else 0 for place in places], np.int64
            )
        return self._bytes[body]


def _joined(lane: LaneTrace, pipe: Pipe, rows: Ints, calls: int, nbytes: Ints) -> Joined:
    start, free, end = lane.start[rows], lane.free[rows], lane.end[rows]
    return Joined(
        *(pipe, len(rows), calls, int(start[0]), int(free.max()), int(end.max())),
        *(int((free - start).sum()), int(nbytes[rows].sum())),
    )


def _parts(lane: LaneTrace, joined_ops: int, shown_ops: int) -> tuple[Part, ...]:
    """The parts of *lane*, with at most *shown_ops* micro-ops shown individually.

    The others are joined call by call, or several calls with at most *joined_ops* together.
    """
    count = len(lane.program)
    if count <= shown_ops:
        return (Part(0, count, len(lane.program.called), False),)
    bounds = _bounds(lane)
    each_ops = shown_ops // SHOWN_STRETCHES
    cuts = _cuts(bounds, min(MOST_OPS, each_ops) if each_ops else MOST_OPS)
    shown = _shown(cuts, each_ops)
    stretches: list[tuple[int, int, bool]] = []
    for first, last in pairwise(cuts):
        is_joined = first not in shown
        begin, _, was_joined = stretches[-1] if stretches else (first, first, not is_joined)
        if was_joined == is_joined and (not is_joined or last - begin <= joined_ops):
            stretches[-1] = begin, last, is_joined
        else:
            stretches.append((first, last, is_joined))
    places = {bound: place for place, bound in enumerate(bounds)}
    return tuple(
        Part(
            *(first, last),
            places[last] - places[first] if first in places and last in places else 0,
            is_joined,
        )
        for first, last, is_joined in stretches
    )


def _bounds(lane: LaneTrace) -> list[int]:
    """Boundaries of calls, from 0 to the number of micro-ops of *lane*, ascending."""
    lengths = [len(body) for body in lane.program.called if len(body)]
    return [0, *np.cumsum(lengths).tolist()]


def _cuts(bounds: list[int], most_ops: int) -> list[int]:
    """*bounds*, with cuts in calls of more than *most_ops*."""
    found = [0]
    for first, last in pairwise(bounds):
        pieces = ceil_div(last - first, most_ops)
        found += [first + (last - first) * piece // pieces for piece in range(1, pieces + 1)]
    return found


def _shown(cuts: list[int], most_ops: int) -> frozenset[int]:
    """Those of *cuts* at which individually shown micro-ops begin, up to the next cut.

    They are at most *most_ops*, at the beginning, in the middle and at the end.
    """
    count = cuts[-1]
    found: set[int] = set()
    for begin in (0, (count - most_ops) // 2, count - most_ops):
        first = bisect_left(cuts, begin)
        found |= {a for a, b in pairwise(cuts[first:]) if b <= cuts[first] + most_ops}
    return frozenset(found)
