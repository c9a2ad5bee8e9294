"""Flags between the cores of a launch: whether each is set in time, and what they order.

The k-th wait for a flag consumes the k-th set of each core that it waits for, as in
``check/cross_core_flags``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from npusim.check.cross_core_flags import awaits
from npusim.check.hazards.errors import DeadlockError, FlagError
from npusim.check.hazards.exchange import MOST_SETS
from npusim.check.hazards.pasts import Epoch, Record, Touched
from npusim.check.hazards.record import Called, Recorder, has_cross_core_flags
from npusim.devices.schema import Pipe
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag, CrossMode
from npusim.kernel.program import Block, Program

__all__ = ["CrossCoreOrder", "Moment"]

Flag = tuple[CrossMode, int]
PIPES: tuple[Pipe, ...] = get_args(Pipe)
Counts = tuple[int, ...]
"""A count for each of PIPES."""
Clock = NDArray[np.int32]
"""How many sets of each pipe of each core precede something, `(setters,)`.

If a set precedes something, all earlier sets of its pipe do.
"""
SetOf = tuple[int, int]
"""A set: the number of its setter, which is a pipe of a core, and its index on that setter."""

_NO_RECORD = Record(), Called([], (), np.zeros((0, 0), np.int64))
"""The record of a program without flags between cores."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The position of some accesses of a core, as seen from other cores."""

    touched: Sequence[Touched]
    """The accesses, among those of the calls of its program."""
    after: tuple[SetOf, ...]
    """The first set of each setter of its core that follows."""
    before: Clock
    """The sets that precede it."""


