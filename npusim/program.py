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

Work that comes again and again, a tile at a time, is written once and called
(:meth:`Builder.call`): each :class:`Call` shifts the names of global memory to its own tile, as a
loop on the chip moves its addresses. Whatever looks at a program can look at such a body once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property

from npusim.dtypes import DType
from npusim.isa import (
    BLOCK_BYTES,
    Barrier,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    CrossMode,
    Fixpipe,
    Global,
    Load,
    LoadNd2Nz,
    Local,
    MicroOp,
    SetFlag,
    Store,
    WaitFlag,
)
from npusim.spec import Core, Pipe, Sync

__all__ = ["Binding", "Block", "Builder", "Call", "Program", "ProgramError", "Queue", "Slot"]


class ProgramError(ValueError):
    """A kernel asked the builder for something the core does not have."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Micro-ops with their names of global memory moved on; many calls share one tuple of them."""

    ops: tuple[MicroOp, ...]
    shifts: dict[str, int] = field(default_factory=dict)
    """Name of global memory -> bytes added to every offset into it."""


@dataclass(frozen=True, eq=False)
class Program:
    """Micro-ops in program order, for every core that is bound to them."""

    name: str
    parts: tuple[MicroOp | Call, ...]
    claimed_bytes: dict[str, int] = field(default_factory=dict)
    """Buffer -> how much of it the program claims."""

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """The program as calls only: micro-ops between two calls are one without shifts."""
        found: list[Call] = []
        plain: list[MicroOp] = []
        for part in self.parts:
            if isinstance(part, Call):
                if plain:
                    found.append(Call(tuple(plain)))
                    plain = []
                found.append(part)
            else:
                plain.append(part)
        if plain:
            found.append(Call(tuple(plain)))
        return tuple(found)

    @cached_property
    def bodies(self) -> tuple[tuple[MicroOp, ...], ...]:
        """The different tuples of micro-ops that the calls share, in order of appearance."""
        return tuple({id(call.ops): call.ops for call in self.calls}.values())

    @cached_property
    def ops(self) -> tuple[MicroOp, ...]:
        """Every micro-op with its own offsets, calls written out."""
        if len(self.calls) == 1 and not self.calls[0].shifts:
            return self.calls[0].ops
        return tuple(_shifted(op, call.shifts) for call in self.calls for op in call.ops)

    def __len__(self) -> int:
        """How many micro-ops it has, calls written out."""
        return sum(len(call.ops) for call in self.calls)

    def __str__(self) -> str:
        return "\n".join(f"{op.pipe:8} {op}" for op in self.ops)


def _shifted(op: MicroOp, shifts: dict[str, int]) -> MicroOp:
    match op:
        case Load(src=place) | LoadNd2Nz(src=place):
            return replace(op, src=_moved(place, shifts)) if shifts.get(place.name) else op
        case Store(dst=place) | Fixpipe(dst=Global() as place):
            return replace(op, dst=_moved(place, shifts)) if shifts.get(place.name) else op
        case _:
            return op


def _moved(place: Global, shifts: dict[str, int]) -> Global:
    return replace(place, offset_bytes=place.offset_bytes + shifts[place.name])


@dataclass(frozen=True, slots=True)
class Binding:
    """What a name of global memory means to a block: *tensor* from *base_bytes* on."""

    tensor: str
    base_bytes: int = 0
    is_cached: bool = True
    """Whether the L2 keeps what is read."""


@dataclass(frozen=True, eq=False)
class Block:
    """What one core does: a program, and what its names of global memory mean here."""

    core: int
    kind: str
    program: Program
    bindings: dict[str, Binding]
    group: int = 0
    """Cores of one group meet at flags between cores: a cube core and its two vector cores."""


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


QueueState = tuple[tuple[int, bool], ...]


