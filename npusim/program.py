"""Programs, and the builder that kernels write them with.

A kernel is written as in Ascend C: claim buffers, let queues carry them from pipe to pipe, and call
one micro-op after the other. The queues set and await the flags, as TPipe and TQue do:

====================  ===========================================================
``slot = q.alloc()``  a free buffer; waits until its last reader is done with it
``q.enque(slot)``     the producer is done: raise the flag
``slot = q.deque()``  the consumer waits for that flag
``q.free(slot)``      the consumer is done: the buffer may be filled again
====================  ===========================================================

With depth 1 the producer waits for the consumer each time; with depth 2 it fills one buffer while
the other is read. Flags can also be placed by hand (:meth:`Builder.set_flag`,
:meth:`Builder.wait_flag`), right or wrong.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from npusim.dtypes import DType
from npusim.isa import (
    BLOCK_BYTES,
    Barrier,
    Global,
    Load,
    Local,
    MicroOp,
    SetFlag,
    Store,
    WaitFlag,
)
from npusim.spec import Core, Pipe, Sync

__all__ = ["Binding", "Block", "Builder", "Program", "ProgramError", "Queue", "Slot"]


class ProgramError(ValueError):
    """A kernel asked the builder for something the core does not have."""


@dataclass(frozen=True, eq=False)
class Program:
    """Micro-ops in program order, for every core that is bound to them."""

    name: str
    ops: tuple[MicroOp, ...]
    claimed_bytes: dict[str, int] = field(default_factory=dict)
    """Buffer -> how much of it the program claims."""

    def __str__(self) -> str:
        return "\n".join(f"{op.pipe:8} {op}" for op in self.ops)


@dataclass(frozen=True, slots=True)
class Binding:
    """What a name of global memory means to a block: *tensor* from *base_bytes* on."""

    tensor: str
    base_bytes: int = 0


@dataclass(frozen=True, eq=False)
class Block:
    """What one core does: a program, and what its names of global memory mean here."""

    core: int
    kind: str
    program: Program
    bindings: dict[str, Binding]


@dataclass(slots=True, eq=False)
class Slot:
    """One buffer of a queue."""

    buffer: str
    offset_bytes: int
    nbytes: int
    event: int
    used: bool = False
    """Its consumer has raised, or will raise, the flag that the next `alloc` awaits."""

    def of(self, dtype: DType, count: int, start_bytes: int = 0) -> Local:
        """*count* elements, *start_bytes* into the slot; raises ProgramError beyond its end."""
        end = start_bytes + dtype.nbytes(count)
        if end > self.nbytes:
            raise ProgramError(
                f"Slot.of: {count} elements of {dtype.name} at byte {start_bytes} must end within "
                f"{self.nbytes} bytes, not at {end}; make the slot larger"
            )
        return Local(self.buffer, self.offset_bytes + start_bytes, dtype, count)


class Queue:
    """Buffers that *src* fills and *dst* drains, in order."""

    def __init__(self, builder: Builder, src: Pipe, dst: Pipe, slots: list[Slot]) -> None:
        self._builder = builder
        self._src = src
        self._dst = dst
        self._slots = slots
        self._free = deque(slots)
        self._full: deque[Slot] = deque()

    def alloc(self) -> Slot:
        """The next free buffer, for the producer; raises ProgramError when none is left."""
        if not self._free:
            raise ProgramError(
                f"Queue.alloc: one of {len(self._slots)} slots must be free; "
                f"free a slot first, or give the queue more depth"
            )
        slot = self._free.popleft()
        if slot.used:
            self._builder.wait_flag(self._dst, self._src, slot.event)
            slot.used = False
        return slot

    def enque(self, slot: Slot) -> None:
        """Hand a filled buffer to the consumer."""
        self._builder.set_flag(self._src, self._dst, slot.event)
        self._full.append(slot)

    def deque(self) -> Slot:
        """The oldest filled buffer, for the consumer; raises ProgramError when there is none."""
        if not self._full:
            raise ProgramError("Queue.deque: a slot must have been enqueued; call enque first")
        slot = self._full.popleft()
        self._builder.wait_flag(self._src, self._dst, slot.event)
        return slot

    def free(self, slot: Slot) -> None:
        """The consumer has read the buffer."""
        self._builder.set_flag(self._dst, self._src, slot.event)
        slot.used = True
        self._free.append(slot)

    def drain(self) -> None:
        """Await the flags that are still up, as TPipe does when it goes."""
        for slot in self._slots:
            if slot.used:
                self._builder.wait_flag(self._dst, self._src, slot.event)
                slot.used = False


class Builder:
    """Writes one program for one kind of core.

    Buffers are handed out from the low end upwards; nothing is given back.
    """

    def __init__(self, name: str, core: Core, sync: Sync) -> None:
        self.name = name
        self._core = core
        self._events = sync.event_ids - sync.reserved_event_ids
        self._ops: list[MicroOp] = []
        self._claimed: dict[str, int] = {}
        self._taken: dict[frozenset[Pipe], int] = {}
        self._synced: set[frozenset[Pipe]] = set()
        """Pairs of pipes whose last event serves plain waits."""
        self._queues: list[Queue] = []

    def room_bytes(self, buffer: str) -> int:
        """Bytes of *buffer* that a kernel may use and has not claimed; raises ProgramError."""
        usable = self._core.usable_bytes(buffer)
        if usable <= 0:
            raise ProgramError(f"{self.name}: the core must have a {buffer}, but it has none")
        return usable - self._claimed.get(buffer, 0)

    def claim(self, buffer: str, nbytes: int) -> Slot:
        """Claim *nbytes* of *buffer*, rounded up to whole blocks; raises ProgramError."""
        nbytes = -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
        room = self.room_bytes(buffer)
        if nbytes > room:
            raise ProgramError(
                f"{self.name}: a claim must fit into the {room} bytes of {buffer} that are left, "
                f"not need {nbytes}; use smaller tiles"
            )
        start = self._claimed.get(buffer, 0)
        self._claimed[buffer] = start + nbytes
        return Slot(buffer, start, nbytes, event=-1)

    def queue(self, buffer: str, nbytes: int, src: Pipe, dst: Pipe, depth: int = 1) -> Queue:
        """A queue of *depth* buffers of *nbytes* each, from pipe *src* to pipe *dst*."""
        slots = []
        for _ in range(depth):
            slot = self.claim(buffer, nbytes)
            slot.event = self._event(src, dst)
            slots.append(slot)
        queue = Queue(self, src, dst, slots)
        self._queues.append(queue)
        return queue

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

    def load(self, dst: Local, src: Global, pitch_bytes: int = 0) -> None:
        self.emit(Load(dst, src, pitch_bytes))

    def store(self, dst: Global, src: Local, pitch_bytes: int = 0) -> None:
        self.emit(Store(dst, src, pitch_bytes))

    def set_flag(self, src: Pipe, dst: Pipe, event: int) -> None:
        self.emit(SetFlag(src, dst, event))

    def wait_flag(self, src: Pipe, dst: Pipe, event: int) -> None:
        self.emit(WaitFlag(src, dst, event))

    def sync(self, src: Pipe, dst: Pipe) -> None:
        """Let *dst* wait here for all that *src* was told so far, by an event of its own."""
        pair = frozenset((src, dst))
        event = self._events - 1
        if self._taken.get(pair, 0) > event:
            raise ProgramError(
                f"{self.name}: {src} and {dst} must have an event left for a plain wait; "
                f"use fewer queues or less depth"
            )
        self._synced.add(pair)
        self.emit(SetFlag(src, dst, event), WaitFlag(src, dst, event))

    def barrier(self, pipe: Pipe | None = None) -> None:
        self.emit(Barrier(pipe))

    def build(self) -> Program:
        """The program, with every queue drained."""
        for queue in self._queues:
            queue.drain()
        return Program(self.name, tuple(self._ops), dict(self._claimed))