class CrossCoreOrder:
    """The flags between the cores of a launch.

    Raises DeadlockError if a wait never ends, FlagError if a core may have to count further than
    it can.
    """

    def __init__(self, blocks: tuple[Block, ...], recorder: Recorder) -> None:
        records: dict[Program, tuple[_Uses, Called]] = {}
        counted: dict[int, tuple[Record, _Uses]] = {}
        self._cores: dict[Block, _Core] = {}
        programs = {block.program: None for block in blocks}
        flagged = {program for program in programs if has_cross_core_flags(program)}
        setters = 0
        for block in blocks if flagged else ():
            if block.program not in records:
                is_flagged = block.program in flagged
                found, calls = recorder.record(block.program) if is_flagged else _NO_RECORD
                if id(found) not in counted:
                    counted[id(found)] = found, _Uses(found)
                records[block.program] = counted[id(found)][1], calls
            core = self._cores[block] = _Core(block, *records[block.program], setters)
            setters += len(core.setters)
        self._nothing: Clock = np.zeros(setters, np.int32)
        self._heard: list[list[Clock]] = [[] for _ in range(setters)]
        """For each set of each setter so far, the sets that precede it."""
        self._over: dict[object, Clock] = {}
        """What cores learn by waiting for a set of the same cores."""
        self._go()
        self._check_counts()

    def of(self, block: Block) -> tuple[list[Moment], Called] | None:
        """The moments at which *block* accesses global memory, and the accesses of its calls.

        None if it has no flags between cores.
        """
        core = self._cores.get(block)
        if core is None or not core.uses.flags:
            return None
        if core.moments is None:
            core.moments = [
                Moment(epoch.touched, core.first_sets(sets), self._known(core, waits))
                for epoch, waits, sets in core.uses.epochs
            ]
        return core.moments, core.called

    def _known(self, core: _Core, waits: Counts) -> Clock:
        """The sets that precede the end of *waits* of *core*."""
        known = core.known.get(waits)
        if known is None:
            known = self._nothing
            for learnt, count in zip(core.learnt, waits, strict=True):
                if count:
                    known = _joined(known, learnt[count - 1])
            core.known[waits] = known
        return known

    def _go(self) -> None:
        cores = list(self._cores.values())
        sources = {core.block: self._sources(core.block) for core in cores}
        # Until nothing advances. Flags are counted, so the order of the cores does not matter.
        moved = True
        while moved:
            moved = False
            for core in cores:
                for lane in core.lanes.values():
                    while lane and self._step(core, lane[0], sources[core.block]):
                        lane.popleft()
                        moved = True
        if any(any(core.lanes.values()) for core in cores):
            raise DeadlockError(self._deadlock(sources))

    def _check_counts(self) -> None:
        """Raise FlagError if a set may precede a wait that makes room for it in the counter."""
        for core in self._cores.values():
            for mode, sources in self._sources(core.block).items():
                flags = {flag for source in sources for flag in source.sets_of if flag[0] == mode}
                for flag in sorted(flags):
                    self._check_count(core, flag, sources)

    def _check_count(self, core: _Core, flag: Flag, sources: list[_Core]) -> None:
        # A core counts one when all cores that it waits for have set the flag once more.
        turns = zip(*(source.sets_of.get(flag, []) for source in sources), strict=False)
        for ordinal, sets in enumerate(turns):
            if ordinal < MOST_SETS:
                continue
            later = core.sets_after(flag, ordinal - MOST_SETS)
            # If the wait ends before one of them, the core has announced it.
            if not any(self._follows(each, later) for each in sets):
                source = sources[-1]
                raise FlagError(_too_many(source, source.of_set[sets[-1]].index, core))

    def _follows(self, each: SetOf, firsts: tuple[SetOf, ...]) -> bool:
        """Whether a set is one of *firsts*, or follows one of them."""
        setter, number = each
        heard = self._heard[setter][number]
        return any(
            heard[other] > first or (other == setter and number >= first) for other, first in firsts
        )

    def _sources(self, block: Block) -> dict[CrossMode, list[_Core]]:
        """Mode -> the cores whose sets *block* waits for."""
        modes: tuple[CrossMode, ...] = get_args(CrossMode)
        cores = self._cores.values()
        return {mode: [x for x in cores if awaits(block, mode, x.block)] for mode in modes}

    def _step(self, core: _Core, use: _Use, sources: dict[CrossMode, list[_Core]]) -> bool:
        for pipe, count in use.needs:
            if count > len(core.learnt[pipe]):
                return False
        place = PIPES.index(use.op.pipe)
        if isinstance(use.op, CrossCoreSetFlag):
            self._heard[core.setters[place]].append(self._known(core, use.waits))
            return True
        heard = self._awaited(core, use, sources)
        if heard is None:
            return False
        learnt = core.learnt[place]
        learnt.append(_joined(learnt[-1], heard) if learnt else heard)
        return True

    def _awaited(
        self, core: _Core, use: _Use, sources: dict[CrossMode, list[_Core]]
    ) -> Clock | None:
        """The sets that precede the end of a wait; None while one that it needs is missing."""
        flag = use.op.mode, use.op.event
        ordinal = core.ordinals[PIPES.index(use.op.pipe)][use.number]
        group = core.block.group if use.op.mode != "all" else None
        key = flag, ordinal, core.block.kind, group
        if key not in self._over:
            sets: list[SetOf] = []
            for source in sources[use.op.mode]:
                of_flag = source.sets_of.get(flag, [])
                if ordinal >= len(of_flag):
                    return None
                setter, number = of_flag[ordinal]
                if number >= len(self._heard[setter]):
                    return None
                sets.append((setter, number))
            if not sets:
                return None
            # Many share the same clock object.
            heard = {id(x): x for x in (self._heard[setter][number] for setter, number in sets)}
            over = np.maximum.reduce(list(heard.values()))
            for setter, number in sets:
                over[setter] = max(over[setter], number + 1)
            self._over[key] = over
        return self._over[key]

    def _deadlock(self, sources: dict[Block, dict[CrossMode, list[_Core]]]) -> str:
        stuck = [
            f"core {core.block.core} {lane[0].op.pipe} at "
            f"{core.block.program.numbered(lane[0].index)}: {lane[0].op}"
            for core in self._cores.values()
            for lane in core.lanes.values()
            if lane
            and isinstance(lane[0].op, CrossCoreWaitFlag)
            and self._awaited(core, lane[0], sources[core.block]) is None
        ]
        name = next(x.block for x in self._cores.values() if any(x.lanes.values())).program.name
        return (
            f"{name}: every awaited flag between cores must be set, but these wait for ever: "
            f"{'; '.join(stuck)}; set the flag on the cores that they wait for"
        )


@dataclass(frozen=True, slots=True)
class _Use:
    """A set or a wait of a flag between cores, relative to its pipe."""

    op: CrossCoreSetFlag | CrossCoreWaitFlag
    index: int
    waits: Counts
    """How many waits of each pipe of its core precede it."""
    needs: tuple[tuple[int, int], ...]
    """The non-zero ones, each with the index of its pipe in PIPES."""
    number: int
    """Index among the sets, or the waits, of its pipe."""


