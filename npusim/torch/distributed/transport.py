"""The exchange of tensor bytes and simulated start times between ranks.

Ranks are processes, which exchange bytes through gloo, or threads of one process that run in turn.
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
"""The bytes of a rank that contributes none."""


class Call(NamedTuple):
    """The call of a collective or message by a rank, and its time.

    Its fields are JSON values, because other processes read them.
    """

    name: str
    """The name of the collective or of the message."""
    alike: str
    """The description that must be equal on all ranks: types, shapes, the operation."""
    chip: str
    ready_us: float
    """The time at which the card can begin."""
    bytes_given: int
    splits: list[list[int]]
    """Bytes to each rank and bytes from each rank, if the ranks choose them."""


Arrival = tuple[int, Call, torch.Tensor]
"""The sender of a message, its call, and its bytes, which are empty if the calls do not match."""


class Transport(Protocol):
    """A group of ranks, of which this is one."""

    def meet(self, call: Call) -> list[Call]:
        """The call of each rank; returns when all have joined."""

    def share(self, given: torch.Tensor, calls: Sequence[Call]) -> list[torch.Tensor]:
        """The bytes of each rank, as many as its call gives."""

    def send(self, call: Call, given: torch.Tensor, to: int, tag: int) -> Callable[[], Call]:
        """Send bytes. The returned function waits for the call of the receiver."""

    def receive(self, call: Call, source: int | None, tag: int) -> Callable[[], Arrival]:
        """Receive bytes, from any rank if *source* is None; returns a function that waits."""

    def close(self) -> None:
        """Wait until all sends are finished."""


class Processes:
    """The transport of a group whose ranks are processes.

    For a message, both sides first exchange their calls; bytes follow if the calls match.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        self._rank, self._size = rank, size
        own = dist.PrefixStore("npusim/", store)
        self.gloo = dist.ProcessGroupGloo(own, rank, size, timeout=timeout)
        """The process group that transfers the bytes."""
        self._sent: Counter[tuple[int, int]] = Counter()
        """Rank and tag -> the number of messages sent there."""
        self._leaving: list[Any] = []
        """The pending sends of gloo."""
        atexit.register(self.close)

    def meet(self, call: Call) -> list[Call]:
        """The call of each rank; returns when all have joined."""
        text = torch.tensor(list(json.dumps(call).encode()), dtype=torch.uint8)
        length = torch.tensor([len(text)])
        lengths = [torch.empty_like(length) for _ in range(self._size)]
        with all_there(call.name):
            self.gloo.allgather([lengths], [length]).wait()
        texts = self._padded(text, [int(each) for each in lengths])
        return [Call(*json.loads(bytes(text.tolist()))) for text in texts]

    def share(self, given: torch.Tensor, calls: Sequence[Call]) -> list[torch.Tensor]:
        """The bytes of each rank, as many as its call gives."""
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
        """Send bytes. The returned function waits for the call of the receiver."""
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
        """Receive bytes, from any rank if *source* is None; returns a function that waits."""
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
        """Wait until all sends are finished."""
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
    """Explain the error if a process has ended or does not respond in time."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"{name}: every rank must come to it, but a process is gone or has not come before the "
            f"group's timeout; look for the one that failed, or does not call it\n{error}"
        ) from None


HEAD_BYTES = 1 << 10
"""Most bytes of the call of a message and its number; a tensor has at most 64 dimensions."""
CALL, ANSWER, BYTES = 0, 1, 2
"""The parts of a message; the bytes of each message have a separate number."""
MESSAGES = 1 << 12
"""Most messages with one tag that can be under way."""


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
