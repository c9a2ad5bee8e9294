"""The critical path of a run: what its last result waited for, back to the first cycle.

From the last result of the slowest core the walk goes back to whatever determined when it could be
there: the bytes of a copy, the micro-op before it on the same pipe, the pipe that raised a flag, on
this core or on another one, the scalar unit that handed it out. Each cycle has one cause; together
they are the time of the slowest core. What is not on the path was waited for by nobody.
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
    """Cycles of the path that one cause took on one pipe of one kind of core."""

    cause: Cause
    kind: str
    pipe: Pipe
    cycles: int


@dataclass(frozen=True, slots=True)
class Step:
    """A micro-op on the path, a flag or a barrier too, and the stretch of time that it explains."""

    lane: int
    """Number of its lane in the trace."""
    core: int
    """The first of that lane's cores."""
    kind: str
    pipe: Pipe
    index: int
    """Its number in the program of the core."""
    since: int
    """The cycle from which on it is what the end waits for, and the one where the next one is."""
    until: int
    causes: tuple[tuple[Cause, int], ...]
    """Why, and how many cycles each; together they are the stretch. None where it takes no time."""

    @property
    def cycles(self) -> int:
        """How much of the path is this micro-op's."""
        return self.until - self.since


@remembered
def steps(trace: Trace) -> tuple[Step, ...]:
    """The path from the first cycle to the last result: each step begins where the one before ends.

    Where two steps that follow each other are of different cores, the later one waited for a flag
    that the other core set.
    """
    walk = _Walk(trace)
    walk.go()
    return tuple(reversed(walk.steps))


@remembered
def critical_path(trace: Trace) -> list[Held]:
    """The parts of the path, largest first; their cycles add up to those of *trace*."""
    total: Counter[tuple[Cause, str, Pipe]] = Counter()
    for step in steps(trace):
        for cause, cycles in step.causes:
            total[cause, step.kind, step.pipe] += cycles
    found = [Held(*key, cycles) for key, cycles in total.items()]
    return sorted(found, key=lambda held: (-held.cycles, held.cause, held.kind, held.pipe))


_Crossings = dict[tuple[type, CrossMode, int], list[int]]
"""Kind, mode and event of flags between cores -> their micro-ops, in order."""


class _Lane:
    """A lane with what the walk asks of it."""

    def __init__(self, number: int, lane: LaneTrace) -> None:
        self.number, self.lane = number, lane
        self.ops = lane.ops
        self.start, self.free, self.end = (
            times.tolist() for times in (lane.start, lane.free, lane.end)
        )
        self.before: list[int] = []
        """For each micro-op the one before it on its pipe."""
        self.latest: list[int] = []
        """The one among those whose result is there last; flags and barriers have none."""
        self.latest_of_all: list[int] = []
        """The same among those of all pipes, flags and barriers too."""
        self.handed: list[int] = []
        """The last one of the scalar unit, which issues what follows."""
        self.queued: list[int] = []
        """Those of mte1, whose queue may hold up the copies behind them."""
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
        """The micro-op of mte1 that left the queue when *copy* started, of those before it."""
        precede, start = bisect_left(self.queued, copy), self.start[copy]
        latest = bisect_right(self.queued, start, 0, precede, key=self.start.__getitem__) - 1
        is_it = latest >= 0 and self.start[self.queued[latest]] == start
        return self.queued[latest] if is_it else NOBODY

    def end_of(self, index: int) -> int:
        """When the result of a micro-op is there; before everything for none."""
        return NOBODY if index == NOBODY else int(self.end[index])


class _Walk:
    """Goes back from micro-op to micro-op, and explains the cycles in between."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.steps: list[Step] = []
        """Those that are explained, the last one first."""
        self._causes: list[tuple[Cause, int]] = []
        """What the micro-op that is being explained is charged with."""
        self._lanes: dict[int, _Lane] = {}
        self._crossings: dict[Program, _Crossings] = {}
        self._at = self._lane(trace.lanes.index(trace.slowest))
        self._index = int(np.argmax(self._at.lane.end))
        self._moment: Literal["start", "free", "end"] | None = "end"
        """What of the micro-op is being explained; None at the first cycle."""
        self._now = trace.cycles

    def _lane(self, number: int) -> _Lane:
        if number not in self._lanes:
            self._lanes[number] = _Lane(number, self.trace.lanes[number])
        return self._lanes[number]

    def go(self) -> None:
        """Walk to the first cycle."""
        while self._moment is not None:
            here = self._at, self._index
            self._back()
            if self._moment is None or here != (self._at, self._index):
                self._explained(*here)

    def _explained(self, lane: _Lane, index: int) -> None:
        """Micro-op *index* of *lane* is done with: what comes before it is looked at next."""
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
        """Charge what lies between *since* and now to *cause*, and go there."""
        if since != self._now:
            self._causes.append((cause, self._now - since))
        self._now = since

    def _to_start(self, cause: Cause) -> None:
        self._charge(cause, self._at.start[self._index])
        self._moment = "start"

    def _before_start(self) -> None:
        """It started when its pipe was free, or when it was issued, whichever came later: after
        another of the scalar unit, or, a copy, when the queue of mte1 had room for those before it.
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
            # Results are there in order: this one had to wait for that of an earlier micro-op.
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
            # A flag rises when all results before it are there.
            self._after(lane.latest[index])

    def _after(self, other: int) -> None:
        """Go to the end of *other*, or to the own start if that came later."""
        lane = self._at
        if lane.end_of(other) <= lane.start[self._index]:
            self._to_start("flags")
            return
        self._charge("flags", lane.end[other])
        self._index, self._moment = other, "end"

    def _after_other_core(self, op: CrossCoreWaitFlag) -> None:
        """Go to the last of the sets that the wait takes: the k-th wait, the k-th of each core."""
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
    """Whether cores of *own* wait for those of *other*, as `check.cross_core_flags.awaits` says."""
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
