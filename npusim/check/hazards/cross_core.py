"""Flags between the cores of a launch: whether each is set in time, and which accesses they order.

The k-th wait for a flag takes the k-th set of each core that it awaits, as in
``check/cross_core_flags``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from functools import cached_property

from npusim.check.cross_core_flags import awaits
from npusim.check.hazards.errors import DeadlockError, FlagError
from npusim.check.hazards.record import (
    Accesses,
    Called,
    Epoch,
    FlagUse,
    Record,
    Recorder,
    has_cross_core_flags,
)
from npusim.check.hazards.rounds import Orders
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag, CrossMode
from npusim.kernel.program import Block, Program

__all__ = ["CrossCoreOrder", "Moment"]

Flag = tuple[CrossMode, int]

MOST_SETS = 16
"""Sets of a flag that a core may not have awaited yet.

Assumed: today's page has the counter go up to 15, an older one allows 16 sets (asc-devkit,
CrossCoreSetFlag(ISASI).md), and the msd kernel, whose ring has two halves of up to 8
slots as the vendor's (ops-nn, weight_quant_batch_matmul_v2, *_msd_split_k.h), sets a flag
16 times ahead.
"""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a core makes some accesses, seen from other cores."""

    accesses: tuple[tuple[dict[str, int], Accesses], ...]
    """Each with by how much its call shifts the names."""
    after: int
    """The sets of its core, a bit each, that come after it: of each pipe all from one on."""
    before: int
    """The sets of the launch that come before it."""


