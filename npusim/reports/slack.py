"""Slack: by how many cycles the work of a pipe could be delayed without delaying the end.

Every micro-op takes the same time as in the run, and has the same dependencies: the previous
micro-op on its pipe, its flags, flags of other cores, the scalar unit that issues it. From the last
cycle back, each gets the latest start that does not delay the end; the slack of a pipe is the
minimum over its micro-ops. It is 0 on the critical path; making other pipes faster gains nothing.

Two effects are left out: a copy that starts later shares the links with other copies, and a vector
or cube instruction that starts on an empty pipe takes its startup cycles again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from statistics import median_high

from npusim.devices.schema import Pipe
from npusim.isa import (
    Barrier,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    CrossMode,
    SetFlag,
    WaitFlag,
)
from npusim.reports import style
from npusim.reports.critical_path import sets_for
from npusim.reports.flags import NOBODY, matches
from npusim.reports.subject import remembered
from npusim.trace import ORDERING, LaneTrace, Trace

__all__ = ["Slack", "slack"]

CROSS = CrossCoreSetFlag | CrossCoreWaitFlag


@dataclass(frozen=True, slots=True)
class Slack:
    """The slack of one pipe of the slowest core of a kind."""

    kind: str
    core: int
    pipe: Pipe
    cycles: int
    """The minimum slack of its micro-ops."""
    median_cycles: int
    """The median slack of its micro-ops."""


@remembered
def slack(trace: Trace) -> list[Slack]:
    """The slack of each active pipe, by kind of core and pipe."""
    chosen = [trace.lanes.index(lane) for lane in trace.slowest_of_kinds]
    meets = any(isinstance(op, CROSS) for number in chosen for op in _distinct(trace, number))
    # Cores that exchange no flags do not delay each other.
    back = _Back(trace, range(len(trace.lanes)) if meets else chosen)
    back.go()
    return [
        Slack(lane.kind, lane.cores[0], pipe, min(found[pipe]), int(median_high(found[pipe])))
        for lane, found in ((trace.lanes[number], back.lanes[number].spare) for number in chosen)
        for pipe in style.PIPES
        if pipe in found
    ]


def _distinct(trace: Trace, number: int) -> tuple[object, ...]:
    return tuple(trace.lanes[number].program.distinct()[0])


class _Lane:
    """A lane, and the latest times of its micro-ops, as far as they have been computed."""

    def __init__(self, lane: LaneTrace, end: int) -> None:
        self.lane, self.ops, self.last = lane, lane.ops, end
        self.start, self.free, self.end = (
            times.tolist() for times in (lane.start, lane.free, lane.end)
        )
        self.setters: list[int] = matches(lane.program).tolist()
        self.handed, self.lag = self._handed_out()
        self.latest_free = [end] * len(self.ops)
        """The latest time at which a micro-op must free its pipe."""
        self.latest_flag: dict[int, int] = {}
        """The latest time at which a set must be seen."""
        self.latest_start: dict[Pipe, int] = defaultdict(lambda: end)
        """The latest time at which the next micro-op on a pipe must start."""
        self.latest_end: dict[Pipe, int] = defaultdict(lambda: end)
        """The latest time for all results of a pipe before the current micro-op."""
        self.done = self._done()
        self.spare: dict[Pipe, list[int]] = defaultdict(list)
        """The slack of each micro-op that does work, by pipe."""

    def _handed_out(self) -> tuple[list[int], list[int]]:
        """For each micro-op the scalar unit's previous one, and the delay from that to its start.

        The unit issues in order, so no delay is longer than that of a micro-op issued later.
        """
        handed, found = [], NOBODY
        for index, op in enumerate(self.ops):
            handed.append(found)
            found = index if op.pipe == "scalar" else found
        lag = [0] * len(self.ops)
        for scalar, group in groupby(reversed(range(len(self.ops))), key=lambda i: handed[i]):
            since = 0 if scalar == NOBODY else self.free[scalar]
            least = self.last
            for index in group:
                least = lag[index] = min(least, self.start[index] - since)
        return handed, lag

    def _done(self) -> list[int]:
        """For each micro-op, the time of the last result before it on its pipe; for a barrier of
        all pipes, the time of the last result of any pipe."""
        done: dict[Pipe, int] = defaultdict(int)
        found, last = [], 0
        for index, op in enumerate(self.ops):
            is_whole = isinstance(op, Barrier) and op.on is None
            found.append(last if is_whole else done[op.pipe])
            last = max(last, self.free[index])
            if not isinstance(op, ORDERING):
                done[op.pipe] = max(done[op.pipe], self.end[index])
                last = max(last, self.end[index])
        return found


class _Back:
    """Walks back through the micro-ops of the lanes *numbers* of a trace, from the last one."""

    def __init__(self, trace: Trace, numbers: range | list[int]) -> None:
        self.trace = trace
        self.lanes = {number: _Lane(trace.lanes[number], trace.cycles) for number in numbers}
        self._sets: dict[tuple[int, CrossMode, int], list[int]] = defaultdict(list)
        self._turns: dict[tuple[int, int], int] = {}
        """(lane, wait for another core) -> the number of earlier waits for that flag."""
        waits: dict[tuple[int, CrossMode, int], int] = defaultdict(int)
        for number, lane in self.lanes.items():
            for index, op in enumerate(lane.ops):
                if isinstance(op, CrossCoreSetFlag):
                    self._sets[number, op.mode, op.event].append(index)
                elif isinstance(op, CrossCoreWaitFlag):
                    self._turns[number, index] = waits[number, op.mode, op.event]
                    waits[number, op.mode, op.event] += 1
        self._cross_lag = min(map(self._crossing, self._turns), default=0)

    def go(self) -> None:
        """Find the slack of all pipes."""
        order = [
            (lane.free[index], number, index)
            for number, lane in self.lanes.items()
            for index in range(len(lane.ops))
        ]
        # A micro-op frees its pipe no later than the micro-op that waits for it.
        for _, number, index in sorted(order, reverse=True):
            self._at(number, self.lanes[number], index)

    def _at(self, number: int, lane: _Lane, index: int) -> None:
        op = lane.ops[index]
        pipe, start, free = op.pipe, lane.start[index], lane.free[index]
        latest = min(lane.latest_free[index], lane.latest_start[pipe])
        took = free - start
        if isinstance(op, SetFlag | CrossCoreSetFlag):
            seen = lane.latest_flag.get(index, lane.last)
            latest = min(latest, seen)
            self._results(lane, [pipe], seen - took)
        elif isinstance(op, WaitFlag):
            setter = lane.setters[index]
            if setter != NOBODY:
                took = free - max(start, lane.end[setter])
                lane.latest_flag[setter] = latest - took
        elif isinstance(op, CrossCoreWaitFlag):
            for other, setter in self._setters(number, index):
                flags = self.lanes[other].latest_flag
                seen = latest - self._cross_lag
                flags[setter] = min(flags.get(setter, lane.last), seen)
            took = min(took, self._cross_lag)
        elif isinstance(op, Barrier):
            took = free - max(start, lane.done[index])
            pipes: list[Pipe] = [pipe] if op.on else [p for p in style.PIPES if p != "scalar"]
            self._results(lane, pipes, latest - took)
            for each in [] if op.on else pipes:
                lane.latest_start[each] = min(lane.latest_start[each], latest - took)
        else:
            latest = min(latest, lane.latest_end[pipe] - (lane.end[index] - free))
            lane.spare[pipe].append(latest - free)
        lane.latest_start[pipe] = latest - took
        handed = lane.handed[index]
        if handed != NOBODY:
            by = lane.latest_start[pipe] - lane.lag[index]
            lane.latest_free[handed] = min(lane.latest_free[handed], by)

    def _results(self, lane: _Lane, pipes: list[Pipe], by: int) -> None:
        """All results of *pipes* so far must be available by then."""
        for pipe in pipes:
            lane.latest_end[pipe] = min(lane.latest_end[pipe], by)

    def _setters(self, number: int, index: int) -> list[tuple[int, int]]:
        """The sets that end a wait for other cores: lane and micro-op of each."""
        own, turn = self.lanes[number].lane, self._turns[number, index]
        op = own.ops[index]
        assert isinstance(op, CrossCoreWaitFlag)
        found = []
        for other, lane in self.lanes.items():
            sets = self._sets[other, op.mode, op.event]
            if turn < len(sets) and sets_for(lane.lane, own, op.mode):
                found.append((other, sets[turn]))
        return found

    def _crossing(self, wait: tuple[int, int]) -> int:
        """Cycles from the last set of a *wait* to its end; the least of all waits is the cost."""
        number, index = wait
        setters = self._setters(*wait)
        seen = max((self.lanes[other].end[setter] for other, setter in setters), default=0)
        return int(self.lanes[number].free[index] - seen)
