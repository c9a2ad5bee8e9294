"""The walk: a program played pipe by pipe as the chip does, untimed, with vector clocks."""

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
"""How many micro-ops of each pipe are over, at least; under SCALAR_READS those read by."""
SCALAR_READS = "scalar reads"
"""What the scalar unit has read it has, but what it writes is only on its way.

So a micro-op that it issues follows its reads, and its writes by a flag alone (asc-devkit,
SetFlag/WaitFlag(ISASI).md: a DataCopy that follows a SetValue needs one from S to MTE3).
"""


@dataclass(slots=True)
class _Page:
    """What a pipe touched in one page: of equal ranges only the latest access, which suffices."""

    latest: int = 0
    """Sequence of the latest access."""
    accesses: dict[tuple[Area, str | None], Access] = field(default_factory=dict)


@dataclass(slots=True)
class _Lane:
    """One pipe: what is still queued, its vector clock, what it touched."""

    pipe: Pipe
    queue: deque[tuple[int, Clock]] = field(default_factory=deque)
    """Numbers of micro-ops, each with what the scalar unit knew when it handed it out."""
    clock: Clock = field(default_factory=dict)
    drained: int = 0
    """Sequence up to which its results are there: moved on by its barriers."""
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
        """Stand where *other* stands, with nothing queued."""
        self.clock, self.drained, self.at_issue = other.clock.copy(), other.drained, other.at_issue
        self.latest = other.latest
        self.touched = {
            key: _Page(page.latest, page.accesses.copy()) for key, page in other.touched.items()
        }

    def learn(self, clock: Clock) -> None:
        """Go on after what *clock* says is over."""
        _join(self.clock, clock)
        # So much of its own work is among it: the results of that are there.
        self.drained = max(self.drained, clock.get(self.pipe, 0))


def walk(program: Program, aliases: Aliases = NO_ALIASES) -> list[int]:
    """Indices of the micro-ops in an order that the chip could take, program order where it can.

    Raises RaceError, naming both micro-ops, the buffer and the bytes; DeadlockError, naming each
    waiting pipe and its flag; FlagError, naming the flags that are left over.
    """
    found = Walk(program, aliases)
    try:
        found.go()
    except ClashError:
        # Once more, with the clocks of all micro-ops, which say what to do about it.
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
    """A walk of *program*; *pipes* are those of its micro-ops, in the order of appearance."""

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
        """Names of global memory where pipes can clash."""
        self.flags: dict[Flag, deque[Clock]] = {}
        self.raisers: dict[Flag, deque[int]] = {}
        """Flag -> the micro-ops that raised it and were not answered."""
        self.up: dict[Flag, int] = {}
        """Flag -> how many more sets than waits of it have been issued."""
        self.clocks: list[Clock] | None = [{}] * len(self.ops) if keeps_clocks else None
        """What came before each micro-op, and itself."""
        self.at_issue: Clock = {}
        """What every micro-op follows that the scalar unit issues now."""
        self.next = 0

    def go_on_from(self, other: Walk) -> None:
        """Stand where *other* stands; what this one does from here on leaves it untouched."""
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
        """The scalar unit goes through the program and issues what is not its own."""
        ops = self.ops
        while self.next < len(ops):
            op = ops[self.next]
            if op.pipe != "scalar":
                lane = self.lanes[op.pipe]
                # Nothing ahead of it in its pipe: it goes at once, in program order.
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
        """Hold against each other what is issued: sets and waits of a flag take turns."""
        # A wait lowers the flag (asc-devkit, SetFlag/WaitFlag(ISASI).md), and no page says how many
        # sets add up. A pipe may run ahead all the same: FetchEventID gives each pair one event.
        up = self.up.get(flag_of_pair(op), 0) + (1 if isinstance(op, SetFlag) else -1)
        if up > 1:
            complain(FlagError(still_up(self.program, index)))
        self.up[flag_of_pair(op)] = up

    def tell(self) -> None:
        """Note what the scalar unit knows, which what it issues from now on follows."""
        self.scalar.clock[SCALAR_READS] = self.scalar.clock["scalar"]
        self.at_issue = self.scalar.clock | {"scalar": self.scalar.drained}

    def step(self, lane: _Lane, index: int, at_issue: Clock) -> bool:
        """Execute one micro-op, issued when *at_issue* was known, if it need not wait."""
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
            # All clocks become their maximum: everything before comes before everything after.
            for other in self.lanes.values():
                _join(self.scalar.clock, other.clock)
            for other in self.lanes.values():
                other.learn(self.scalar.clock)
        else:
            self._touch(lane, op, index)
        self.done.append(index)
        return True

    def touches(self, op: MicroOp) -> Touches:
        """What *op* touches."""
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

        *clashing* says where these are found, and with which of the accesses.
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
        """Whether the unit flag of L0C orders an Mmad and a Fixpipe that run along with each other.

        For a *past* one directly behind what is known to be over: the set of a flag.
        """
        ops = [self.ops[each.op] for each in (past, access)]
        is_pair = {type(op) for op in ops} == {Mmad, Fixpipe} and past.area.place == "l0c"
        return is_pair and all(isinstance(op, Mmad | Fixpipe) and op.unit_flag for op in ops)

    def explain(self, found: ClashError) -> str:
        """What races, and which flags and barriers put an end to it."""
        assert self.clocks is not None
        _, access = found.clashes[0]
        latest: dict[Pipe, tuple[Access, Access]] = {}
        for past, now in found.clashes:
            pipe = self.ops[past.op].pipe
            if pipe not in latest or latest[pipe][0].sequence < past.sequence:
                latest[pipe] = past, now
        # What comes before another of them needs no flag of its own.
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
