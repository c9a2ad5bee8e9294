"""Which flags between cores come before and after each access of a program to global memory.

Waits, sets and epochs are numbered, and a set of them is an integer with a bit each, so that the
union of two is one operation. An *epoch* is all accesses with the same waits before and the same
sets after them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from npusim.check.hazards.walk import Flag, awaited, raised
from npusim.devices.schema import Pipe
from npusim.isa import (
    Barrier,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    MicroOp,
    SetFlag,
    WaitFlag,
    global_operand,
)
from npusim.kernel.program import Body, Program

__all__ = ["Epoch", "FlagUse", "Record", "has_cross_core_flags", "record"]


@dataclass(slots=True)
class Epoch:
    """Accesses that follow the same waits and come before the same sets."""

    waits: int
    sets: int = 0
    accesses: list[tuple[int, MicroOp]] = field(default_factory=list)
    """Number of the call, and the micro-op without the call's shifts."""


@dataclass(frozen=True, slots=True)
class FlagUse:
    """A set or a wait of a flag between cores, and the waits of its core that come before it."""

    op: CrossCoreSetFlag | CrossCoreWaitFlag
    index: int
    waits: int
    number: int
    """Among the sets, or the waits, of its core."""


@dataclass(slots=True)
class Record:
    """What a program does with flags between cores, in an order that the core could take."""

    flags: list[FlagUse] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)


@dataclass(slots=True)
class _Lane:
    waits: int = 0
    epochs: int = 0
    current: Epoch | None = None


def has_cross_core_flags(program: Program) -> bool:
    """Whether *program* sets or awaits flags between cores."""
    kinds = CrossCoreSetFlag, CrossCoreWaitFlag
    return any(isinstance(op, kinds) for body in program.leaves for op in body)


def record(program: Program, order: Sequence[int]) -> Record:
    """Play *program* in *order*, which must be one that its flags allow."""
    player = _Player(follows_dispatch=isinstance(order, range))
    if player.follows_dispatch:
        start = 0
        ordering: dict[Body, list[tuple[int, MicroOp]]] = {}
        for number, call in enumerate(program.calls):
            if call.body not in ordering:
                ordering[call.body] = [x for x in enumerate(call.body) if _matters(x[1])]
            for index, op in ordering[call.body]:
                player.play(op, number, start + index)
            start += len(call.body)
    else:
        written_out = [(number, op) for number, x in enumerate(program.calls) for op in x.ops]
        for index in order:
            number, op = written_out[index]
            if _matters(op):
                player.play(op, number, index)
    return player.finish()


def _matters(op: MicroOp) -> bool:
    orders = SetFlag | WaitFlag | CrossCoreSetFlag | CrossCoreWaitFlag
    return isinstance(op, orders) or op == Barrier() or global_operand(op) is not None


class _Player:
    def __init__(self, follows_dispatch: bool) -> None:
        self.follows_dispatch = follows_dispatch
        """Whether micro-ops come in program order, so that a pipe learns what the scalar unit has.

        It always learns what that had learnt when it handed out the micro-op; only in program
        order is that all that the scalar unit has learnt by now.
        """
        self.record = Record()
        self.lanes: dict[Pipe, _Lane] = {"scalar": _Lane()}
        self.flags: dict[Flag, deque[tuple[int, int]]] = {}
        self.covers: list[int] = []
        """For each set of a flag, the epochs that come before it, a bit each."""
        self.waits = 0

    def play(self, op: MicroOp, call: int, index: int) -> None:
        lane = self.lanes.setdefault(op.pipe, _Lane())
        if self.follows_dispatch:
            scalar = self.lanes["scalar"]
            self._learn(lane, scalar.waits, scalar.epochs)
        if isinstance(op, CrossCoreSetFlag | CrossCoreWaitFlag):
            self._use_flag(op, lane, index)
        flag = awaited(op)
        if flag is not None:
            self._learn(lane, *self.flags[flag].popleft())
        flag = raised(op)
        if flag is not None:
            self.flags.setdefault(flag, deque()).append((lane.waits, lane.epochs))
            lane.current = None
        elif isinstance(op, Barrier):
            for other in self.lanes.values():
                self._learn(lane, other.waits, other.epochs)
            for other in self.lanes.values():
                self._learn(other, lane.waits, lane.epochs)
                other.current = None
        elif global_operand(op) is not None:
            self._touch(op, lane, call)

    def _learn(self, lane: _Lane, waits: int, epochs: int) -> None:
        if waits | lane.waits != lane.waits:
            lane.waits |= waits
            lane.current = None
        lane.epochs |= epochs

    def _use_flag(self, op: CrossCoreSetFlag | CrossCoreWaitFlag, lane: _Lane, index: int) -> None:
        lane.current = None
        if isinstance(op, CrossCoreSetFlag):
            number = len(self.covers)
            self.covers.append(lane.epochs)
        else:
            number = self.waits
            self.waits += 1
        self.record.flags.append(FlagUse(op, index, lane.waits, number))
        if isinstance(op, CrossCoreWaitFlag):
            lane.waits |= 1 << number

    def _touch(self, op: MicroOp, lane: _Lane, call: int) -> None:
        if lane.current is None:
            lane.current = Epoch(lane.waits)
            lane.epochs |= 1 << len(self.record.epochs)
            self.record.epochs.append(lane.current)
        lane.current.accesses.append((call, op))

    def finish(self) -> Record:
        for number, covered in enumerate(self.covers):
            while covered:
                lowest = covered & -covered
                self.record.epochs[lowest.bit_length() - 1].sets |= 1 << number
                covered ^= lowest
        alike: dict[tuple[int, int], Epoch] = {}
        for epoch in self.record.epochs:
            known = alike.setdefault((epoch.waits, epoch.sets), epoch)
            if known is not epoch:
                known.accesses += epoch.accesses
        self.record.epochs = list(alike.values())
        return self.record
