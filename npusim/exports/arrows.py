"""Arrows from the sets of flags to the waits that take them."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

from npusim.exports.listing import Listing
from npusim.exports.names import Place, lane_of
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag, MicroOp, SetFlag, WaitFlag
from npusim.kernel.program import Body
from npusim.trace import LaneTrace, Trace

__all__ = ["Arrow", "Arrows"]


class Arrow(NamedTuple):
    """One end of an arrow."""

    number: int
    """The same at both ends, and nowhere else."""
    is_start: bool
    title: str
    """The vendor's name of the flag: `MTE2ToMTE1`."""
    is_first: bool
    """Whether it comes before the other end in the file."""
    after: int
    """The time in ns of the other end, if that was drawn and is the start; else 0."""


Key = tuple[int, int, Hashable]
"""The core that sets, the core that waits, and the flag."""


class Arrows:
    """Numbers the arrows of a trace whose cores are visited one after the other, in program order.

    Flags are counted: the k-th wait takes the k-th set. For a flag of mode "all", which blocks
    every core until the last one has set it, arrows start only from that last core. An arrow from a
    flag without a wait has no end, and tools do not draw it.
    """

    def __init__(
        self, trace: Trace, listing: Listing, places: dict[int, Place], *, is_whole: bool = True
    ) -> None:
        """In a summary (not *is_whole*), no arrow goes from one core to another."""
        self._is_whole = is_whole
        self._trace, self._places = trace, places
        self._count = 0
        self._open: dict[tuple[Key, bool], deque[int]] = defaultdict(deque)
        self._drawn: dict[int, int] = {}
        """Arrow of which only the start is drawn -> its time in ns."""
        self._rounds: Counter[tuple[int, int, bool]] = Counter()
        """(core, event, set or wait) -> the count, for flags of mode "all"."""
        self._last = _last_setters(trace, listing) if is_whole else {}

    def of(self, core: int, op: MicroOp) -> list[Arrow]:
        """The ends of arrows at *op* on *core*."""
        if self._is_whole:
            return list(self._feet(core, op))
        if isinstance(op, CrossCoreSetFlag | CrossCoreWaitFlag):
            return []
        # An arrow is complete if its start was drawn, or if its end will be drawn.
        return [
            foot
            for foot in self._feet(core, op)
            if (foot.is_start if foot.is_first else foot.after)
        ]

    def skip(self, core: int, op: SetFlag | WaitFlag) -> None:
        """Record that *op* runs on *core*, but is not drawn."""
        list(self._feet(core, op))

    def draw(self, arrow: Arrow, at: int) -> None:
        """Record that the start of *arrow* is drawn *at* ns."""
        if arrow.is_start and arrow.is_first:
            self._drawn[arrow.number] = at

    def _feet(self, core: int, op: MicroOp) -> Iterator[Arrow]:
        match op:
            case SetFlag(src, dst, event) | WaitFlag(src, dst, event):
                title = f"{lane_of(src)}To{lane_of(dst)}"
                yield self._foot((core, core, (src, dst, event)), isinstance(op, SetFlag), title)
            case CrossCoreSetFlag(event=event) | CrossCoreWaitFlag(event=event):
                is_set = isinstance(op, CrossCoreSetFlag)
                for other in self._others(core, op, is_set):
                    ends = (core, other) if is_set else (other, core)
                    yield self._foot((*ends, (op.mode, event)), is_set, "CoreToCore")

    def _foot(self, key: Key, is_start: bool, title: str) -> Arrow:
        waiting = self._open[key, not is_start]
        if waiting:
            number = waiting.popleft()
            return Arrow(number, is_start, title, False, self._drawn.pop(number, 0))
        self._count += 1
        self._open[key, is_start].append(self._count)
        return Arrow(self._count, is_start, title, True, 0)

    def _others(
        self, core: int, op: CrossCoreSetFlag | CrossCoreWaitFlag, is_set: bool
    ) -> Iterable[int]:
        kind, group = self._trace.kind(core), self._places[core].group
        if op.mode != "all":
            return [
                other
                for other, place in self._places.items()
                if place.group == group and (self._trace.kind(other) == kind) is (op.mode == "pair")
            ]
        number = self._rounds[core, op.event, is_set]
        self._rounds[core, op.event, is_set] += 1
        setters = self._last[kind, op.event]
        setter = setters[number] if number < len(setters) else core
        if not is_set:
            return [setter]
        alike = [other for other in self._places if self._trace.kind(other) == kind]
        return alike if setter == core else []


def _last_setters(trace: Trace, listing: Listing) -> dict[tuple[str, int], list[int]]:
    """(kind, event) -> for each round of a flag of mode "all", the core that sets it last."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for lane in trace.lanes if any(_is_for_all(line.op) for line in listing.lines) else ():
        rounds: Counter[int] = Counter()
        for index, op in _for_all(lane):
            ends = found[lane.kind, op.event]
            mine = int(lane.end[index]), lane.cores[0]
            if rounds[op.event] == len(ends):
                ends.append(mine)
            else:
                ends[rounds[op.event]] = max(ends[rounds[op.event]], mine)
            rounds[op.event] += 1
    return {key: [core for _, core in ends] for key, ends in found.items()}


def _for_all(lane: LaneTrace) -> Iterator[tuple[int, CrossCoreSetFlag]]:
    """Indices of the sets of flags of mode "all", in program order."""
    known: dict[Body, list[tuple[int, CrossCoreSetFlag]]] = {}
    begin = 0
    for body in lane.program.called:
        if body not in known:
            known[body] = [
                (index, op)
                for index, op in enumerate(body)
                if isinstance(op, CrossCoreSetFlag) and _is_for_all(op)
            ]
        yield from ((begin + index, op) for index, op in known[body])
        begin += len(body)


def _is_for_all(op: MicroOp) -> bool:
    return isinstance(op, CrossCoreSetFlag) and op.mode == "all"