class _Uses:
    """A record, counted by pipe.

    What a pipe has waited for, and what precedes its sets, only grows, so a count identifies it.
    """

    def __init__(self, found: Record) -> None:
        masks = {kind: dict.fromkeys(PIPES, 0) for kind in (CrossCoreSetFlag, CrossCoreWaitFlag)}
        numbers = []
        for use in found.flags:
            of_pipe = masks[type(use.op)]
            numbers.append(of_pipe[use.op.pipe].bit_count())
            of_pipe[use.op.pipe] |= 1 << use.number
        waits = tuple(masks[CrossCoreWaitFlag].values())
        sets = tuple(masks[CrossCoreSetFlag].values())
        self.flags = []
        for use, number in zip(found.flags, numbers, strict=True):
            counts = _counts(use.waits, waits)
            needs = tuple([(place, count) for place, count in enumerate(counts) if count])
            self.flags.append(_Use(use.op, use.index, counts, needs, number))
        self.epochs: list[tuple[Epoch, Counts, Counts]] = [
            (epoch, _counts(epoch.waits, waits), _counts(~epoch.sets, sets))
            for epoch in found.epochs
        ]
        """With the waits that precede each, and the sets that do not follow it."""


def _counts(bits: int, masks: tuple[int, ...]) -> Counts:
    return tuple([(bits & mask).bit_count() for mask in masks])


class _Core:
    """A core of the launch: flags that it still has to set or wait for, and what it has learnt."""

    def __init__(self, block: Block, uses: _Uses, called: Called, first_setter: int) -> None:
        self.block, self.uses, self.called = block, uses, called
        self.lanes: dict[str, deque[_Use]] = {}
        self.setters: dict[int, int] = {}
        """Index in PIPES of a pipe that sets flags -> its number among the setters."""
        self.of_set: dict[SetOf, _Use] = {}
        self.sets_of: dict[Flag, list[SetOf]] = {}
        """Flag -> its sets."""
        self.waits_of: dict[Flag, list[tuple[int, int]]] = {}
        """Flag -> its waits: the indices of their pipes, and their indices on them."""
        self.ordinals: list[list[int]] = [[] for _ in PIPES]
        """For each wait of each pipe, how many preceded it for the same flag."""
        for use in uses.flags:
            flag, place = (use.op.mode, use.op.event), PIPES.index(use.op.pipe)
            self.lanes.setdefault(use.op.pipe, deque()).append(use)
            if isinstance(use.op, CrossCoreSetFlag):
                setter = self.setters.setdefault(place, first_setter + len(self.setters))
                self.sets_of.setdefault(flag, []).append((setter, use.number))
                self.of_set[setter, use.number] = use
            else:
                waits = self.waits_of.setdefault(flag, [])
                self.ordinals[place].append(len(waits))
                waits.append((place, use.number))
        self.learnt: list[list[Clock]] = [[] for _ in PIPES]
        """For each wait of each pipe that has ended, the sets that precede its end."""
        self.known: dict[Counts, Clock] = {}
        """The same for several waits together."""
        self.moments: list[Moment] | None = None
        self._waits_of_sets: dict[tuple[int, int], list[int]] = {}

    def first_sets(self, counts: Counts) -> tuple[SetOf, ...]:
        """The sets that follow *counts* of each pipe, for each setter that has one."""
        return tuple([(setter, counts[place]) for place, setter in self.setters.items()])

    def sets_after(self, flag: Flag, ordinal: int) -> tuple[SetOf, ...]:
        """The first set of each setter that follows wait number *ordinal* for *flag*."""
        waits = self.waits_of.get(flag, [])
        if ordinal >= len(waits):
            return ()
        place, number = waits[ordinal]
        # What a pipe has waited for only grows.
        return tuple(
            [
                (setter, bisect_right(self._waited(setter, place), number))
                for setter in self.setters.values()
            ]
        )

    def _waited(self, setter: int, place: int) -> list[int]:
        """For each set of *setter*, how many waits of the pipe at *place* precede it."""
        found = self._waits_of_sets.get((setter, place))
        if found is None:
            uses = [use for (other, _), use in self.of_set.items() if other == setter]
            found = self._waits_of_sets[setter, place] = [use.waits[place] for use in uses]
        return found


def _joined(a: Clock, b: Clock) -> Clock:
    """The elementwise maximum; one of the two objects if it is the maximum throughout."""
    if a is b or bool((b >= a).all()):
        return b
    return a if bool((a >= b).all()) else np.maximum(a, b)


def _too_many(source: _Core, index: int, core: _Core) -> str:
    """The message for micro-op *index* of *source*, which *core* may not be able to count."""
    block = source.block
    op = block.program.ops[index]
    return (
        f"{block.program.name}: a core counts up to {MOST_SETS} sets of a flag that it has not "
        f"awaited, but {block.program.numbered(index)} {op.pipe}: {op} on core {block.core} may be "
        f"one more for core {core.block.core}; "
        f"let core {block.core} wait for core {core.block.core} before"
    )
