"""The critical path of a run: what its last result waited for, back to the first cycle.

The walk starts at the last result of the slowest core and goes back to whatever determined its
time: the bytes of a copy, the micro-op before it on the same pipe, the pipe that set a flag, on
this core or on another one, or the scalar unit that issued it. Each cycle has one cause; the cycles
add up to the time of the slowest core. The end does not wait for anything off the path.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Literal

import numpy as np

from npusim.devices.schema import Pipe
from npusim.isa import (
    Arithmetic,
    Barrier,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    CrossMode,
    MicroOp,
    Ordering,
    Product,
    Rearrangement,
    ScalarWork,
    Transfer,
    WaitFlag,
    copied_place,
)
from npusim.kernel.program import Program
from npusim.reports.flags import NOBODY, matches
from npusim.reports.subject import remembered
from npusim.trace import ORDERING, Cause, LaneTrace, Trace

__all__ = ["Held", "Step", "critical_path", "sets_for", "steps"]


@dataclass(frozen=True, slots=True)
class Held:
    """Cycles of the path with one cause, on one pipe of one kind of core."""

    cause: Cause
    kind: str
    pipe: Pipe
    cycles: int


@dataclass(frozen=True, slots=True)
class Step:
    """A micro-op on the path, possibly a flag or a barrier, and the time span that it explains."""

    lane: int
    """The index of its lane in the trace."""
    core: int
    """The first of that lane's cores."""
    kind: str
    pipe: Pipe
    index: int
    """Its index in the program of the core."""
    since: int
    """The first cycle of this step, and the first cycle of the next one."""
    until: int
    causes: tuple[tuple[Cause, int], ...]
    """The causes and the cycles of each; they add up to the span. Empty if it takes no time."""

    @property
    def cycles(self) -> int:
        """The cycles of the path that this micro-op takes."""
        return self.until - self.since


@remembered
def steps(trace: Trace) -> tuple[Step, ...]:
    """The path from the first cycle to the last result: each step begins where the one before ends.

    If two consecutive steps are on different cores, the later one waited for a flag that the other
    core set.
    """
    walk = _Walk(trace)
    walk.go()
    return tuple(reversed(walk.steps))


@remembered
def critical_path(trace: Trace) -> list[Held]:
    """The parts of the path, largest first; their cycles add up to the cycles of *trace*."""
    total: Counter[tuple[Cause, str, Pipe]] = Counter()
    for step in steps(trace):
        for cause, cycles in step.causes:
            total[cause, step.kind, step.pipe] += cycles
    found = [Held(*key, cycles) for key, cycles in total.items()]
    return sorted(found, key=lambda held: (-held.cycles, held.cause, held.kind, held.pipe))


_Crossings = dict[tuple[type, CrossMode, int], list[int]]
"""Kind, mode and event of flags between cores -> their micro-ops, in order."""


class _Lane:
    """A lane with the tables that the walk needs."""

    def __init__(self, number: int, lane: LaneTrace) -> None:
        self.number, self.lane = number, lane
        self.ops = lane.ops
        self.start, self.free, self.end = (
            times.tolist() for times in (lane.start, lane.free, lane.end)
        )
        self.before: list[int] = []
        """For each micro-op the previous one on its pipe."""
        self.latest: list[int] = []
        """Among the previous ones, that with the last result; flags and barriers have no result."""
        self.latest_of_all: list[int] = []
        """The same among the micro-ops of all pipes, including flags and barriers."""
        self.handed: list[int] = []
        """The previous one of the scalar unit, which issues what follows."""
        self.queued: list[int] = []
        """Those of mte1, whose queue may delay later copies."""
        self._look_back()
        self.setters = matches(lane.program).tolist()
        self.copies = {index: row for row, index in enumerate(lane.copies.index.tolist())}

    def _look_back(self) -> None:
        before: dict[Pipe, int] = {}
        latest: dict[Pipe, int] = {}
        last = NOBODY
        for index, op in enumerate(self.ops):
            pipe, end = op.pipe, self.end[index]
            known = latest.get(pipe, NOBODY)
            self.before.append(before.get(pipe, NOBODY))
            self.latest.append(known)
            self.latest_of_all.append(last)
            self.handed.append(before.get("scalar", NOBODY))
            before[pipe] = index
            if pipe == "mte1":
                self.queued.append(index)
            if end >= self.end_of(last):
                last = index
            if not isinstance(op, ORDERING) and end >= self.end_of(known):
                latest[pipe] = index

    def made_room(self, copy: int) -> int:
        """The micro-op of mte1 before *copy* that left the queue when *copy* started."""
        precede, start = bisect_left(self.queued, copy), self.start[copy]
        latest = bisect_right(self.queued, start, 0, precede, key=self.start.__getitem__) - 1
        is_it = latest >= 0 and self.start[self.queued[latest]] == start
        return self.queued[latest] if is_it else NOBODY

    def end_of(self, index: int) -> int:
        """When the result of a micro-op is available; without one, before all times."""
        return NOBODY if index == NOBODY else int(self.end[index])


