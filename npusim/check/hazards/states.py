"""States of a walk between two bodies, so that each continuation is walked once.

The effect of a body on a walk depends only on the state before it: which accesses are not known to
be over yet, and to whom; which flags are set, and what they convey. A state seen before leads where
it led before, so a program is walked once per distinct pair of state and body, of which steady
loops, nested loops and sequences of other lengths have few. This is exact: two states are the same
only if no micro-op could distinguish them, see :meth:`BodyWalk.state`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import get_args

from npusim.check.hazards.accesses import Touches
from npusim.check.hazards.flags import flag_of_pair
from npusim.check.hazards.walk import SCALAR_READS, ClashError, Clock, Walk
from npusim.devices.schema import Pipe
from npusim.isa import Fixpipe, MicroOp, Mmad, SetFlag, WaitFlag, global_operand
from npusim.kernel.program import Body, Program

__all__ = ["START", "BodyWalk", "States"]

PIPES: tuple[Pipe, ...] = get_args(Pipe)
HAND_OVER: tuple[Pipe, ...] = "cube", "fixpipe"
"""Pipes whose unit flag makes it matter whether micro-ops are adjacent."""
START = 0
"""The number of the initial state."""


class States:
    """The states that walks have reached, by number, and the effect of bodies on them.

    They are those of programs that use *pipes* and no others, several of which touch *shared*
    names of global memory, none of which is shifted by a call.
    """

    def __init__(
        self,
        pipes: frozenset[Pipe],
        shared: frozenset[str] = frozenset(),
        touches: dict[int, Touches] | None = None,
        of_buffers: dict[int, Touches] | None = None,
    ) -> None:
        """*touches* has the accesses of micro-ops by address, if known in advance; *of_buffers*
        those of micro-ops that touch no shared names.
        """
        used = tuple(pipe for pipe in PIPES if pipe in pipes)
        first = BodyWalk(used, shared, {} if touches is None else touches, of_buffers or {})
        self._walks = [first]
        self._numbers: dict[Hashable, int] = {first.state(): START}

    def after(self, state: int, body: Body) -> int | None:
        """The state that *body* leads to from *state*.

        None if one of its micro-ops would have to wait, or races: then program order is not
        certain.
        """
        walk = self._walks[state].copied()
        return self._number(walk) if walk.passes(body) else None

    def is_even(self, state: int) -> bool:
        """Whether no flag within a core is set."""
        return not any(self._walks[state].up.values())

    def _number(self, walk: BodyWalk) -> int:
        walk.forget()
        number = self._numbers.setdefault(walk.state(), len(self._walks))
        if number == len(self._walks):
            self._walks.append(walk)
        return number


class BodyWalk(Walk):
    """A walk of body after body, in which each micro-op starts without waiting.

    Of global memory only accesses to *shared* names count: only these are touched by several pipes.
    """

    def __init__(
        self,
        used: tuple[Pipe, ...],
        shared: frozenset[str],
        touches: dict[int, Touches],
        of_buffers: dict[int, Touches],
    ) -> None:
        super().__init__(Program("walk", ()), pipes=PIPES)
        self.shared = shared
        self._used = used
        """The pipes that later micro-ops may use."""
        self.ops: list[MicroOp] = []
        """The micro-ops of this walk and of those that share the list."""
        self._touches = touches
        """The accesses of each of them, by its address: the list keeps them alive."""
        self._of_buffers = of_buffers

    def copied(self) -> BodyWalk:
        """A walk that continues from here without affecting this one."""
        other = BodyWalk(self._used, self.shared, self._touches, self._of_buffers)
        other.ops = self.ops
        other.go_on_from(self)
        return other

    def touches(self, op: MicroOp) -> Touches:
        found = self._touches.get(id(op))
        if found is None:
            place = global_operand(op)
            is_shared = place is not None and place.name in self.shared
            found = None if is_shared else self._of_buffers.get(id(op))
            found = self._touches[id(op)] = found or super().touches(op)
        return found

    def passes(self, body: Body) -> bool:
        """Walk *body*; return whether each of its micro-ops starts at once, and none races."""
        for op in body:
            index = len(self.ops)
            self.ops.append(op)
            if isinstance(op, SetFlag) and self.up.get(flag_of_pair(op)):
                return False  # It has not been waited for yet.
            try:
                if not self.step(self.lanes[op.pipe], index, self.at_issue):
                    return False
            except ClashError:
                return False
            if op.pipe == "scalar":
                self.tell()
            if isinstance(op, SetFlag | WaitFlag):
                self.up[flag_of_pair(op)] = int(isinstance(op, SetFlag))
        return True

    def forget(self) -> None:
        """Drop accesses that are over for every pipe: later micro-ops cannot race with them."""
        lanes = [self.lanes[pipe] for pipe in self._used]
        others = len(lanes) - 1
        for pipe, lane in zip(self._used if others else (), lanes, strict=False):
            # Each pipe learns what the scalar unit knows with the next micro-op issued to it.
            known = [
                max(other.clock.get(key, 0), self.at_issue.get(key, 0))
                for key in ((pipe, SCALAR_READS) if pipe == "scalar" else (pipe,))
                for other in lanes
                if other is not lane
            ]
            written, read = min(known[:others]), min(known[-others:])
            if pipe == "vector":
                # It does not wait for its own results either.
                written = read = min(written, max(lane.drained, self.at_issue.get(pipe, 0)))
            for key in list(lane.touched):
                page, over = lane.touched[key], written if key[1] else read
                left = {x: access for x, access in page.accesses.items() if access.sequence > over}
                if not left:
                    del lane.touched[key]
                elif len(left) < len(page.accesses):
                    page.accesses = left

    def state(self) -> Hashable:
        """Everything that a later micro-op could depend on: equal for walks that continue alike.

        A number means that all accesses up to it are over, and no others. So the count of stored
        accesses that are over can replace it, except where adjacent ones may follow each other.
        """
        used = self._used
        ranks: dict[str, Callable[[int], int]] = {pipe: self._rank_of(pipe) for pipe in used}
        if "scalar" in used:
            ranks[SCALAR_READS] = ranks["scalar"]

        def reduced(clock: Clock) -> Hashable:
            return tuple([rank(clock.get(key, 0)) for key, rank in ranks.items()])

        lanes = []
        for pipe in used:
            lane = self.lanes[pipe]
            touched = frozenset(
                (key, area, adds, _kind(self.ops[access.op]), ranks[pipe](access.sequence))
                for key, page in lane.touched.items()
                for (area, adds), access in page.accesses.items()
            )
            lanes.append((reduced(lane.clock), ranks[pipe](lane.drained), touched))
        flags = [
            (flag, tuple(map(reduced, clocks))) for flag, clocks in self.flags.items() if clocks
        ]
        up = frozenset(flag for flag, count in self.up.items() if count)
        return tuple(lanes), frozenset(flags), up, reduced(self.at_issue)

    def _rank_of(self, pipe: Pipe) -> Callable[[int], int]:
        """The replacement for an index of a micro-op of *pipe*."""
        if pipe in HAND_OVER:
            return _ranks(self._numbers_of(pipe)).__getitem__
        pages = self.lanes[pipe].touched.values()
        kept = sorted({access.sequence for page in pages for access in page.accesses.values()})
        return partial(bisect_right, kept)

    def _numbers_of(self, pipe: Pipe) -> set[int]:
        """All indices of micro-ops of *pipe* that are stored anywhere."""
        clocks = [lane.clock for lane in self.lanes.values()]
        clocks += [clock for waiting in self.flags.values() for clock in waiting]
        clocks.append(self.at_issue)
        keys = (pipe, SCALAR_READS) if pipe == "scalar" else (pipe,)
        found = {clock.get(key, 0) for clock in clocks for key in keys}
        lane = self.lanes[pipe]
        found.add(lane.drained)
        found.update(
            access.sequence for page in lane.touched.values() for access in page.accesses.values()
        )
        return found


def _ranks(numbers: Iterable[int]) -> dict[int, int]:
    """Index -> its replacement, which stays adjacent to neighbours at distance 1; 0 stays 0."""
    ranks = {0: 0}
    last = 0
    for number in sorted(numbers):
        if number not in ranks:
            ranks[number] = ranks[last] + min(number - last, 2)
            last = number
    return ranks


def _kind(op: MicroOp) -> Hashable:
    """What a later access may need to know of *op*: its unit flag."""
    return (type(op), op.unit_flag) if isinstance(op, Mmad | Fixpipe) else None
