"""Which pipe waited for which: each wait for a flag with the set that ended it.

The k-th wait for a flag takes its k-th set. The meaning of a flag follows from the micro-ops around
it: the consumer reads what the producer wrote (`data`), or overwrites what the producer had read
(`room`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import inf
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from npusim.devices.schema import Pipe
from npusim.isa import (
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    CrossMode,
    Global,
    Local,
    MicroOp,
    SetFlag,
    WaitFlag,
    reads,
    writes,
)
from npusim.kernel.program import Program
from npusim.trace import ORDERING, LaneTrace, Trace

__all__ = ["Flag", "matches", "numbered", "rows", "what"]

NOBODY = -1
CROSS_CORE = CrossCoreSetFlag | CrossCoreWaitFlag
PIPES: tuple[Pipe, ...] = get_args(Pipe)
Numbers = NDArray[np.int64]
"""Indices of micro-ops, in program order."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag from one pipe to another."""

    core: int
    src: Pipe
    dst_core: int
    dst: Pipe
    event: int
    set_us: float
    """When the flag is set: the producer's results before it are available."""
    asked_us: float
    """When the consumer reaches the wait."""
    passed_us: float
    """When the consumer continues."""
    carries: str
    """Its meaning, such as `data in ub`; empty if the micro-ops around it do not show it."""

    @property
    def held_us(self) -> float:
        """How long the consumer stalled for it."""
        return max(0.0, self.set_us - self.asked_us)


def matches(program: Program) -> Numbers:
    """For each micro-op of *program* the index of the set that ends its wait, or -1.

    An array `(ops,)`.
    """
    ops, numbers = program.distinct()
    flags: dict[tuple[Pipe, Pipe, int], int] = {}
    sets, waits = np.full((2, len(ops)), NOBODY)
    for index, op in enumerate(ops):
        if isinstance(op, SetFlag | WaitFlag):
            flag = flags.setdefault((op.src, op.dst, op.event), len(flags))
            (sets if isinstance(op, SetFlag) else waits)[index] = flag
    found = np.full(len(numbers), NOBODY)
    all_sets, all_waits = sets[numbers], waits[numbers]
    for flag in flags.values():
        waiting = np.flatnonzero(all_waits == flag)
        raised = np.flatnonzero(all_sets == flag)[: len(waiting)]
        found[waiting[: len(raised)]] = raised
    return found


def what(program: Program, matched: Numbers) -> dict[int, str]:
    """Index of each wait -> the meaning of its flag, such as `data in ub` or `room in l1`.

    The producer is the micro-op before the set on its pipe, the consumer the one after the wait.
    """
    ops, numbers = program.distinct()
    pipes = np.array(
        [NOBODY if isinstance(op, ORDERING) else PIPES.index(op.pipe) for op in ops], np.int64
    )[numbers]
    works = [np.flatnonzero(pipes == pipe) for pipe in range(len(PIPES))]
    known: dict[tuple[int, int], str] = {}
    found: dict[int, str] = {}
    for wait in np.flatnonzero(matched != NOBODY).tolist():
        op = ops[numbers[wait]]
        assert isinstance(op, WaitFlag)
        before, after = works[PIPES.index(op.src)], works[PIPES.index(op.dst)]
        last = int(before.searchsorted(matched[wait])) - 1
        following = int(after.searchsorted(wait))
        if last >= 0 and following < len(after):
            pair = int(numbers[before[last]]), int(numbers[after[following]])
            if pair not in known:
                known[pair] = _carried(ops[pair[0]], ops[pair[1]])
            found[wait] = known[pair]
    return found


def _carried(producer: MicroOp, consumer: MicroOp) -> str:
    for word, given, taken in (
        ("data", writes(producer), reads(consumer)),
        ("room", reads(producer), writes(consumer)),
    ):
        shared = _buffers(given) & _buffers(taken)
        if shared:
            return f"{word} in {' and '.join(sorted(shared))}"
    return ""


def _buffers(ranges: tuple[Local | Global, ...]) -> frozenset[str]:
    return frozenset(place.buffer for place in ranges if isinstance(place, Local))


def rows(
    trace: Trace,
    lane: LaneTrace,
    *,
    start_us: float = -inf,
    end_us: float = inf,
    least_us: float = -inf,
) -> list[Flag]:
    """The flags inside the first core of *lane*, in program order of their waits.

    Only flags that are set before *end_us* and taken after *start_us*, and for which the consumer
    stalled for more than *least_us*.
    """
    matched = matches(lane.program)
    us, core = 1e6 / trace.clock_hz, lane.cores[0]
    waits = np.flatnonzero(matched != NOBODY)
    set_us, asked_us, passed_us = (
        lane.end[matched[waits]] * us,
        lane.start[waits] * us,
        lane.free[waits] * us,
    )
    seen = (np.maximum(0.0, set_us - asked_us) > least_us) & (passed_us >= start_us)
    seen &= set_us <= end_us
    matched[waits[~seen]] = NOBODY
    carried = what(lane.program, matched)
    times = (each[seen].tolist() for each in (waits, set_us, asked_us, passed_us))
    found = []
    for index, raised, asked, passed in zip(*times, strict=True):
        op = lane.ops[index]
        assert isinstance(op, WaitFlag)
        place = core, op.src, core, op.dst, op.event
        found.append(Flag(*place, raised, asked, passed, carried.get(index, "")))
    return found


def numbered(lane: LaneTrace, kind: type) -> dict[tuple[CrossMode, int], list[int]]:
    """(mode, event) of flags between cores -> indices of the micro-ops of *kind*."""
    ops, numbers = lane.program.distinct()
    flags = np.array([isinstance(op, CROSS_CORE) and isinstance(op, kind) for op in ops], bool)
    found: dict[tuple[CrossMode, int], list[int]] = defaultdict(list)
    for index in np.flatnonzero(flags[numbers]).tolist():
        op = ops[numbers[index]]
        assert isinstance(op, CROSS_CORE)
        found[op.mode, op.event].append(index)
    return found