class _Walk:
    """Goes back from micro-op to micro-op, and explains the cycles in between."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.steps: list[Step] = []
        """The steps explained so far, the last one first."""
        self._causes: list[tuple[Cause, int]] = []
        """The causes and cycles of the micro-op that is being explained."""
        self._lanes: dict[int, _Lane] = {}
        self._crossings: dict[Program, _Crossings] = {}
        self._at = self._lane(trace.lanes.index(trace.slowest))
        self._index = int(np.argmax(self._at.lane.end))
        self._moment: Literal["start", "free", "end"] | None = "end"
        """The moment of the micro-op that is being explained; None at the first cycle."""
        self._now = trace.cycles

    def _lane(self, number: int) -> _Lane:
        if number not in self._lanes:
            self._lanes[number] = _Lane(number, self.trace.lanes[number])
        return self._lanes[number]

    def go(self) -> None:
        """Walk back to the first cycle."""
        while self._moment is not None:
            here = self._at, self._index
            self._back()
            if self._moment is None or here != (self._at, self._index):
                self._explained(*here)

    def _explained(self, lane: _Lane, index: int) -> None:
        """Record micro-op *index* of *lane* as a step: its predecessor is explained next."""
        causes = tuple(reversed(self._causes))
        until = self._now + sum(cycles for _, cycles in causes)
        core, pipe = lane.lane.cores[0], lane.ops[index].pipe
        self.steps.append(
            Step(lane.number, core, lane.lane.kind, pipe, index, self._now, until, causes)
        )
        self._causes = []

    def _back(self) -> None:
        """Go one step back, to another moment of the same micro-op or to another one."""
        op = self._at.ops[self._index]
        if self._moment == "start":
            self._before_start()
        elif isinstance(op, ORDERING):
            self._ordering(op)
        elif copied_place(op) is not None:
            self._copy()
        else:
            self._work(op)

    def _charge(self, cause: Cause, since: int) -> None:
        """Charge the cycles from *since* to now to *cause*, and go to *since*."""
        if since != self._now:
            self._causes.append((cause, self._now - since))
        self._now = since

    def _to_start(self, cause: Cause) -> None:
        self._charge(cause, self._at.start[self._index])
        self._moment = "start"

    def _before_start(self) -> None:
        """It started when its pipe was free, or when it was issued, whichever came later: after
        the scalar unit's previous micro-op, or, for a copy, when the queue of mte1 had room for
        the copies before it.
        """
        lane, index = self._at, self._index
        before, handed = lane.before[index], lane.handed[index]
        if before == NOBODY or lane.free[before] < lane.start[index]:
            before = handed
            if copied_place(lane.ops[index]) is not None:
                made_room = lane.made_room(index)
                if made_room != NOBODY:
                    self._index = made_room
                    return
        self._charge("dispatch", 0 if before == NOBODY else lane.free[before])
        self._moment = None if before == NOBODY else "free"
        self._index = before

    def _work(self, op: MicroOp) -> None:
        lane, index = self._at, self._index
        latest = lane.latest[index]
        if self._moment == "free" or lane.end[index] == lane.free[index]:
            self._to_start(_cause(op))
        elif lane.end_of(latest) == lane.end[index]:
            # Results come in order: this one had to wait for the result of an earlier micro-op.
            self._index = latest
        else:
            self._charge("pipe latency", lane.free[index])
            self._moment = "free"

    def _copy(self) -> None:
        lane, index = self._at, self._index
        row = lane.copies.get(index)
        free = lane.free[index]
        facts = lane.lane.copies
        moved = free if row is None else int(facts.moved[row])
        if free > moved and (self._moment == "free" or lane.end[index] == free):
            self._to_start("copy issue")
            return
        self._charge("memory latency", moved)
        if row is not None:
            self._charge("gm", moved - int(facts.gm_narrow[row]))
            self._charge("l2 reads", self._now - int(facts.l2_read_narrow[row]))
            self._charge("l2 writes", self._now - int(facts.l2_write_narrow[row]))
            self._charge("rows", self._now - int(facts.turning[row]))
            self._charge("port", int(facts.asked[row]))
            self._to_start("copy issue")
        else:
            self._to_start("port")

    def _ordering(self, op: MicroOp) -> None:
        lane, index = self._at, self._index
        if isinstance(op, WaitFlag):
            self._after(lane.setters[index])
        elif isinstance(op, CrossCoreWaitFlag):
            self._after_other_core(op)
        elif isinstance(op, Barrier):
            self._after((lane.latest if op.on else lane.latest_of_all)[index])
        elif self._moment == "free":
            self._to_start("flags")
        else:
            # A flag is set when all results before it are available.
            self._after(lane.latest[index])

    def _after(self, other: int) -> None:
        """Go to the end of *other*, or to the micro-op's own start if that came later."""
        lane = self._at
        if lane.end_of(other) <= lane.start[self._index]:
            self._to_start("flags")
            return
        self._charge("flags", lane.end[other])
        self._index, self._moment = other, "end"

    def _after_other_core(self, op: CrossCoreWaitFlag) -> None:
        """Go to the last set that the wait needs: the k-th wait takes the k-th set of each core."""
        own, start = self._at.lane, self._at.start[self._index]
        turn = self._crossed(own)[CrossCoreWaitFlag, op.mode, op.event].index(self._index)
        found = []
        for number, other in enumerate(self.trace.lanes):
            if sets_for(other, own, op.mode):
                sets = self._crossed(other).get((CrossCoreSetFlag, op.mode, op.event), [])
                if turn < len(sets) and start < other.end[sets[turn]] <= self._now:
                    found.append((int(other.end[sets[turn]]), -number, sets[turn]))
        if not found:
            self._to_start("cross-core flags")
            return
        end, number, index = max(found)
        self._charge("cross-core flags", end)
        self._at, self._index, self._moment = self._lane(-number), index, "end"

    def _crossed(self, lane: LaneTrace) -> _Crossings:
        if lane.program not in self._crossings:
            found: _Crossings = defaultdict(list)
            for index, op in enumerate(lane.ops):
                if isinstance(op, CrossCoreSetFlag | CrossCoreWaitFlag):
                    found[type(op), op.mode, op.event].append(index)
            self._crossings[lane.program] = found
        return self._crossings[lane.program]


def sets_for(other: LaneTrace, own: LaneTrace, mode: CrossMode) -> bool:
    """Whether cores of *own* wait for those of *other*, see `check.cross_core_flags.awaits`."""
    if mode == "all":
        return other.kind == own.kind
    groups = set(other.groups or (0,)) & set(own.groups or (0,))
    return (other.kind == own.kind) is (mode == "pair") and bool(groups)


def _cause(op: MicroOp) -> Cause:
    """What a micro-op that stays inside its core does while it holds its pipe."""
    match op.work:
        case Product():
            return "cube"
        case Transfer():
            return "buffers"
        case ScalarWork():
            return "scalar"
        case Arithmetic() | Rearrangement():
            return "vector"
        case Ordering():
            return "flags"
