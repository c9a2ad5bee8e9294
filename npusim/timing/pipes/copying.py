"""Copies in progress: requested core by core, moved at once for all cores with equal answers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from npusim.kernel.program import Block
from npusim.timing.memory import Answer, Moved, Request, SharedMemory
from npusim.timing.pipes.decode import Code
from npusim.trace import COUNT_UNITS, CopyTimes

__all__ = [
    "FACTS",
    "Copying",
    "CopyingLane",
    "Member",
    "Stage",
    "Wanted",
    "copy_times",
    "copy_times_of_lane",
]


FACTS = 8
"""Values that describe each copy."""


class Member(NamedTuple):
    """Equivalent cores, which always have the same times."""

    number: int
    """Index of the group in the launch."""
    code: Code
    blocks: tuple[Block, ...]
    different: dict[str, int]
    """Name of global memory -> number of distinct places to which the cores bind it."""
    read: list[list[int]]
    """For each pipe, the share of each of its copies in the bytes read from global memory, in
    1 / COUNT_UNITS of a byte."""


class Wanted:
    """The memory request of a copy, one for all members that request the same bytes."""

    __slots__ = ("answer", "hold_cycles", "request")

    def __init__(self, request: Request, hold_cycles: int) -> None:
        self.request = request
        """The request of one member; the cores that finally make it may differ."""
        self.hold_cycles = hold_cycles
        """Least cycles of the chip's clock for which the pipe is occupied."""
        self.answer: Answer | None = None
        """The answer of the memory, once received."""

    @property
    def traits(self) -> Hashable:
        """What decides when the copy ends."""
        assert self.answer is not None
        return self.request.traits, self.hold_cycles, self.answer.traits


class Stage(Enum):
    """Progress of a copy."""

    ISSUED = auto()
    """Not requested from the memory yet."""
    ASKED = auto()
    """The memory answers at the end of this cycle."""
    ANSWERED = auto()
    """Answered, but members with different answers are still together."""
    MOVING = auto()
    """All members have the same answer, and the bytes are moving."""


class CopyingLane(Protocol):
    """The pipes of cores that copy, which split where their copies get different answers."""

    members: list[Member]

    def part(self, groups: Sequence[Sequence[int]]) -> None:
        """Create a lane for each of *groups* of members but the first."""

    def moved(self, copying: Copying, moved: Moved) -> None:
        """Continue after the bytes of *copying* have moved."""


class Copying:
    """The copy that a pipe of a lane has reached."""

    def __init__(
        self, lane: CopyingLane, pipe: int, start: int, asked: int, wanted: list[Wanted]
    ) -> None:
        """*asked* is the cycle of the request; *wanted* follow the order of the members."""
        self.lanes = [lane]
        """Lanes that wait for it: several if its members split while it was in progress."""
        self.pipe, self.start, self.asked = pipe, start, asked
        self.hold_cycles = wanted[0].hold_cycles
        """Least cycles for which the pipe is occupied, once it is moving."""
        self.stage = Stage.ISSUED
        self._wanted = wanted

    # ---- members that split ----

    def of(self, lane: CopyingLane, members: Sequence[int]) -> Copying:
        """The copy as *lane* continues it, with these of the members."""
        if self.stage is Stage.MOVING:
            self.lanes.append(lane)
            return self
        wanted = [self._wanted[index] for index in members]
        found = Copying(lane, self.pipe, self.start, self.asked, wanted)
        found.stage = self.stage
        return found

    def keep(self, members: Sequence[int]) -> None:
        """Drop all other members."""
        if self.stage is not Stage.MOVING:
            self._wanted = [self._wanted[index] for index in members]
            self.hold_cycles = self._wanted[0].hold_cycles

    # ---- interface to the memory ----

    def ask(self, memory: SharedMemory) -> None:
        """Request it from *memory*."""
        self.stage = Stage.ASKED
        memory.ask(self)

    def requests(self) -> list[Request]:
        """The requests of the members; cores that request the same bytes share one."""
        cores: dict[Wanted, int] = {}
        for wanted, member in zip(self._wanted, self.lanes[0].members, strict=True):
            cores[wanted] = cores.get(wanted, 0) + len(member.blocks)
        return [wanted.request._replace(copies=count) for wanted, count in cores.items()]

    def answer(self, answers: Sequence[Answer]) -> None:
        """Receive the answer to each of `requests()`."""
        self.stage = Stage.ANSWERED
        for wanted, answer in zip(dict.fromkeys(self._wanted), answers, strict=True):
            wanted.answer = answer

    def begin(self, memory: SharedMemory) -> None:
        """Move the bytes, in as many lanes as there are different end times."""
        lane = self.lanes[0]
        if len(self._wanted) > 1:
            alike: dict[Hashable, list[int]] = {}
            for index, wanted in enumerate(self._wanted):
                alike.setdefault(wanted.traits, []).append(index)
            if len(alike) > 1:
                lane.part(list(alike.values()))
        self.stage = Stage.MOVING
        answers = []
        for wanted, member in zip(self._wanted, lane.members, strict=True):
            assert wanted.answer is not None
            member.read[self.pipe].append(wanted.answer.found.read)
            answers.append((wanted.answer, len(member.blocks)))
        memory.move(self._wanted[0].request, answers, self._moved)

    def _moved(self, moved: Moved) -> None:
        for lane in tuple(self.lanes):
            lane.moved(self, moved)


def copy_times_of_lane(
    rows: list[NDArray[np.int64]], copied: list[NDArray[np.int64]], read: Sequence[Sequence[int]]
) -> CopyTimes:
    """What delayed the copies of a lane: *rows* are the indices of each pipe's micro-ops."""
    tables = [np.zeros((0, FACTS), np.int64)]
    for numbers, found, shares in zip(rows, copied, read, strict=True):
        table = np.column_stack([found.reshape(-1, FACTS - 1), np.array(shares, np.int64)])
        table[:, 0] = numbers[table[:, 0]]
        tables.append(table)
    return copy_times(np.concatenate(tables))


def copy_times(table: NDArray[np.int64]) -> CopyTimes:
    """What delayed the copies of a lane, `(copies, FACTS)` in any order: index of each, then the
    fields of `CopyTimes`.
    """
    index, asked, moved, *held_up, read = table[table[:, 0].argsort()].T
    gm_narrow, l2_read_narrow, l2_write_narrow, turning = held_up
    times = index, asked, moved, gm_narrow, l2_read_narrow, l2_write_narrow, turning
    return CopyTimes(*times, read / COUNT_UNITS)
