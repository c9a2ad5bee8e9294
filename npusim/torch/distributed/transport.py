"""How ranks reach each other: bytes of tensors, and the simulated times at which they begin.

Ranks are processes, which carry bytes by gloo, or threads of one process that run in turn.
"""

from __future__ import annotations

import atexit
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

__all__ = ["NOTHING", "Arrival", "Call", "Processes", "Transport", "all_there"]

NOTHING = torch.empty(0, dtype=torch.uint8)
"""The bytes of a rank that gives none."""


class Call(NamedTuple):
    """What a rank asks for, and when.

    Its fields are what JSON holds, since other processes read them.
    """

    name: str
    """Of the collective, or of a message."""
    alike: str
    """What every rank must ask for: types, shapes, the operation."""
    chip: str
    ready_us: float
    """When its card can begin."""
    bytes_given: int
    splits: list[list[int]]
    """Bytes to each rank and bytes from each rank, where ranks choose."""


Arrival = tuple[int, Call, torch.Tensor]
"""The rank that a message came from, its call, and its bytes: none where calls are not alike."""


class Transport(Protocol):
    """A group of ranks, of which this is one."""

    def meet(self, call: Call) -> list[Call]:
        """The call of each rank; returns when all have come."""

    def share(self, given: torch.Tensor, calls: Sequence[Call]) -> list[torch.Tensor]:
        """The bytes of each rank, which has given as many as its call says."""

    def send(self, call: Call, given: torch.Tensor, to: int, tag: int) -> Callable[[], Call]:
        """Send bytes. What is returned waits for the call of the receiver."""

    def receive(self, call: Call, source: int | None, tag: int) -> Callable[[], Arrival]:
        """Await bytes, of any rank if none is named. What is returned waits for them."""

    def close(self) -> None:
        """Wait until what was sent has left."""


class Processes:
    """Ranks that are processes.

    Of a message, both sides first send their calls; bytes follow where these are alike.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self._rank, self._size = rank, size
        own = dist.PrefixStore("npusim/", store)
        self.gloo = dist.ProcessGroupGloo(own, rank, size, timeout=timeout)
        """What carries the bytes."""
        self._sent: Counter[tuple[int, int]] = Counter()
        """Rank and tag -> how many messages were sent there."""
        self._leaving: list[Any] = []
        """What gloo is sending."""
        atexit.register(self.close)

    def meet(self, call: Call) -> list[Call]:
        """The call of each rank; returns when all have come."""
        text = torch.tensor(list(json.dumps(call).encode()), dtype=torch.uint8)
        length = torch.tensor([len(text)])
        lengths = [torch.empty_like(length) for _ in range(self._size)]
        with all_there(call.name):
            self.gloo.allgather([lengths], [length]).wait()
        texts = self._padded(text, [int(each) for each in lengths])
        return [Call(*json.loads(bytes(text.tolist()))) for text in texts]

    def share(self, given: torch.Tensor, calls: Sequence[Call]) -> list[torch.Tensor]:
        """The bytes of each rank, which has given as many as its call says."""
        lengths = [call.bytes_given for call in calls]
        givers = [rank for rank, length in enumerate(lengths) if length]
        if len(givers) != 1:
            return self._padded(given, lengths)
        (giver,) = givers
        found = given if giver == self._rank else given.new_empty(lengths[giver])
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = giver, 0
        self.gloo.broadcast([found], options).wait()
        return [found if rank == giver else NOTHING for rank in range(self._size)]

    def send(self, call: Call, given: torch.Tensor, to: int, tag: int) -> Callable[[], Call]:
        """Send bytes. What is returned waits for the call of the receiver."""
        number, answer = self._sent[to, tag], torch.empty(HEAD_BYTES, dtype=torch.uint8)
        self._sent[to, tag] += 1
        own = given.clone()
        self._leave(_head(call, number), to, _channel(tag, CALL))
        answered = self.gloo.recv([answer], to, _channel(tag, ANSWER))

        def finish() -> Call:
            with all_there(call.name):
                answered.wait()
            theirs, _ = _read(answer)
            if theirs.alike == call.alike and len(own):
                self._leave(own, to, _channel(tag, BYTES + number % MESSAGES))
            return theirs

        return finish

    def receive(self, call: Call, source: int | None, tag: int) -> Callable[[], Arrival]:
        """Await bytes, of any rank if none is named. What is returned waits for them."""
        head, own = torch.empty(HEAD_BYTES, dtype=torch.uint8), _head(call)
        if source is None:
            arrived = self.gloo.recv_anysource([head], _channel(tag, CALL))
        else:
            arrived = self.gloo.recv([head], source, _channel(tag, CALL))
            self._leave(own, source, _channel(tag, ANSWER))

        def finish() -> Arrival:
            with all_there(call.name):
                arrived.wait()
            giver = source
            if giver is None:
                giver = arrived._source_rank()
                self._leave(own, giver, _channel(tag, ANSWER))
            theirs, number = _read(head)
            if theirs.alike != call.alike:
                return giver, theirs, NOTHING
            found = torch.empty(theirs.bytes_given, dtype=torch.uint8)
            if len(found):
                self.gloo.recv([found], giver, _channel(tag, BYTES + number)).wait()
            return giver, theirs, found

        return finish

    def close(self) -> None:
        """Wait until what was sent has left."""
        leaving, self._leaving = self._leaving, []
        for work, _ in leaving:
            work.wait()

    def _leave(self, part: torch.Tensor, to: int, channel: int) -> None:
        self._leaving = [each for each in self._leaving if not each[0].is_completed()]
        self._leaving.append((self.gloo.send([part], to, channel), part))

    def _padded(self, own: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
        most = max(lengths)
        if not most:
            return [NOTHING] * self._size
        padded = own
        if len(own) < most:
            padded = torch.zeros(most, dtype=torch.uint8)
            padded[: len(own)] = own
        rows = [torch.empty(most, dtype=torch.uint8) for _ in range(self._size)]
        self.gloo.allgather([rows], [padded]).wait()
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]


@contextmanager
def all_there(name: str) -> Iterator[None]:
    """Say what is amiss where a process is gone, or does not come in time."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"{name}: every rank must come to it, but a process is gone or has not come before the "
            f"group's timeout; look for the one that failed, or does not call it\n{error}"
        ) from None


HEAD_BYTES = 1 << 10
"""A call of a message, and its number; a tensor has 64 dimensions at most."""
CALL, ANSWER, BYTES = 0, 1, 2
"""What belongs to a message; the bytes of each have a number of their own."""
MESSAGES = 1 << 12
"""So many of one tag may be under way."""


def _channel(tag: int, part: int) -> int:
    """The tag of gloo."""
    return tag * (MESSAGES + BYTES) + part


def _head(call: Call, number: int = 0) -> torch.Tensor:
    text = json.dumps([*call, number % MESSAGES]).encode()
    if len(text) > HEAD_BYTES:
        raise RuntimeError(
            f"{call.name}: a message must be described in {HEAD_BYTES} bytes, not in {len(text)}; "
            f"flatten the tensor"
        )
    return torch.tensor(list(text.ljust(HEAD_BYTES)), dtype=torch.uint8)


def _read(head: torch.Tensor) -> tuple[Call, int]:
    *fields, number = json.loads(bytes(head.tolist()))
    return Call(*fields), number
