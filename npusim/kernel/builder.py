"""The builder, which writes a program one micro-op at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from npusim.data.errors import shown
from npusim.data.integers import align_up
from npusim.devices.schema import Core, Pipe, Sync
from npusim.isa import (
    BLOCK_BYTES,
    Barrier,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    CrossMode,
    Global,
    Load,
    Local,
    MicroOp,
    SetFlag,
    Store,
    WaitFlag,
)
from npusim.kernel.program import Body, Call, Declared, Line, Program, QueueName, short_line
from npusim.kernel.queues import ProgramError, Queue, QueueState, Slot
from npusim.kernel.table import Calls, TabledProgram

__all__ = ["MARK", "Builder", "Shared", "deeper", "kernel_line", "shared", "step", "watched"]

__kernel_vocabulary__ = True

MARK = "__kernel_vocabulary__"
"""A module that writes micro-ops on behalf of kernels sets this name to True.

Reports then show the line of the kernel that called it. Every module of this package does.
"""


Made = TypeVar("Made")

_watcher: ContextVar[Callable[[], None] | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(report: Callable[[], None]) -> Iterator[None]:
    """Call *report* for every program that a builder completes within the context."""
    token = _watcher.set(report)
    try:
        yield
    finally:
        _watcher.reset(token)


_deeper: ContextVar[frozenset[QueueName]] = ContextVar("deeper", default=frozenset())


@contextmanager
def deeper(queues: Iterable[QueueName]) -> Iterator[None]:
    """Give each of *queues* one slot more than declared, in kernels written within the context.

    The declaration raises ProgramError where the core has no room, or no event, for the slot.
    """
    token = _deeper.set(frozenset(queues))
    try:
        yield
    finally:
        _deeper.reset(token)


class Shared:
    """What launches on a chip share whose programs differ because of values alone: cores with their
    buffers, and the bodies written for them, decoded. One launch at a time may use it."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}
        self._launches = 0
        self._lock = Lock()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let :func:`shared` find within the context what earlier launches have made."""
        with self._lock:
            if self._launches % MOST_LAUNCHES == 0:
                self._made.clear()
            self._launches += 1
            token = _shared.set(self._made)
            try:
                yield
            except BaseException:
                # Queues may have been left in any state.
                self._made.clear()
                raise
            finally:
                _shared.reset(token)


MOST_LAUNCHES = 64
"""Launches that share what they write, so that it stays small: some bodies come with each."""
_shared: ContextVar[dict[Hashable, Any] | None] = ContextVar("shared", default=None)


def shared(key: Hashable, make: Callable[[], Made]) -> Made:
    """What *make* makes, or what it made for *key* in an earlier launch that shares it.

    *make* must depend on *key*, the chip, shapes and types only. Stages that are methods of it are
    then written once for all these launches.
    """
    store = _shared.get()
    if store is None:
        return make()
    if key not in store:
        store[key] = make()
    found: Made = store[key]
    return found


class Builder:
    """Writes one program for one kind of core.

    Buffers are allocated from the low end upwards and freed together by `reset_buffers`. A kernel
    that runs *alone* may claim every byte. On cube cores that adds the end of L1, which otherwise
    carries messages to vector cores (ops-nn, matmul_v3_base_tiling.cpp). On vector cores a kernel
    that places its tensors itself may use all of the unified buffer (asc-devkit,
    add_high_performance: six tiles of 32 KiB).
    """

    def __init__(self, name: str, core: Core, sync: Sync, *, alone: bool = False) -> None:
        self.name = name
        self._core = core
        self._alone = alone
        self._events = sync.event_ids - sync.reserved_event_ids
        self._ops: list[MicroOp | Call] = []
        self._lines: list[Line] = []
        """The line of the kernel that wrote each of them."""
        self._claimed: dict[str, int] = {}
        self._peak_bytes: dict[str, int] = {}
        self._taken: dict[frozenset[Pipe], int] = {}
        self._synced: set[frozenset[Pipe]] = set()
        """Pairs of pipes whose last event is the one that `sync` uses."""
        self._queues: list[Queue] = []
        self._declared: list[Declared] = []
        """The same queues, as declared."""
        self._bodies: dict[Hashable, tuple[Body, tuple[QueueState, ...]]] = {}

    def room_bytes(self, buffer: str) -> int:
        """Bytes of *buffer* that are still free for the kernel; raises ProgramError."""
        usable = self._core.usable_bytes(buffer)
        if self._alone and usable:
            usable = getattr(self._core, f"{buffer}_bytes")
        if usable <= 0:
            raise ProgramError(f"{self.name}: the core must have a {buffer}, but it has none")
        return usable - self._claimed.get(buffer, 0)

    def claim(self, buffer: str, nbytes: int) -> Slot:
        """Claim *nbytes* of *buffer*, rounded up to whole blocks; raises ProgramError."""
        nbytes = align_up(self._whole("a claim", nbytes, 0), BLOCK_BYTES)
        room = self.room_bytes(buffer)
        if nbytes > room:
            raise ProgramError(
                f"{self.name}: a claim must fit into the {room} bytes of {buffer} that are left, "
                f"not need {nbytes}; use smaller tiles"
            )
        start = self._claimed.get(buffer, 0)
        self._claimed[buffer] = start + nbytes
        self._peak_bytes[buffer] = max(self._peak_bytes.get(buffer, 0), start + nbytes)
        return Slot(buffer, start, nbytes, event=-1)

    def queue(self, buffer: str, nbytes: int, src: Pipe, dst: Pipe, depth: int = 1) -> Queue:
        """A queue of *depth* buffers of *nbytes* each, from pipe *src* to pipe *dst*.

        Raises ProgramError where the core has not that much room, or not that many events.
        """
        slots, name = [], QueueName(short_line(kernel_line()), buffer, src, dst)
        for _ in range(self._whole("the depth of a queue", depth, 1) + (name in _deeper.get())):
            slot = self.claim(buffer, nbytes)
            slot.event = self._event(src, dst)
            slots.append(slot)
        queue = Queue(self, src, dst, slots)
        self._queues.append(queue)
        self._declared.append(Declared(name, queue.events))
        return queue

    @contextmanager
    def on_top_of(self, slot: Slot | Local) -> Iterator[None]:
        """Within the context, claims of the buffer of *slot* overlap it, from its first byte on.

        The program must write the flags that order the users of the two.
        """
        below = self._claimed[slot.buffer]
        self._claimed[slot.buffer] = slot.offset_bytes
        try:
            yield
        finally:
            self._claimed[slot.buffer] = max(below, self._claimed[slot.buffer])

    def reset_buffers(self) -> None:
        """Allocate buffers and events from the start again, for a later stage of the kernel.

        The program must write `end_stage` between users of the old and the new ones (TPipe's
        Reset).
        """
        self._claimed, self._taken = {}, {}

    def _whole(self, what: str, number: int, least: int) -> int:
        """*number* as an int of at least *least*, since one slot must not begin inside another."""
        is_whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not is_whole or number < least:
            raise ProgramError(
                f"{self.name}: {what} must be an integer from {least} on, not {shown(number)}; "
                f"pass an int that fits"
            )
        return int(number)

    def _event(self, src: Pipe, dst: Pipe) -> int:
        pair = frozenset((src, dst))
        event = self._taken.get(pair, 0)
        events = self._events - (pair in self._synced)
        if event >= events:
            raise ProgramError(
                f"{self.name}: {src} and {dst} must get by with {events} events, "
                f"but another queue slot needs one more; use fewer queues or less depth"
            )
        self._taken[pair] = event + 1
        return event

    # ---- micro-ops ----

    def emit(self, *ops: MicroOp) -> None:
        """Append *ops* as they are."""
        self._ops.extend(ops)
        self._lines.extend([kernel_line()] * len(ops))

    def data_copy(self, dst: Local | Global, src: Global | Local, pitch_bytes: int = 0) -> None:
        """Copy between global memory and a buffer (DataCopy, DataCopyPad).

        Bursts lie *pitch_bytes* apart in the buffer, 0 where there is only one. Raises TypeError
        unless one of *dst* and *src* is in global memory and the other in a buffer.
        """
        if isinstance(dst, Local) and isinstance(src, Global):
            self.emit(Load(dst, src, pitch_bytes))
        elif isinstance(dst, Global) and isinstance(src, Local):
            self.emit(Store(dst, src, pitch_bytes))
        else:
            raise TypeError(
                f"{self.name}: data_copy must have one operand in global memory and one in a "
                f"buffer, not {dst} and {src}; use copy within a buffer"
            )

    def set_flag(self, src: Pipe, dst: Pipe, event: int) -> None:
        self.emit(SetFlag(src, dst, event))

    def wait_flag(self, src: Pipe, dst: Pipe, event: int) -> None:
        self.emit(WaitFlag(src, dst, event))

    def sync(self, src: Pipe, dst: Pipe) -> None:
        """Make *dst* wait here for everything issued to *src* so far, by a free event."""
        pair = frozenset((src, dst))
        event = self._events - 1
        if self._taken.get(pair, 0) > event:
            raise ProgramError(
                f"{self.name}: {src} and {dst} must have an event left for a plain wait; "
                f"use fewer queues or less depth"
            )
        self._synced.add(pair)
        self.emit(SetFlag(src, dst, event), WaitFlag(src, dst, event))

    def cross_core_set_flag(self, mode: CrossMode, pipe: Pipe, event: int) -> None:
        self.emit(CrossCoreSetFlag(mode, pipe, event))

    def cross_core_wait_flag(self, mode: CrossMode, pipe: Pipe, event: int) -> None:
        self.emit(CrossCoreWaitFlag(mode, pipe, event))

    def call(self, key: Hashable, shifts: dict[str, int], write: Callable[[], None]) -> None:
        """Append what *write* writes, with its global memory names shifted by *shifts* bytes.

        It is written once for each *key* and state of the queues, so *write* must depend on nothing
        else, and must free the slots that it allocates and no others. It may make calls itself.
        """
        self._call(key, shifts, write, is_whole=True)

    def call_part(self, key: Hashable, shifts: dict[str, int], write: Callable[[], None]) -> None:
        """Like `call`, but *write* may use slots allocated earlier and leave slots in use.

        Code that continues with a slot from *write* must ask the queue for it, since *write* may
        not have been called.
        """
        self._call(key, shifts, write, is_whole=False)

    def _call(
        self, key: Hashable, shifts: dict[str, int], write: Callable[[], None], *, is_whole: bool
    ) -> None:
        body = self.body(key, write, is_whole=is_whole)
        self._ops.append(Call(body, shifts))
        self._lines.append(kernel_line())

    def body(self, key: Hashable, write: Callable[[], None], *, is_whole: bool = True) -> Body:
        """The body of such a call; the queues advance as after the call, but nothing is appended.

        *is_whole* enforces the rule of `call`: slots that *write* allocates are free at its end.
        """
        before = self.queue_states
        known = self._bodies.get((key, before))
        if known is None:
            outer, self._ops, self._lines = (self._ops, self._lines), [], []
            write()
            written = Body(tuple(self._ops), tuple(self._lines))
            self._ops, self._lines = outer
            known = written, self.queue_states
            if is_whole and _free(before) != _free(known[1]):
                raise ProgramError(
                    f"{self.name}: a call must free the slots that it allocates, and no others; "
                    f"free them in the same call"
                )
            self._bodies[key, before] = known
        else:
            self.queue_states = known[1]
        return known[0]

    @property
    def queue_states(self) -> tuple[QueueState, ...]:
        """The state of each queue, in order of declaration."""
        return tuple([queue.state for queue in self._queues])

    @queue_states.setter
    def queue_states(self, states: tuple[QueueState, ...]) -> None:
        for queue, state in zip(self._queues, states, strict=True):
            queue.state = state

    def barrier(self, pipe: Pipe | None = None) -> None:
        self.emit(Barrier(pipe))

    def end_stage(self) -> None:
        """End a stage: drain every queue and wait for all pipes; see `reset_buffers`."""
        self._drain()
        self.barrier()

    def build(self) -> Program:
        """The program, with every queue drained; later micro-ops begin another program.

        Programs of one builder claim the same buffers and share the bodies of their calls.
        """
        if self._bodies:
            self.call("drain", {}, self._drain)
        else:
            self._drain()
        claimed, lines = dict(self._peak_bytes), tuple(self._lines)
        program = Program(self.name, tuple(self._ops), claimed, lines, tuple(self._declared))
        self._ops, self._lines = [], []
        for queue in self._queues:
            queue.rewind()
        return _reported(program)

    def build_table(self, table: Calls) -> Program:
        """The program that makes the calls of *table*, of bodies of this builder."""
        claimed, declared = dict(self._peak_bytes), tuple(self._declared)
        return _reported(TabledProgram(self.name, table, claimed, declared))

    def drained(self) -> Body:
        """The body that ends a program from the present state of the queues."""
        return self.body("drain", self._drain)

    def _drain(self) -> None:
        for queue in self._queues:
            queue.drain()


def _reported(program: Program) -> Program:
    """*program*, after reporting it to the watcher, if there is one."""
    report = _watcher.get()
    if report is not None:
        report()
    return program


def _free(states: Iterable[QueueState]) -> list[set[int]]:
    """The slots of each queue that are free."""
    return [{slot for slot, _ in free} for free, _ in states]


def kernel_line() -> Line:
    """The line being run in the innermost module without the mark of the vocabulary."""
    frame = sys._getframe(1)
    while frame.f_back and MARK in frame.f_globals:
        frame = frame.f_back
    return _line(frame.f_code.co_filename, frame.f_lineno)


@cache
def _line(file: str, number: int) -> Line:
    """A `Line`, the same object for everything that the line writes."""
    return file, number


def step(builder: Builder, op: MicroOp) -> None:
    """One vector micro-op and the barrier that lets the next one read its result."""
    builder.emit(op)
    builder.barrier("vector")
