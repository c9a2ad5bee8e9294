"""Flags between the cores of a launch: whether each is set, and which accesses they order.

The k-th wait for a flag takes the k-th set of each core that it awaits, as in
``check/cross_core_flags``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from npusim.check.cross_core_flags import awaits
from npusim.check.hazards.errors import DeadlockError
from npusim.check.hazards.record import Epoch, FlagUse, Record, has_cross_core_flags, record
from npusim.check.hazards.rounds import Orders
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag, CrossMode
from npusim.kernel.program import Block

__all__ = ["CrossCoreOrder", "Moment"]

Flag = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Moment:
    """When a core makes some accesses, seen from other cores."""

    epoch: Epoch
    after: int
    """The sets of the launch, a bit each, that come after it."""
    before: int
    """The sets that come before it."""

    def is_ordered(self, other: Moment) -> bool:
        """Whether flags order it and *other*, of another core, either way round."""
        return bool(self.after & other.before or other.after & self.before)


class CrossCoreOrder:
    """The flags between the cores of a launch; raises DeadlockError if one is awaited for ever."""

    def __init__(self, blocks: tuple[Block, ...], orders: Orders) -> None:
        records: dict[object, Record] = {}
        self._cores: dict[Block, _Core] = {}
        programs = {block.program: None for block in blocks}
        flagged = {program for program in programs if has_cross_core_flags(program)}
        first = 0
        for block in blocks if flagged else ():
            found = Record()
            # In program order, programs with equal bodies share one record.
            if block.program in flagged:
                order = orders.of(block.program)
                in_order = isinstance(order, range)
                key = orders.sequence(block.program) if in_order else block.program
                if key not in records:
                    records[key] = record(block.program, order)
                found = records[key]
            core = self._cores[block] = _Core(block, found, first)
            first += core.sets
        self._heard: dict[int, int] = {}
        """Number of a set -> the sets that come before it, a bit each."""
        self._go()

    def of(self, block: Block) -> list[Moment] | None:
        """The accesses of *block* to global memory; None if it has no flags between cores."""
        core = self._cores.get(block)
        if core is None or not core.record.flags:
            return None
        epochs = core.record.epochs
        return [Moment(x, x.sets << core.first, core.heard(x.waits)) for x in epochs]

    def _go(self) -> None:
        cores = list(self._cores.values())
        sources = {core.block: self._sources(core.block) for core in cores}
        # Until nothing moves. Flags are counted, so the order of the cores makes no difference.
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

    def _sources(self, block: Block) -> dict[CrossMode, list[_Core]]:
        """Mode -> the cores whose sets *block* awaits."""
        modes: tuple[CrossMode, ...] = ("all", "group")
        cores = self._cores.values()
        return {mode: [x for x in cores if awaits(block, mode, x.block)] for mode in modes}

    def _step(self, core: _Core, use: FlagUse, sources: dict[CrossMode, list[_Core]]) -> bool:
        if use.waits & ~core.done:
            return False
        if isinstance(use.op, CrossCoreSetFlag):
            self._heard[core.first + use.number] = core.heard(use.waits)
            return True
        heard = self._awaited(core, use, sources)
        if heard is None:
            return False
        core.learnt[use.number] = heard
        core.done |= 1 << use.number
        return True

    def _awaited(
        self, core: _Core, use: FlagUse, sources: dict[CrossMode, list[_Core]]
    ) -> int | None:
        """The sets that come before the end of a wait; None while one that it needs is missing."""
        flag = use.op.mode, use.op.event
        ordinal = core.ordinals[use.number]
        heard = 0
        for source in sources[use.op.mode]:
            sets = source.sets_of.get(flag, [])
            if ordinal >= len(sets) or sets[ordinal] not in self._heard:
                return None
            heard |= 1 << sets[ordinal] | self._heard[sets[ordinal]]
        return heard or None

    def _deadlock(self, sources: dict[Block, dict[CrossMode, list[_Core]]]) -> str:
        stuck = [
            f"core {core.block.core} {lane[0].op.pipe} at #{lane[0].index}: {lane[0].op}"
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


class _Core:
    """A core of the launch: the flags that it still has to set or await, and what it has learnt."""

    def __init__(self, block: Block, found: Record, first: int) -> None:
        self.block, self.record, self.first = block, found, first
        self.lanes: dict[str, deque[FlagUse]] = {}
        self.sets_of: dict[Flag, list[int]] = {}
        """Flag -> its sets, by their numbers in the launch."""
        self.ordinals: list[int] = []
        """For each wait how many came before it for the same flag."""
        self.done = 0
        """The waits that are over."""
        counts: dict[Flag, int] = {}
        for use in found.flags:
            flag = use.op.mode, use.op.event
            self.lanes.setdefault(use.op.pipe, deque()).append(use)
            if isinstance(use.op, CrossCoreSetFlag):
                self.sets_of.setdefault(flag, []).append(first + use.number)
            else:
                self.ordinals.append(counts.get(flag, 0))
                counts[flag] = self.ordinals[-1] + 1
        self.sets = sum(len(sets) for sets in self.sets_of.values())
        self.learnt = [0] * len(self.ordinals)
        """For each wait, the sets that come before its end, a bit each."""

    def heard(self, waits: int) -> int:
        """The sets that come before the end of *waits*, a bit each."""
        heard = 0
        while waits:
            lowest = waits & -waits
            heard |= self.learnt[lowest.bit_length() - 1]
            waits ^= lowest
        return heard
