"""Flags between cores that are still set when a launch ends.

A core's counter of a flag increases by one when every core that it waits for has set the flag once
more (``check/cross_core_flags``), and each of its waits decreases it by one. So nothing is left if
all cores that set a flag do so as often as each receiving core waits for it. This depends on counts
alone, whatever the order of the cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from npusim.check.cross_core_flags import awaits
from npusim.check.hazards import FlagError
from npusim.check.rules.contents import where
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag, CrossMode
from npusim.kernel.program import Block, Body, Program
from npusim.kernel.table import Calls

__all__ = ["check_left_over"]

Flag = tuple[CrossMode, int]
Uses = Counter[tuple[type, Flag]]
"""(set or wait, flag) -> number of them in a program."""


def check_left_over(blocks: tuple[Block, ...]) -> None:
    """Raise FlagError, naming cores, micro-op and flag, if a flag between *blocks* stays set.

    No wait may be endless; ``hazards.CrossCoreOrder`` reports one that is.
    """
    bodies: dict[Body, Uses] = {}
    programs = {program: _uses(program, bodies) for program in {x.program: None for x in blocks}}
    known: set[tuple[Flag, str, int | None]] = set()
    of_group: dict[int, list[Block]] = {}
    for block in blocks:
        of_group.setdefault(block.group, []).append(block)
    for block in blocks:
        for kind, (mode, event) in programs[block.program]:
            key = (mode, event), block.kind, block.group if mode != "all" else None
            if kind is CrossCoreSetFlag and key not in known:
                known.add(key)
                near = of_group[block.group] if mode == "group" else blocks
                found = _Exchange.of(block, (mode, event), near, programs)
                if found.is_left_over:
                    raise FlagError(found.text())


def _uses(program: Program, bodies: dict[Body, Uses]) -> Uses:
    """The flag uses of *program*; *bodies* caches those seen before."""
    calls = Calls.of(program)
    often = np.bincount(calls.body, minlength=len(calls.bodies)).tolist()
    found: Uses = Counter()
    for body, count in zip(calls.bodies, often, strict=True):
        for use, each in _uses_of(body, bodies).items() if count else ():
            found[use] += count * each
    return found


def _uses_of(body: Body, bodies: dict[Body, Uses]) -> Uses:
    if body not in bodies:
        found: Uses = Counter()
        for call in body.calls:
            found.update(_uses_of(call.body, bodies))
        for op in () if body.calls or not body.has_cross_core_flags else body:
            if isinstance(op, CrossCoreSetFlag | CrossCoreWaitFlag):
                found[type(op), (op.mode, op.event)] += 1
        bodies[body] = found
    return bodies[body]


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A flag, and how often each of the cores that share it sets it and waits for it."""

    flag: Flag
    sets: dict[Block, int]
    waits: dict[Block, int]
    """All cores whose counters those sets increment."""

    @staticmethod
    def of(
        source: Block, flag: Flag, blocks: Sequence[Block], programs: dict[Program, Uses]
    ) -> _Exchange:
        """The exchange in which *source* sets *flag*, which only *blocks* may wait for."""
        mode, _ = flag
        receivers = [block for block in blocks if awaits(block, mode, source)]
        sources = [
            block for block in blocks if any(awaits(other, mode, block) for other in receivers[:1])
        ]
        sets = {x: programs[x.program][CrossCoreSetFlag, flag] for x in sources or [source]}
        return _Exchange(
            flag, sets, {x: programs[x.program][CrossCoreWaitFlag, flag] for x in receivers}
        )

    @property
    def is_left_over(self) -> bool:
        return not self.waits or len({*self.sets.values(), *self.waits.values()}) > 1

    def text(self) -> str:
        """The message: the first set without a wait on some core, all counts, and the remedy.

        The remedy removes the last sets, and appends waits after all others, so that neither
        changes which wait consumes which set.
        """
        mode, event = self.flag
        ordinal = min(self.waits.values(), default=0)
        source = next(block for block, count in self.sets.items() if count > ordinal)
        place, op = _set(source.program, self.flag, ordinal)
        heard = (
            f"awaited {_listed(self.waits, _often)}"
            if self.waits
            else "awaited by no core of the launch"
        )
        return (
            f"{place} {op.pipe}: {op} on core {source.core}: a flag between cores must be awaited "
            f"as often as it is set, on each core whose counter it raises, but {mode} {event} is "
            f"set {_listed(self.sets, _often)} and {heard}; {self._remedy()}"
        )

    def _remedy(self) -> str:
        awaited = max(self.waits.values(), default=0)
        most = max(self.sets.values())
        extra = {x: count - awaited for x, count in self.sets.items() if count > awaited}
        ways = []
        # A set that others have not made increments no counter, so it needs no wait.
        if self.waits and len({*self.sets.values()}) == 1:
            ways.append(self._await(most))
        if extra:
            sets = _listed(
                extra, lambda count: f"its last {f'{count} sets' if count > 1 else 'set'}"
            )
            more = self._await(awaited)
            ways.append(f"leave out {sets}, and {more}" if more else f"leave out {sets}")
        return ", or ".join(ways)

    def _await(self, often: int) -> str:
        """How to make all receivers wait for it *often* times; empty if they do."""
        missing = {x: often - count for x, count in self.waits.items() if count < often}
        more = _listed(missing, lambda count: f"{_often(count)} more")
        return f"await it at the end {more}" if missing else ""


def _set(program: Program, flag: Flag, ordinal: int) -> tuple[str, CrossCoreSetFlag]:
    """Set *ordinal* of *flag*, and its location."""
    written_out = (
        (op, call.lines[index] if call.lines else None)
        for call in program.calls
        for index, op in enumerate(call.ops)
    )
    sets = (
        (where(program.name, number, line), op)
        for number, (op, line) in enumerate(written_out)
        if isinstance(op, CrossCoreSetFlag) and (op.mode, op.event) == flag
    )
    return next(islice(sets, ordinal, None))


def _often(count: int) -> str:
    return {0: "0 times", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _listed(counts: dict[Block, int], said: Callable[[int], str]) -> str:
    """The text for each count, with the cores that have it."""
    found: dict[int, list[int]] = {}
    for block, count in counts.items():
        found.setdefault(count, []).append(block.core)
    return " and ".join(f"{said(count)} on {_cores(cores)}" for count, cores in found.items())


def _cores(cores: list[int]) -> str:
    *others, last = map(str, sorted(cores))
    return f"cores {', '.join(others)} and {last}" if others else f"core {last}"
