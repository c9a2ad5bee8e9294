"""Copies on their way: asked for core by core, and moved for all cores at once that fare alike."""

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
"""Numbers that describe each copy."""


class Member(NamedTuple):
    """Equivalent cores, which never part."""

    number: int
    """Which of the groups of the launch they are."""
    code: Code
    blocks: tuple[Block, ...]
    different: dict[str, int]
    """Name of global memory -> to how many different places the cores bind it."""
    read: list[list[int]]
    """For each pipe, the share of each of its copies in what was read from global memory, in
    1 / COUNT_UNITS of a byte."""


class Wanted:
    """What a copy asks of the memory: one for all members that ask for the same bytes."""

    __slots__ = ("answer", "hold_cycles", "request")

    def __init__(self, request: Request, hold_cycles: int) -> None:
        self.request = request
        """The request of one member, whose cores may be others than those that ask in the end."""
        self.hold_cycles = hold_cycles
        """Cycles of the chip's clock that hold the pipe at least."""
        self.answer: Answer | None = None
        """What the memory says, once it has heard of it."""

    @property
    def traits(self) -> Hashable:
        """What decides when the copy ends."""
        assert self.answer is not None
        return self.request.traits, self.hold_cycles, self.answer.traits


class Stage(Enum):
    """How far a copy is."""

    ISSUED = auto()
    """The memory has not heard of it."""
    ASKED = auto()
    """The memory answers at the end of this cycle."""
    ANSWERED = auto()
    """What is known of each member's bytes is not acted upon yet."""
    MOVING = auto()
    """All members have the same of it."""


class CopyingLane(Protocol):
    """The pipes of cores that copy, which part where their copies fare differently."""

    members: list[Member]

    def part(self, groups: Sequence[Sequence[int]]) -> None:
        """Make a lane of each of *groups* of members but the first."""

    def moved(self, copying: Copying, moved: Moved) -> None:
        """Go on: the bytes of *copying* have moved."""


class Copying:
    """The copy that a pipe of a lane has come to."""

    def __init__(
        self, lane: CopyingLane, pipe: int, start: int, asked: int, wanted: list[Wanted]
    ) -> None:
        """*asked* is the cycle at which the memory hears of it; *wanted* are in the order of the
        lane's members."""
        self.lanes = [lane]
        """Those that wait for it: several once its members have parted on its way."""
        self.pipe, self.start, self.asked = pipe, start, asked
        self.hold_cycles = wanted[0].hold_cycles
        """What holds the pipe at least, once it is moving."""
        self.stage = Stage.ISSUED
        self._wanted = wanted

    # ---- members that part ----

    def of(self, lane: CopyingLane, members: Sequence[int]) -> Copying:
        """What becomes of it for *lane*, with these of the members."""
        if self.stage is Stage.MOVING:
            self.lanes.append(lane)
            return self
        wanted = [self._wanted[index] for index in members]
        found = Copying(lane, self.pipe, self.start, self.asked, wanted)
        found.stage = self.stage
        return found

    def keep(self, members: Sequence[int]) -> None:
        """Forget all other members."""
        if self.stage is not Stage.MOVING:
            self._wanted = [self._wanted[index] for index in members]
            self.hold_cycles = self._wanted[0].hold_cycles

    # ---- as the memory sees it ----

    def ask(self, memory: SharedMemory) -> None:
        """Let *memory* hear of it."""
        self.stage = Stage.ASKED
        memory.ask(self)

    def requests(self) -> list[Request]:
        """What the members ask for, cores that ask for the same together."""
        cores: dict[Wanted, int] = {}
        for wanted, member in zip(self._wanted, self.lanes[0].members, strict=True):
            cores[wanted] = cores.get(wanted, 0) + len(member.blocks)
        return [wanted.request._replace(copies=count) for wanted, count in cores.items()]

    def answer(self, answers: Sequence[Answer]) -> None:
        """Take what the memory says of each of `requests()`."""
        self.stage = Stage.ANSWERED
        for wanted, answer in zip(dict.fromkeys(self._wanted), answers, strict=True):
            wanted.answer = answer

    def begin(self, memory: SharedMemory) -> None:
        """Move the bytes, in as many lanes as there are different ends to it."""
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
    """What held up the copies of a lane: *rows* are the numbers of each pipe's micro-ops."""
    tables = [np.zeros((0, FACTS), np.int64)]
    for numbers, found, shares in zip(rows, copied, read, strict=True):
        table = np.column_stack([found.reshape(-1, FACTS - 1), np.array(shares, np.int64)])
        table[:, 0] = numbers[table[:, 0]]
        tables.append(table)
    return copy_times(np.concatenate(tables))


def copy_times(table: NDArray[np.int64]) -> CopyTimes:
    """What held up the copies of a lane, `(copies, FACTS)`, in any order: the number of each, then
    as in `CopyTimes`.
    """
    index, asked, moved, *held_up, read = table[table[:, 0].argsort()].T
    gm_narrow, l2_read_narrow, l2_write_narrow, turning = held_up
    times = index, asked, moved, gm_narrow, l2_read_narrow, l2_write_narrow, turning
    return CopyTimes(*times, read / COUNT_UNITS)
