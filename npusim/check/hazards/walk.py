"""The walk: runs a program pipe by pipe as the chip does, untimed, with vector clocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from npusim.check.hazards import areas
from npusim.check.hazards.accesses import Access, Key, Touches, is_race, shared_names
from npusim.check.hazards.aliases import NO_ALIASES, Aliases
from npusim.check.hazards.areas import Area
from npusim.check.hazards.errors import (
    Clash,
    DeadlockError,
    FlagError,
    RaceError,
    complain,
    deadlock,
    left_over,
    race,
    still_up,
)
from npusim.check.hazards.flags import Flag, awaited, flag_of_pair, raised
from npusim.devices.schema import Pipe
from npusim.isa import Barrier, Fixpipe, MicroOp, Mmad, SetFlag, WaitFlag
from npusim.kernel.program import Program

__all__ = ["SCALAR_READS", "ClashError", "Clock", "Walk", "walk"]

Clock = dict[str, int]
"""How many micro-ops of each pipe are over, at least; for SCALAR_READS, of the reads of scalar."""
SCALAR_READS = "scalar reads"
"""A read of the scalar unit is over at once, but a write is only on its way.

So a micro-op that it issues follows its reads, but needs a flag to follow its writes (asc-devkit,
SetFlag/WaitFlag(ISASI).md: a DataCopy that follows a SetValue needs one from S to MTE3).
"""


@dataclass(slots=True)
class _Page:
    """A pipe's accesses to one page: of equal ranges only the latest, which is sufficient."""

    latest: int = 0
    """Sequence of the latest access."""
    accesses: dict[tuple[Area, str | None], Access] = field(default_factory=dict)


@dataclass(slots=True)
class _Lane:
    """One pipe: its queue, its vector clock, and its accesses."""

    pipe: Pipe
    queue: deque[tuple[int, Clock]] = field(default_factory=deque)
    """Indices of micro-ops, each with what the scalar unit knew when it issued it."""
    clock: Clock = field(default_factory=dict)
    drained: int = 0
    """Sequence up to which its results are available: advanced by its barriers."""
    at_issue: Clock = field(default_factory=dict)
    """What the scalar unit knew when it issued its latest micro-op."""
    touched: dict[Key, _Page] = field(default_factory=dict)
    latest: int = 0
    """Sequence of the latest access to any page."""

    def add(self, access: Access) -> None:
        self.latest = access.sequence
        for key in access.keys(access.is_write):
            page = self.touched.setdefault(key, _Page())
            page.latest = access.sequence
            page.accesses[access.area, access.adds] = access

    def take(self, other: _Lane) -> None:
        """Take over the state of *other*, with an empty queue."""
        self.clock, self.drained, self.at_issue = other.clock.copy(), other.drained, other.at_issue
        self.latest = other.latest
        self.touched = {
            key: _Page(page.latest, page.accesses.copy()) for key, page in other.touched.items()
        }

    def learn(self, clock: Clock) -> None:
        """Continue after everything that is over according to *clock*."""
        _join(self.clock, clock)
        # This includes its own work up to a point, whose results are available.
        self.drained = max(self.drained, clock.get(self.pipe, 0))


def walk(program: Program, aliases: Aliases = NO_ALIASES) -> list[int]:
    """Indices of the micro-ops in an order that the chip could take, in program order if possible.

    Raises RaceError, naming both micro-ops, the buffer and the bytes; DeadlockError, naming each
    waiting pipe and its flag; FlagError, naming the flags that are left set.
    """
    found = Walk(program, aliases)
    try:
        found.go()
    except ClashError:
        # Repeat with the clocks of all micro-ops, from which the remedy follows.
        found = Walk(program, aliases, keeps_clocks=True)
        try:
            found.go()
        except ClashError as clash:
            raise RaceError(found.explain(clash)) from None
    return found.done


class ClashError(Exception):
    """Accesses that race with the latest one; ends the walk."""

    def __init__(self, clashes: list[tuple[Access, Access]]) -> None:
        super().__init__()
        self.clashes = clashes


