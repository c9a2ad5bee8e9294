"""Races and deadlocks: does the order that the flags impose make a program's values certain?

Pipes run at their own speed, so two micro-ops on different pipes are ordered only by a chain of set
and awaited flags (or a full barrier). :func:`order` walks a program pipe by pipe as the chip does,
untimed, and keeps a vector clock for each pipe: how far each other pipe had come, at least, when
this one went on. Two micro-ops on different pipes that touch the same bytes, one of them writing,
without the clock of the one knowing of the other, are a race. So are two on the vector pipe, which
starts a micro-op before the last one's results are there, with no barrier between them
(asc-devkit, PipeBarrier(ISASI).md). A walk that cannot go on is a
deadlock. Neither depends on how long anything takes, so what passes here holds on every device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from npusim.isa import (
    Barrier,
    Global,
    Load,
    Local,
    MicroOp,
    SetFlag,
    Store,
    WaitFlag,
    reads,
    writes,
)
from npusim.program import Program
from npusim.spec import Pipe

__all__ = ["DeadlockError", "RaceError", "deadlock", "order"]

Flag = tuple[Pipe, Pipe, int]
Clock = dict[Pipe, int]
Key = tuple[str, bool, int]
"""Place, whether written, and page: only accesses that share a page need to be compared."""


class RaceError(RuntimeError):
    """Two micro-ops touch the same bytes in an order that nothing decides."""


class DeadlockError(RuntimeError):
    """A pipe waits for a flag that nobody will set."""


@dataclass(frozen=True, slots=True)
class _Access:
    sequence: int
    place: str
    start: int
    end: int
    is_write: bool
    index: int
    bursts: Global | None = None
    """The pieces that are really touched, where there are gaps."""

    def keys(self, is_write: bool) -> tuple[Key, ...]:
        """Where it is found, or where writes or reads that may clash with it are."""
        return _keys(self.place, is_write, self.start, self.end, self.bursts is None)


@lru_cache(maxsize=4096)
def _keys(place: str, is_write: bool, start: int, end: int, is_local: bool) -> tuple[Key, ...]:
    """The pages of a range: of 4 KiB in a buffer, of 1 MiB in global memory."""
    shift = 12 if is_local else 20
    pages = range(start >> shift, (end - 1 >> shift) + 1)
    return tuple((place, is_write, page) for page in pages)


@dataclass(slots=True)
class _Page:
    """What a pipe touched in one page: of equal ranges, the latest access says it all."""

    latest: int = 0
    """Sequence of the latest access."""
    accesses: dict[tuple[int, int, Global | None], _Access] = field(default_factory=dict)


@dataclass(slots=True)
class _Lane:
    """One pipe: what it still has to do, what it knows, what it touched."""

    queue: deque[int] = field(default_factory=deque)
    clock: Clock = field(default_factory=dict)
    drained: int = 0
    """Sequence up to which its results are there: moved on by its barriers."""
    touched: dict[Key, _Page] = field(default_factory=dict)

    def add(self, access: _Access) -> None:
        for key in access.keys(access.is_write):
            page = self.touched.setdefault(key, _Page())
            page.latest = access.sequence
            page.accesses[access.start, access.end, access.bursts] = access


def order(program: Program) -> Sequence[int]:
    """Indices of the micro-ops in an order that the chip could take, program order where it can.

    Raises RaceError, naming both micro-ops, the buffer and the bytes; DeadlockError, naming each
    waiting pipe and its flag.
    """
    walk = _Walk(program)
    walk.go()
    in_order = range(len(program))
    return in_order if walk.done == list(in_order) else tuple(walk.done)


class _Walk:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.done: list[int] = []
        self.lanes: dict[Pipe, _Lane] = {}
        for op in program.ops:
            self.lanes.setdefault(op.pipe, _Lane())
        self.scalar = self.lanes.setdefault("scalar", _Lane())
        loaded = {op.src.name for op in program.ops if isinstance(op, Load)}
        stored = {op.dst.name for op in program.ops if isinstance(op, Store)}
        self.both_ways = loaded & stored
        """Names of global memory that are read and written; no others can clash."""
        self.flags: dict[Flag, deque[Clock]] = {}
        self.next = 0

    def go(self) -> None:
        total = len(self.program.ops)
        while len(self.done) < total:
            before = len(self.done), self.next
            self._dispatch()
            for lane in self.lanes.values():
                while lane.queue and self._step(lane, lane.queue[0]):
                    lane.queue.popleft()
            if (len(self.done), self.next) == before:
                waiting = [lane.queue[0] for lane in self.lanes.values() if lane.queue]
                if self.next < total:
                    waiting.append(self.next)
                raise DeadlockError(deadlock(self.program, waiting))

    def _dispatch(self) -> None:
        """The scalar unit goes through the program and hands out what is not its own."""
        ops = self.program.ops
        while self.next < len(ops):
            op = ops[self.next]
            if op.pipe != "scalar":
                lane = self.lanes[op.pipe]
                # Nothing ahead of it in its pipe: it goes at once, so that program order is kept.
                if lane.queue or not self._step(lane, self.next):
                    lane.queue.append(self.next)
            elif not self._step(self.scalar, self.next):
                return
            self.next += 1

    def _step(self, lane: _Lane, index: int) -> bool:
        """Execute one micro-op, if it need not wait."""
        op = self.program.ops[index]
        if isinstance(op, WaitFlag):
            raised = self.flags.get((op.src, op.dst, op.event))
            if not raised:
                return False
            clock = raised.popleft()
            _join(lane.clock, clock)
            # Whoever set the flag knew that so much of this pipe's own work was done.
            lane.drained = max(lane.drained, clock.get(op.pipe, 0))
        is_full_barrier = isinstance(op, Barrier) and op.on is None
        if is_full_barrier and any(other.queue for other in self.lanes.values()):
            return False
        lane.clock[op.pipe] = lane.clock.get(op.pipe, 0) + 1
        if isinstance(op, SetFlag):
            raised = self.flags.setdefault((op.src, op.dst, op.event), deque())
            raised.append(dict(lane.clock))
        elif isinstance(op, Barrier) and op.on is not None:
            lane.drained = lane.clock[op.pipe]
        elif is_full_barrier:
            for other in self.lanes.values():
                _join(self.scalar.clock, other.clock)
            for pipe, other in self.lanes.items():
                _join(other.clock, self.scalar.clock)
                other.drained = other.clock.get(pipe, 0)
        else:
            self._touch(lane, op, index)
        self.done.append(index)
        return True

    def _touch(self, lane: _Lane, op: MicroOp, index: int) -> None:
        sequence = lane.clock[op.pipe]
        accesses = [_local(local, sequence, False, index) for local in reads(op)]
        accesses += [_local(local, sequence, True, index) for local in writes(op)]
        if isinstance(op, Load) and op.src.name in self.both_ways:
            accesses.append(_global(op.src, sequence, False, index))
        elif isinstance(op, Store) and op.dst.name in self.both_ways:
            accesses.append(_global(op.dst, sequence, True, index))
        clashing = [(key, access) for access in accesses for key in access.keys(True)]
        written = [access for access in accesses if access.is_write]
        clashing += [(key, access) for access in written for key in access.keys(False)]
        for pipe, other in self.lanes.items():
            if other is not lane:
                self._compare(clashing, other, lane.clock.get(pipe, 0))
        if op.pipe == "vector":
            self._compare(clashing, lane, lane.drained)
        for access in accesses:
            lane.add(access)

    def _compare(self, clashing: list[tuple[Key, _Access]], other: _Lane, known: int) -> None:
        """Hold accesses against what *other* did after its *known* first micro-ops."""
        for key, access in clashing:
            page = other.touched.get(key)
            if page is not None and page.latest > known:
                for past in page.accesses.values():
                    if past.sequence > known:
                        self._check(past, access)

    def _check(self, past: _Access, access: _Access) -> None:
        start, end = max(past.start, access.start), min(past.end, access.end)
        if start >= end:
            return
        if past.bursts and access.bursts and not _meet(past.bursts, access.bursts):
            return
        first, second = sorted((past.index, access.index))
        a, b = self.program.ops[first], self.program.ops[second]
        must, remedy = (
            ("a barrier", f"put a barrier of the {a.pipe} pipe between them")
            if a.pipe == b.pipe
            else (
                "a flag",
                f"set a flag from {a.pipe} to {b.pipe} after the first and await it before the "
                f"second",
            )
        )
        raise RaceError(
            f"{self.program.name}: micro-ops that touch the same bytes must be ordered by {must}, "
            f"not #{first} {a.pipe}: {a} and #{second} {b.pipe}: {b} "
            f"at {access.place}[{start}:{end}]; {remedy}"
        )


def deadlock(program: Program, waiting: list[int]) -> str:
    """What to say when the micro-ops with these indices wait for ever."""
    ops = program.ops
    stuck = "; ".join(f"{ops[index].pipe} at #{index}: {ops[index]}" for index in sorted(waiting))
    return (
        f"{program.name}: every awaited flag must be set, but these wait for ever: {stuck}; "
        f"set the flag on its source pipe before"
    )


def _join(into: Clock, other: Clock) -> None:
    for pipe, count in other.items():
        if into.get(pipe, 0) < count:
            into[pipe] = count


def _local(local: Local, sequence: int, is_write: bool, index: int) -> _Access:
    return _Access(sequence, local.buffer, local.offset_bytes, local.end_bytes, is_write, index)


def _global(place: Global, sequence: int, is_write: bool, index: int) -> _Access:
    start, end = place.offset_bytes, place.end_bytes
    return _Access(sequence, f"gm {place.name} ", start, end, is_write, index, place)


def _meet(a: Global, b: Global) -> bool:
    """Whether two sets of bursts share a byte."""
    starts_a = a.offset_bytes + a.stride_bytes * np.arange(a.bursts)
    starts_b = b.offset_bytes + b.stride_bytes * np.arange(b.bursts)
    # The last burst of b that starts before each burst of a ends.
    last = np.searchsorted(starts_b, starts_a + a.burst_bytes, side="left") - 1
    return bool(np.any((last >= 0) & (starts_b[last] + b.burst_bytes > starts_a)))
