"""Who waited for whom: each wait for a flag with the set that ended it.

The k-th wait for a flag takes its k-th set. What a flag carries follows from the micro-ops around
it: the consumer reads what the producer wrote (`data`), or writes where it had read (`room`).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from npusim.devices.schema import Pipe
from npusim.isa import (
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    Global,
    Local,
    MicroOp,
    SetFlag,
    WaitFlag,
    reads,
    writes,
)
from npusim.trace import ORDERING, LaneTrace, Trace

__all__ = ["Flag", "crossings", "matches", "rows", "what"]

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag from one pipe to another."""

    core: int
    src: Pipe
    dst_core: int
    dst: Pipe
    event: int
    set_us: float
    """When the flag rises: the producer's results before it are there."""
    asked_us: float
    """When the consumer has come to the wait."""
    passed_us: float
    """When the consumer goes on."""
    carries: str
    """As `data in ub`; empty if it does not follow from the micro-ops around it."""

    @property
    def held_us(self) -> float:
        """How long the consumer stood still for it."""
        return max(0.0, self.set_us - self.asked_us)


def matches(ops: tuple[MicroOp, ...]) -> NDArray[np.int64]:
    """For each of *ops*, the number of the set that lets a wait pass, or -1; `(ops,)`."""
    sets: dict[tuple[Pipe, Pipe, int], list[int]] = defaultdict(list)
    waits: dict[tuple[Pipe, Pipe, int], list[int]] = defaultdict(list)
    for index, op in enumerate(ops):
        if isinstance(op, SetFlag):
            sets[op.src, op.dst, op.event].append(index)
        elif isinstance(op, WaitFlag):
            waits[op.src, op.dst, op.event].append(index)
    found = np.full(len(ops), NOBODY)
    for key, waiting in waits.items():
        raised = sets[key][: len(waiting)]
        found[waiting[: len(raised)]] = raised
    return found


def what(ops: tuple[MicroOp, ...], matched: NDArray[np.int64]) -> dict[int, str]:
    """Number of each wait -> what its flag carries, as `data in ub` or `room in l1`."""
    before: dict[int, MicroOp] = {}
    last: dict[Pipe, MicroOp] = {}
    for index, op in enumerate(ops):
        if isinstance(op, SetFlag) and op.src in last:
            before[index] = last[op.src]
        elif not isinstance(op, ORDERING):
            last[op.pipe] = op
    found: dict[int, str] = {}
    following: dict[Pipe, MicroOp] = {}
    for index in range(len(ops) - 1, -1, -1):
        op = ops[index]
        if isinstance(op, WaitFlag):
            producer = before.get(int(matched[index])) if matched[index] != NOBODY else None
            consumer = following.get(op.dst)
            if producer is not None and consumer is not None:
                found[index] = _carried(producer, consumer)
        elif not isinstance(op, ORDERING):
            following[op.pipe] = op
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


def rows(trace: Trace, lane: LaneTrace) -> list[Flag]:
    """The flags inside the first core of *lane*, in program order of their waits."""
    matched = matches(lane.ops)
    carried = what(lane.ops, matched)
    us, core = 1e6 / trace.clock_hz, lane.cores[0]
    found = []
    for index in np.flatnonzero(matched != NOBODY).tolist():
        op = lane.ops[index]
        assert isinstance(op, WaitFlag)
        found.append(
            Flag(
                *(core, op.src, core, op.dst, op.event),
                int(lane.end[matched[index]]) * us,
                int(lane.start[index]) * us,
                int(lane.free[index]) * us,
                carried.get(index, ""),
            )
        )
    return found


def crossings(trace: Trace, lanes: list[LaneTrace]) -> list[Flag]:
    """Flags between cores: each wait with the last set, on another one of *lanes*, that it needs.

    The k-th wait takes the k-th set; who sets and who awaits are of different kinds in mode
    "group", of one kind in mode "all".
    """
    us = 1e6 / trace.clock_hz
    sets = [(lane, _numbered(lane, CrossCoreSetFlag)) for lane in lanes]
    found = []
    for lane in lanes:
        for (mode, event), waits in _numbered(lane, CrossCoreWaitFlag).items():
            others = [
                (other, numbers[mode, event])
                for other, numbers in sets
                if other is not lane
                and (other.kind == lane.kind) == (mode == "all")
                and (mode, event) in numbers
            ]
            for nth, index in enumerate(waits):
                risen = [
                    (int(other.end[numbers[nth]]), other, other.ops[numbers[nth]].pipe)
                    for other, numbers in others
                    if nth < len(numbers) and other.end[numbers[nth]] <= lane.free[index]
                ]
                if risen:
                    end, other, pipe = max(risen, key=lambda setter: setter[0])
                    found.append(
                        Flag(
                            *(other.cores[0], pipe, lane.cores[0], lane.ops[index].pipe, event),
                            end * us,
                            int(lane.start[index]) * us,
                            int(lane.free[index]) * us,
                            f"word from {other.kind}",
                        )
                    )
    return found


def _numbered(lane: LaneTrace, kind: type) -> dict[tuple[str, int], list[int]]:
    """(mode, event) of flags between cores -> numbers of the micro-ops of *kind*."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, op in enumerate(lane.ops):
        if isinstance(op, CrossCoreSetFlag | CrossCoreWaitFlag) and isinstance(op, kind):
            found[op.mode, op.event].append(index)
    return found