class Walk:
    """A walk of *program*; *pipes* are those of its micro-ops, in order of appearance."""

    def __init__(
        self,
        program: Program,
        aliases: Aliases = NO_ALIASES,
        keeps_clocks: bool = False,
        pipes: Iterable[Pipe] = (),
    ) -> None:
        self.program, self.aliases = program, aliases
        self.ops: Sequence[MicroOp] = program.ops
        self.done: list[int] = []
        self.lanes: dict[Pipe, _Lane] = {
            pipe: _Lane(pipe) for pipe in pipes or dict.fromkeys(op.pipe for op in self.ops)
        }
        self.scalar = self.lanes.setdefault("scalar", _Lane("scalar"))
        self.shared = frozenset(shared_names(self.ops, aliases))
        """Names of global memory in which pipes can clash."""
        self.flags: dict[Flag, deque[Clock]] = {}
        self.raisers: dict[Flag, deque[int]] = {}
        """Flag -> the micro-ops that set it and have not been matched by a wait."""
        self.up: dict[Flag, int] = {}
        """Flag -> how many more sets than waits have been issued."""
        self.clocks: list[Clock] | None = [{}] * len(self.ops) if keeps_clocks else None
        """The clock of each micro-op, itself included."""
        self.at_issue: Clock = {}
        """What precedes every micro-op that the scalar unit issues now."""
        self.next = 0

    def go_on_from(self, other: Walk) -> None:
        """Take over the state of *other*, which later steps of this walk do not affect."""
        for pipe, lane in other.lanes.items():
            self.lanes[pipe].take(lane)
        self.flags = {flag: clocks.copy() for flag, clocks in other.flags.items()}
        self.raisers = {flag: numbers.copy() for flag, numbers in other.raisers.items()}
        self.up, self.at_issue = other.up.copy(), other.at_issue

    def go(self) -> None:
        total = len(self.ops)
        while len(self.done) < total:
            before = len(self.done), self.next
            self._dispatch()
            for lane in self.lanes.values():
                while lane.queue and self.step(lane, *lane.queue[0]):
                    lane.queue.popleft()
            if (len(self.done), self.next) == before:
                waiting = [lane.queue[0][0] for lane in self.lanes.values() if lane.queue]
                if self.next < total:
                    waiting.append(self.next)
                raise DeadlockError(deadlock(self.program, waiting))
        left = [
            list(raisers)
            for raisers in self.raisers.values()
            # Flags between cores are counted over all cores.
            if raisers and isinstance(self.ops[raisers[0]], SetFlag)
        ]
        if left:
            raise FlagError(left_over(self.program, left))

    def _dispatch(self) -> None:
        """Advance the scalar unit through the program, issuing micro-ops of other pipes."""
        ops = self.ops
        while self.next < len(ops):
            op = ops[self.next]
            if op.pipe != "scalar":
                lane = self.lanes[op.pipe]
                # Its pipe is idle, so it starts at once, in program order.
                if lane.queue or not self.step(lane, self.next, self.at_issue):
                    lane.queue.append((self.next, self.at_issue))
            elif not self.step(self.scalar, self.next, self.at_issue):
                return
            else:
                self.tell()
            if isinstance(op, SetFlag | WaitFlag):
                self._pair(op, self.next)
            self.next += 1

    def _pair(self, op: SetFlag | WaitFlag, index: int) -> None:
        """Check that issued sets and waits of a flag alternate."""
        # A wait clears the flag (asc-devkit, SetFlag/WaitFlag(ISASI).md), and no page says how many
        # sets accumulate. A pipe may still run ahead: FetchEventID gives each pair one event.
        up = self.up.get(flag_of_pair(op), 0) + (1 if isinstance(op, SetFlag) else -1)
        if up > 1:
            complain(FlagError(still_up(self.program, index)))
        self.up[flag_of_pair(op)] = up

    def tell(self) -> None:
        """Record what the scalar unit knows, which precedes everything it issues from now on."""
        self.scalar.clock[SCALAR_READS] = self.scalar.clock["scalar"]
        self.at_issue = self.scalar.clock | {"scalar": self.scalar.drained}

    def step(self, lane: _Lane, index: int, at_issue: Clock) -> bool:
        """Execute one micro-op, issued with knowledge *at_issue*, unless it must wait."""
        op = self.ops[index]
        flag = awaited(op)
        if flag is not None:
            clocks = self.flags.get(flag)
            if not clocks:
                return False
            lane.learn(clocks.popleft())
            self.raisers[flag].popleft()
        is_full_barrier = isinstance(op, Barrier) and op.on is None
        if is_full_barrier and any(other.queue for other in self.lanes.values()):
            return False
        if at_issue is not lane.at_issue and lane is not self.scalar:
            lane.learn(at_issue)
            lane.at_issue = at_issue
        lane.clock[op.pipe] = lane.clock.get(op.pipe, 0) + 1
        if self.clocks is not None:
            self.clocks[index] = dict(lane.clock)
        flag = raised(op)
        if flag is not None:
            self.flags.setdefault(flag, deque()).append(dict(lane.clock))
            self.raisers.setdefault(flag, deque()).append(index)
        elif isinstance(op, Barrier) and op.on is not None:
            lane.drained = lane.clock[op.pipe]
        elif is_full_barrier:
            # All clocks become their maximum: everything earlier precedes everything later.
            for other in self.lanes.values():
                _join(self.scalar.clock, other.clock)
            for other in self.lanes.values():
                other.learn(self.scalar.clock)
        else:
            self._touch(lane, op, index)
        self.done.append(index)
        return True

    def touches(self, op: MicroOp) -> Touches:
        """The accesses of *op*."""
        return Touches.of(op, self.shared, self.aliases)

    def _touch(self, lane: _Lane, op: MicroOp, index: int) -> None:
        sequence = lane.clock[op.pipe]
        touches = self.touches(op)
        accesses = [
            Access(area, sequence, is_write, index, adds) for area, is_write, adds in touches.areas
        ]
        clashing = touches.clashing
        clashes: list[tuple[Access, Access]] = []
        for other in self.lanes.values():
            if other is lane:
                continue
            known = lane.clock.get(other.pipe, 0)
            if other.latest > known:
                clashes += self._clashes(clashing, accesses, other, known, lane)
        # asc-devkit, PipeBarrier(ISASI).md: the vector pipe does not wait for its own results.
        if op.pipe == "vector" and lane.latest > lane.drained:
            clashes += self._clashes(clashing, accesses, lane, lane.drained, lane)
        if clashes:
            raise ClashError(clashes)
        for access in accesses:
            lane.add(access)

    def _clashes(
        self,
        clashing: Iterable[tuple[Key, int]],
        accesses: list[Access],
        other: _Lane,
        known: int,
        lane: _Lane,
    ) -> list[tuple[Access, Access]]:
        """The races of *accesses* with those that *other* made after its first *known* micro-ops.

        *clashing* has the keys of these, and the index of the access they clash with.
        """
        found: list[tuple[Access, Access]] = []
        for key, number in clashing:
            page = other.touched.get(key)
            if page is None or page.latest <= known:
                continue
            done, access = known, accesses[number]
            if other is self.scalar and not key[1]:
                done = lane.clock.get(SCALAR_READS, 0)
            found += [
                (past, access)
                for past in page.accesses.values()
                if past.sequence > done
                and is_race(past, access)
                and not (past.sequence - 1 == known > 0 and self._hands_over(past, access))
            ]
        return found

    def _hands_over(self, past: Access, access: Access) -> bool:
        """Whether the unit flag of L0C orders an Mmad and a Fixpipe that run concurrently.

        *past* must directly follow what is known to be over: the set of a flag.
        """
        ops = [self.ops[each.op] for each in (past, access)]
        is_pair = {type(op) for op in ops} == {Mmad, Fixpipe} and past.area.place == "l0c"
        return is_pair and all(isinstance(op, Mmad | Fixpipe) and op.unit_flag for op in ops)

    def explain(self, found: ClashError) -> str:
        """The message for a race, with the flags and barriers that remove it."""
        assert self.clocks is not None
        _, access = found.clashes[0]
        latest: dict[Pipe, tuple[Access, Access]] = {}
        for past, now in found.clashes:
            pipe = self.ops[past.op].pipe
            if pipe not in latest or latest[pipe][0].sequence < past.sequence:
                latest[pipe] = past, now
        # An access that precedes another one needs no flag of its own.
        last = [
            (past, now)
            for pipe, (past, now) in latest.items()
            if not any(
                self.clocks[other.op].get(pipe, 0) >= past.sequence
                for other, _ in latest.values()
                if other is not past
            )
        ]
        rank = {index: number for number, index in enumerate(self.done)}
        last.sort(key=lambda clash: -rank[clash[0].op])
        clashes = [Clash(past.op, self._where(past, now)) for past, now in last]
        return race(self.program, clashes, access.op, self.aliases)

    @staticmethod
    def _where(past: Access, now: Access) -> str:
        shared = areas.common(past.area, now.area)
        assert shared is not None
        return f"{now.area.place}[{shared[0]}:{shared[1]}]"


def _join(into: Clock, other: Clock) -> None:
    for pipe, count in other.items():
        if into.get(pipe, 0) < count:
            into[pipe] = count
