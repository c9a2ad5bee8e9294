"""The walk: a program played pipe by pipe as the chip does, untimed, with vector clocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.check.hazards.errors import DeadlockError, RaceError, deadlock
from npusim.data.dtypes import DType
from npusim.data.integers import ceil_div
from npusim.devices.schema import Pipe
from npusim.isa import (
    BLOCK_BYTES,
    ORDERING,
    Barrier,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    Global,
    Local,
    MicroOp,
    SetFlag,
    Table,
    WaitFlag,
    added_dtype,
    global_operand,
    reads,
    writes,
    writes_global,
)
from npusim.kernel.program import Program

__all__ = ["Flag", "awaited", "raised", "shared_names", "walk"]

Flag = tuple[str, str, int]
Clock = dict[Pipe, int]
Key = tuple[str, bool, int]
"""Buffer or tensor, whether written, and page: only accesses to the same page are compared."""


def _flag(op: SetFlag | WaitFlag) -> Flag:
    return op.src, op.dst, op.event


def _flag_of_all(op: CrossCoreSetFlag | CrossCoreWaitFlag) -> Flag | None:
    """A wait of mode "all" also waits for the set of its own core, so that orders its own pipes."""
    return ("all", "all", op.event) if op.mode == "all" else None


class _Order(NamedTuple):
    """How a micro-op orders others: functions of it that give the flag of its own core, if any."""

    raises: Callable[[Any], Flag | None] | None = None
    awaits: Callable[[Any], Flag | None] | None = None


_ORDERS = Table(
    "hazards",
    "an order that it imposes",
    ORDERING,
    {
        SetFlag: _Order(raises=_flag),
        WaitFlag: _Order(awaits=_flag),
        CrossCoreSetFlag: _Order(raises=_flag_of_all),
        CrossCoreWaitFlag: _Order(awaits=_flag_of_all),
        Barrier: _Order(),
    },
)
_RAISES = {kind: order.raises for kind, order in _ORDERS.items() if order.raises}
_AWAITS = {kind: order.awaits for kind, order in _ORDERS.items() if order.awaits}


def raised(op: MicroOp) -> Flag | None:
    """The flag that *op* raises for a pipe of its own core, if any."""
    flag_of = _RAISES.get(type(op))
    return flag_of(op) if flag_of else None


def awaited(op: MicroOp) -> Flag | None:
    """The flag of its own core that *op* awaits, if any."""
    flag_of = _AWAITS.get(type(op))
    return flag_of(op) if flag_of else None


def shared_names(ops: Iterable[MicroOp]) -> set[str]:
    """Names of global memory that are written, and touched by another pipe too."""
    pipes: dict[str, set[Pipe]] = {}
    written: set[str] = set()
    for op in ops:
        place = global_operand(op)
        if place is not None:
            pipes.setdefault(place.name, set()).add(op.pipe)
            if writes_global(op):
                written.add(place.name)
    return {name for name in written if len(pipes[name]) > 1}


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
    strided: Local | None = None
    """The operand, where there are gaps between its blocks."""
    adds: DType | None = None
    """The type in which it adds to what is there: two such do not race."""

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
    """What a pipe touched in one page: of equal ranges only the latest access, which suffices."""

    latest: int = 0
    """Sequence of the latest access."""
    accesses: dict[tuple[int, int, Global | Local | None, DType | None], _Access] = field(
        default_factory=dict
    )


@dataclass(slots=True)
class _Lane:
    """One pipe: what is still queued, its vector clock, what it touched."""

    queue: deque[int] = field(default_factory=deque)
    clock: Clock = field(default_factory=dict)
    drained: int = 0
    """Sequence up to which its results are there: moved on by its barriers."""
    touched: dict[Key, _Page] = field(default_factory=dict)

    def add(self, access: _Access) -> None:
        for key in access.keys(access.is_write):
            page = self.touched.setdefault(key, _Page())
            page.latest = access.sequence
            pieces = access.bursts or access.strided
            page.accesses[access.start, access.end, pieces, access.adds] = access


def walk(program: Program) -> list[int]:
    """Indices of the micro-ops in an order that the chip could take, program order where it can.

    Raises RaceError, naming both micro-ops, the buffer and the bytes; DeadlockError, naming each
    waiting pipe and its flag.
    """
    found = _Walk(program)
    found.go()
    return found.done


class _Walk:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.done: list[int] = []
        self.lanes: dict[Pipe, _Lane] = {}
        for op in program.ops:
            self.lanes.setdefault(op.pipe, _Lane())
        self.scalar = self.lanes.setdefault("scalar", _Lane())
        self.shared = shared_names(program.ops)
        """Names of global memory where pipes can clash."""
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
        flag = awaited(op)
        if flag is not None:
            clocks = self.flags.get(flag)
            if not clocks:
                return False
            clock = clocks.popleft()
            _join(lane.clock, clock)
            # The flag was set after so much of this pipe's own work: its results are there.
            lane.drained = max(lane.drained, clock.get(op.pipe, 0))
        is_full_barrier = isinstance(op, Barrier) and op.on is None
        if is_full_barrier and any(other.queue for other in self.lanes.values()):
            return False
        lane.clock[op.pipe] = lane.clock.get(op.pipe, 0) + 1
        flag = raised(op)
        if flag is not None:
            self.flags.setdefault(flag, deque()).append(dict(lane.clock))
        elif isinstance(op, Barrier) and op.on is not None:
            lane.drained = lane.clock[op.pipe]
        elif is_full_barrier:
            # All clocks become their maximum: everything before comes before everything after.
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
        place = global_operand(op)
        if place is not None and place.name in self.shared:
            accesses.append(_global(place, sequence, op, index))
        # Everything clashes with writes of others, what is written here with their reads as well.
        clashing = [(key, access) for access in accesses for key in access.keys(True)]
        written = [access for access in accesses if access.is_write]
        clashing += [(key, access) for access in written for key in access.keys(False)]
        for pipe, other in self.lanes.items():
            if other is not lane:
                self._compare(clashing, other, lane.clock.get(pipe, 0))
        # asc-devkit, PipeBarrier(ISASI).md: the vector pipe does not wait for its own results.
        if op.pipe == "vector":
            self._compare(clashing, lane, lane.drained)
        for access in accesses:
            lane.add(access)

    def _compare(self, clashing: list[tuple[Key, _Access]], other: _Lane, known: int) -> None:
        """Check accesses against those that *other* made after its first *known* micro-ops."""
        for key, access in clashing:
            page = other.touched.get(key)
            if page is not None and page.latest > known:
                for past in page.accesses.values():
                    if past.sequence > known:
                        self._check(past, access)

    def _check(self, past: _Access, access: _Access) -> None:
        start, end = max(past.start, access.start), min(past.end, access.end)
        if start >= end or (past.adds is not None and past.adds is access.adds):
            return
        if past.bursts and access.bursts and not _share_a_byte(past.bursts, access.bursts):
            return
        if past.strided and access.strided and not _share_a_block(past.strided, access.strided):
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


def _join(into: Clock, other: Clock) -> None:
    for pipe, count in other.items():
        if into.get(pipe, 0) < count:
            into[pipe] = count


def _local(local: Local, sequence: int, is_write: bool, index: int) -> _Access:
    start, end = local.offset_bytes, local.end_bytes
    strided = local if local.is_strided else None
    return _Access(sequence, local.buffer, start, end, is_write, index, strided=strided)


def _global(place: Global, sequence: int, op: MicroOp, index: int) -> _Access:
    start, end, is_write = place.offset_bytes, place.end_bytes, writes_global(op)
    name = f"gm {place.name} "
    return _Access(sequence, name, start, end, is_write, index, place, adds=added_dtype(op))


def _share_a_byte(a: Global, b: Global) -> bool:
    """Whether two sets of bursts share a byte."""
    starts_a = a.offset_bytes + a.stride_bytes * np.arange(a.bursts)
    starts_b = b.offset_bytes + b.stride_bytes * np.arange(b.bursts)
    # The last burst of b that starts before each burst of a ends.
    last = np.searchsorted(starts_b, starts_a + a.burst_bytes, side="left") - 1
    return bool(np.any((last >= 0) & (starts_b[last] + b.burst_bytes > starts_a)))


@lru_cache(maxsize=4096)
def _share_a_block(a: Local, b: Local) -> bool:
    """Whether two strided operands share a block of 32 bytes."""
    return bool(np.intersect1d(_blocks(a), _blocks(b)).size)


@lru_cache(maxsize=4096)
def _blocks(local: Local) -> NDArray[np.int64]:
    """The blocks that a strided operand touches, counted from the start of the buffer."""
    count = ceil_div(local.nbytes, BLOCK_BYTES)
    repeats, block = np.divmod(np.arange(count), 8)
    first = local.offset_bytes // BLOCK_BYTES
    blocks: NDArray[np.int64] = first + repeats * local.repeat_stride + block * local.block_stride
    return blocks