class CrossCoreOrder:
    """The flags between the cores of a launch.

    Raises DeadlockError if one is awaited for ever, FlagError if a core may have to count further
    than it can.
    """

    def __init__(self, blocks: tuple[Block, ...], orders: Orders) -> None:
        recorder = Recorder(orders)
        records: dict[Program, tuple[Record, list[Called]]] = {}
        self._cores: dict[Block, _Core] = {}
        programs = {block.program: None for block in blocks}
        flagged = {program for program in programs if has_cross_core_flags(program)}
        first = 0
        for block in blocks if flagged else ():
            if block.program not in records:
                is_flagged = block.program in flagged
                found = recorder.record(block.program) if is_flagged else (Record(), [])
                records[block.program] = found
            core = self._cores[block] = _Core(block, *records[block.program], first)
            first += core.sets
        self._heard: dict[int, int] = {}
        """Number of a set -> the sets that come before it, a bit each."""
        self._go()
        self._check_counts()

    def of(self, block: Block) -> list[Moment] | None:
        """The accesses of *block* to global memory; None if it has no flags between cores."""
        core = self._cores.get(block)
        if core is None or not core.record.flags:
            return None
        return [Moment(core.accesses(x), x.sets, core.heard(x.waits)) for x in core.record.epochs]

    def sets_of(self, block: Block) -> tuple[int, list[int]]:
        """Where the sets of *block* begin among those of the launch, and which a pipe makes.

        The latter for each pipe that makes any, a bit each from that place on. They come one after
        the other, so two moments are ordered if the first set of a pipe that comes after the one
        is not behind the last of these that comes before the other.
        """
        core = self._cores.get(block)
        return (core.first, core.sets_of_pipes) if core else (0, [])

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

    def _check_counts(self) -> None:
        """Raise FlagError if a set may come before a wait that makes room for it in the counter."""
        for core in self._cores.values():
            for mode, sources in self._sources(core.block).items():
                flags = {flag for source in sources for flag in source.sets_of if flag[0] == mode}
                for flag in sorted(flags):
                    self._check_count(core, flag, sources)

    def _check_count(self, core: _Core, flag: Flag, sources: list[_Core]) -> None:
        # A core counts one as soon as all that it waits for have set the flag once more.
        turns = zip(*(source.sets_of.get(flag, []) for source in sources), strict=False)
        for ordinal, sets in enumerate(turns):
            if ordinal < MOST_SETS:
                continue
            later = core.sets_after(flag, ordinal - MOST_SETS)
            # The wait is over before one of them: the core has told of it.
            if not any(later & (self._heard[number] | 1 << number) for number in sets):
                source = sources[-1]
                raise FlagError(_too_many(source, source.uses[sets[-1]].index, core))

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

    def __init__(self, block: Block, found: Record, calls: list[Called], first: int) -> None:
        self.block, self.record, self._calls, self.first = block, found, calls, first
        self.lanes: dict[str, deque[FlagUse]] = {}
        self.uses: dict[int, FlagUse] = {}
        """Its sets, by their numbers in the launch."""
        self.sets_of: dict[Flag, list[int]] = {}
        """Flag -> its sets, by their numbers in the launch."""
        self.waits_of: dict[Flag, list[int]] = {}
        """Flag -> its waits, by their numbers in the core."""
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
                self.uses[first + use.number] = use
            else:
                self.waits_of.setdefault(flag, []).append(use.number)
                self.ordinals.append(counts.get(flag, 0))
                counts[flag] = self.ordinals[-1] + 1
        self.sets = sum(len(sets) for sets in self.sets_of.values())
        self.learnt = [0] * len(self.ordinals)
        """For each wait, the sets that come before its end, a bit each."""
        self._heard: dict[int, int] = {}
        """Waits that are over -> the sets that come before their end."""
        self._latest = 0, 0
        """The last of these."""

    @cached_property
    def sets_of_pipes(self) -> list[int]:
        """For each pipe that sets flags the numbers of these sets in the core, a bit each."""
        found: dict[str, int] = {}
        for use in self.uses.values():
            found[use.op.pipe] = found.get(use.op.pipe, 0) | 1 << use.number
        return list(found.values())

    def sets_after(self, flag: Flag, ordinal: int) -> int:
        """Its sets that come after wait number *ordinal* for *flag*, a bit each."""
        waits = self.waits_of.get(flag, [])
        if ordinal >= len(waits):
            return 0
        later = 0
        for lane in self._sets_of_lanes:
            # What a pipe has waited for only grows, so all sets after the first one that follows.
            at = bisect_left(lane, True, key=lambda x: bool(x[0].waits >> waits[ordinal] & 1))
            later |= lane[at][1] if at < len(lane) else 0
        return later

    @cached_property
    def _sets_of_lanes(self) -> list[list[tuple[FlagUse, int]]]:
        """For each pipe its sets, each with a bit for itself and all that follow."""
        lanes: dict[str, list[tuple[FlagUse, int]]] = {}
        for number, use in sorted(self.uses.items(), reverse=True):
            lane = lanes.setdefault(use.op.pipe, [])
            lane.append((use, 1 << number | (lane[-1][1] if lane else 0)))
        return [lane[::-1] for lane in lanes.values()]

    def heard(self, waits: int) -> int:
        """The sets that come before the end of *waits*, which are over, a bit each."""
        if waits not in self._heard:
            # Most of them are those that were asked about before.
            known, heard = self._latest
            if known & ~waits:
                known = heard = 0
            rest = waits & ~known
            while rest:
                lowest = rest & -rest
                heard |= self.learnt[lowest.bit_length() - 1]
                rest ^= lowest
            self._heard[waits], self._latest = heard, (waits, heard)
        return self._heard[waits]

    def accesses(self, epoch: Epoch) -> tuple[tuple[dict[str, int], Accesses], ...]:
        """What it touches in *epoch*."""
        touched = []
        for call, number in epoch.touched:
            shifts, accesses = self._calls[call]
            touched.append((shifts, accesses[number]))
        return tuple(touched)


def _too_many(source: _Core, index: int, core: _Core) -> str:
    """What to say of micro-op *index* of *source*, which *core* may not be able to count."""
    block = source.block
    op = block.program.ops[index]
    return (
        f"{block.program.name}: a core counts up to {MOST_SETS} sets of a flag that it has not "
        f"awaited, but #{index} {op.pipe}: {op} on core {block.core} may be one more for core "
        f"{core.block.core}; let core {block.core} wait for core {core.block.core} before"
    )