class Queue:
    """Buffers that *src* fills and *dst* drains, in order."""

    def __init__(self, builder: Builder, src: Pipe, dst: Pipe, slots: list[Slot]) -> None:
        self._builder = builder
        self._src = src
        self._dst = dst
        self._slots = slots
        self._free = deque(slots)
        self._full: deque[Slot] = deque()

    @property
    def events(self) -> tuple[int, ...]:
        """The events of its slots."""
        return tuple(slot.event for slot in self._slots)

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

    @property
    def state(self) -> QueueState:
        """Which slot comes next, and which flags are up; raises ProgramError with slots in use."""
        if len(self._free) != len(self._slots):
            raise ProgramError("Queue.state: every slot must be free; free them first")
        return tuple((self._slots.index(slot), slot.used) for slot in self._free)

    @state.setter
    def state(self, state: QueueState) -> None:
        self._free = deque(self._slots[index] for index, _ in state)
        for slot, (_, used) in zip(self._free, state, strict=True):
            slot.used = used

    def rewind(self) -> None:
        """Begin again with the first slot."""
        self._free = deque(self._slots)

    def drain(self) -> None:
        """Await the flags that are still up, as TPipe does when it goes."""
        for slot in self._slots:
            if slot.used:
                self._builder.wait_flag(self._dst, self._src, slot.event)
                slot.used = False


class Builder:
    """Writes one program for one kind of core.

    Buffers are handed out from the low end upwards; nothing is given back but all at once, by
    `reuse`. A kernel *alone* may claim every byte: one of cube cores all of L1, whose end otherwise
    carries messages to vector cores (ops-nn, matmul_v3_base_tiling.cpp), one of vector cores that
    places its tensors itself all of the unified buffer (asc-devkit, add_high_performance: six tiles
    of 32 KiB).
    """

    def __init__(self, name: str, core: Core, sync: Sync, *, alone: bool = False) -> None:
        self.name = name
        self._core = core
        self._alone = alone
        self._events = sync.event_ids - sync.reserved_event_ids
        self._ops: list[MicroOp | Call] = []
        self._claimed: dict[str, int] = {}
        self._most: dict[str, int] = {}
        self._taken: dict[frozenset[Pipe], int] = {}
        self._synced: set[frozenset[Pipe]] = set()
        """Pairs of pipes whose last event serves plain waits."""
        self._queues: list[Queue] = []
        self._bodies: dict[Hashable, tuple[tuple[MicroOp, ...], list[QueueState]]] = {}

    def room_bytes(self, buffer: str) -> int:
        """Bytes of *buffer* that a kernel may use and has not claimed; raises ProgramError."""
        usable = self._core.usable_bytes(buffer)
        if self._alone and usable:
            usable = getattr(self._core, f"{buffer}_bytes")
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
        self._most[buffer] = max(self._most.get(buffer, 0), start + nbytes)
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

    def reuse(self) -> None:
        """Hand buffers and events out from the start again, for a later stage of the kernel.

        Programs must write `turn` between what uses the ones and the others (TPipe's Reset).
        """
        self._claimed, self._taken = {}, {}

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

    def cross_core_set_flag(self, mode: CrossMode, pipe: Pipe, event: int) -> None:
        self.emit(CrossCoreSetFlag(mode, pipe, event))

    def cross_core_wait_flag(self, mode: CrossMode, pipe: Pipe, event: int) -> None:
        self.emit(CrossCoreWaitFlag(mode, pipe, event))

    def call(self, key: Hashable, shifts: dict[str, int], write: Callable[[], None]) -> None:
        """Append what *write* writes, its names of global memory shifted by *shifts* bytes.

        It is written once for each *key* and state of the queues; *write* must depend on nothing
        else, leave no slot in use, and make no call of its own.
        """
        before = tuple(queue.state for queue in self._queues)
        known = self._bodies.get((key, before))
        if known is None:
            outer, self._ops = self._ops, []
            write()
            body = tuple(op for op in self._ops if not isinstance(op, Call))
            if len(body) < len(self._ops):
                raise ProgramError(f"{self.name}: a call must make no call of its own; unroll it")
            self._ops = outer
            known = body, [queue.state for queue in self._queues]
            self._bodies[key, before] = known
        else:
            for queue, state in zip(self._queues, known[1], strict=True):
                queue.state = state
        self._ops.append(Call(known[0], shifts))

    def barrier(self, pipe: Pipe | None = None) -> None:
        self.emit(Barrier(pipe))

    def turn(self) -> None:
        """End a stage: drain every queue and wait for all pipes, see `reuse`."""
        self._drain()
        self.barrier()

    def build(self) -> Program:
        """The program, with every queue drained; what is written next begins another one.

        Programs of one builder claim the same buffers and share the bodies of their calls.
        """
        if self._bodies:
            self.call("drain", {}, self._drain)
        else:
            self._drain()
        program = Program(self.name, tuple(self._ops), dict(self._most))
        self._ops = []
        for queue in self._queues:
            queue.rewind()
        return program

    def _drain(self) -> None:
        for queue in self._queues:
            queue.drain()
