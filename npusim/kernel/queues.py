"""Queues of buffers that pass from one pipe to another."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from npusim.data.dtypes import DType
from npusim.devices.schema import Pipe
from npusim.isa import Local, MicroOp, SetFlag, WaitFlag

__all__ = ["ProgramError", "Queue", "QueueState", "Slot"]

__kernel_vocabulary__ = True


class ProgramError(ValueError):
    """A kernel needs more of a buffer, or more events, than the core has."""


@dataclass(slots=True, eq=False)
class Slot:
    """One buffer of a queue."""

    buffer: str
    offset_bytes: int
    nbytes: int
    event: int
    used: bool = False
    """Whether its consumer has set, or will set, the flag that the next `alloc` waits for."""

    def of(self, dtype: DType, count: int, start_bytes: int = 0) -> Local:
        """*count* elements, *start_bytes* into the slot; raises ProgramError beyond its end."""
        end = start_bytes + dtype.nbytes(count)
        if end > self.nbytes:
            raise ProgramError(
                f"Slot.of: {count} elements of {dtype.name} at byte {start_bytes} must end within "
                f"{self.nbytes} bytes, not at {end}; make the slot larger"
            )
        return Local(self.buffer, self.offset_bytes + start_bytes, dtype, count)


QueueState = tuple[tuple[tuple[int, bool], ...], tuple[int, ...]]
"""Free slots in order, each with whether its flag is or will be set; full slots in order."""


class Writer(Protocol):
    """Appends micro-ops to a program, as a builder does."""

    def emit(self, *ops: MicroOp) -> None: ...


@cache
def _flag(
    kind: type[SetFlag] | type[WaitFlag], src: Pipe, dst: Pipe, event: int
) -> SetFlag | WaitFlag:
    """The same object for equal flags, half of all micro-ops, so that each is analysed once."""
    return kind(src, dst, event)


class Queue:
    """Buffers that *src* fills and *dst* drains, in order."""

    def __init__(self, writer: Writer, src: Pipe, dst: Pipe, slots: list[Slot]) -> None:
        self._writer = writer
        self._src = src
        self._dst = dst
        self._slots = slots
        self._free = deque(slots)
        self._full: deque[Slot] = deque()
        self._state: QueueState | None = None
        """The state last assigned, if the queue is unused since; the slots are from before that."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Its buffers, in the order in which they were claimed."""
        return tuple(self._slots)

    @property
    def events(self) -> tuple[int, ...]:
        """The events of its slots."""
        return tuple(slot.event for slot in self._slots)

    def alloc(self) -> Slot:
        """The next free buffer, for the producer; raises ProgramError when none is left."""
        self._take_up()
        if not self._free:
            raise ProgramError(
                f"Queue.alloc: one of {len(self._slots)} slots must be free; "
                f"free a slot first, or give the queue more depth"
            )
        slot = self._free.popleft()
        if slot.used:
            self._wait_flag(self._dst, self._src, slot)
            slot.used = False
        return slot

    def enque(self, slot: Slot) -> None:
        """Hand a filled buffer to the consumer."""
        self._take_up()
        self._set_flag(self._src, self._dst, slot)
        self._full.append(slot)

    def deque(self) -> Slot:
        """The oldest filled buffer, for the consumer; raises ProgramError when there is none."""
        self._take_up()
        if not self._full:
            raise ProgramError("Queue.deque: a slot must have been enqueued; call enque first")
        slot = self._full.popleft()
        self._wait_flag(self._src, self._dst, slot)
        return slot

    def free(self, slot: Slot) -> None:
        """Release a buffer that the consumer has read."""
        self._take_up()
        self._set_flag(self._dst, self._src, slot)
        slot.used = True
        self._free.append(slot)

    @property
    def in_use(self) -> list[Slot]:
        """Slots that the producer fills, or the consumer reads."""
        self._take_up()
        return [slot for slot in self._slots if slot not in self._free and slot not in self._full]

    @property
    def state(self) -> QueueState:
        """Which slots are free and which are full, and which flags are set."""
        if self._state is not None:
            return self._state
        number = self._slots.index
        free = tuple([(number(slot), slot.used) for slot in self._free])
        return free, tuple(map(number, self._full))

    @state.setter
    def state(self, state: QueueState) -> None:
        # Calls often follow each other without any access to the slots in between.
        self._state = state

    def _take_up(self) -> None:
        """Bring the slots into the assigned state."""
        if self._state is None:
            return
        free, full = self._state
        self._state = None
        for slot in self._slots:
            slot.used = False
        self._free = deque(self._slots[index] for index, _ in free)
        self._full = deque(self._slots[index] for index in full)
        for slot, (_, used) in zip(self._free, free, strict=True):
            slot.used = used

    def rewind(self) -> None:
        """Start again with the first slot."""
        self._take_up()
        self._free = deque(self._slots)

    def drain(self) -> None:
        """Wait for the flags that are still set, as TPipe does when it is destroyed."""
        self._take_up()
        for slot in self._slots:
            if slot.used:
                self._wait_flag(self._dst, self._src, slot)
                slot.used = False

    def _set_flag(self, src: Pipe, dst: Pipe, slot: Slot) -> None:
        self._writer.emit(_flag(SetFlag, src, dst, slot.event))

    def _wait_flag(self, src: Pipe, dst: Pipe, slot: Slot) -> None:
        self._writer.emit(_flag(WaitFlag, src, dst, slot.event))
