"""Ranks as threads of one process, which run in turn: each runs until it waits for another.

Only one thread runs at a time. State that exists once in a process is switched with the thread: the
clock, streams, random numbers, the number of the card, and RANK. Memory is counted for all ranks
together.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import _rendezvous_handlers as handlers
from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld

from npusim.torch import card, generator, graphs, numbering, streams
from npusim.torch.clock import Clock, clock
from npusim.torch.distributed.transport import Arrival, Call

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Threads", "running", "threads"]


class State(NamedTuple):
    """The state of a rank that is switched with its thread."""

    clock: dict[str, Any]
    streams: list[streams.Stream]
    random: torch.Tensor
    draws: dict[str, Any]
    number: int
    card: list[Any]
    captures: list[Any]

    @classmethod
    def now(cls) -> State:
        """The state of the running rank."""
        random = torch.get_rng_state()
        return cls(
            *(
                {**vars(clock)},
                [*streams._current],
                random,
                _drawn(),
                numbering.current(),
            ),
            *([*card._inserted], [*graphs._capturing]),
        )

    def restore(self, rank: int, server_cards: int) -> None:
        """Make it the state of the process, with the rank *rank*."""
        vars(clock).update(self.clock)
        streams._current[:] = self.streams
        torch.set_rng_state(self.random)
        generator.default_generators[0].__dict__.update(self.draws)
        numbering.choose(self.number)
        card._inserted[:] = self.card
        graphs._capturing[:] = self.captures
        generator._captures[:] = [capture.draws for capture in self.captures]
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank % server_cards)}


def _drawn() -> dict[str, Any]:
    """The state of the card's generator."""
    return {**vars(generator.default_generators[0])}


class Waiting(NamedTuple):
    """A condition that a rank waits for."""

    is_over: Callable[[], bool]
    what: str


class Board:
    """The data that the ranks of a group exchange."""

    def __init__(self) -> None:
        self.rounds: defaultdict[int, dict[int, Any]] = defaultdict(dict)
        """Number of a synchronisation -> the data of each rank."""
        self.messages: defaultdict[tuple[int, int, int], list[_Message]] = defaultdict(list)
        """Sender, receiver and tag -> messages under way."""


class _Message:
    def __init__(self, call: Call, given: torch.Tensor) -> None:
        self.call, self.given = call, given
        self.answer: Call | None = None


class Turns:
    """The threads of a run, one of which is running."""

    def __init__(self, size: int, server_cards: int) -> None:
        self.size, self._server_cards = size, server_cards
        self.boards: defaultdict[object, Board] = defaultdict(Board)
        self.store = dist.HashStore()
        self._changed = threading.Condition()
        self._at_work = 0
        self._waiting: dict[int, Waiting] = {}
        self._ended: dict[int, str] = {}
        self._stuck = ""
        self.results: list[object] = [None] * size
        self.errors: list[BaseException] = []
        """The errors of ranks; the first one caused the others."""
        self.end_us = 0.0
        """The time, on its clock, at which the last rank ended."""

    def run(self, rank: int, state: State, function: Callable[..., object], args: object) -> None:
        """Call *function* as *rank* when it is its turn."""
        with self._changed:
            self._changed.wait_for(lambda: self._at_work == rank)
        state.restore(rank, self._server_cards)
        ended = "has returned"
        try:
            with torch.autograd.set_multithreading_enabled(False):
                self.results[rank] = function(rank, *args)  # type: ignore[misc]
        except BaseException as error:
            self.errors.append(error)
            ended = f"has failed with {type(error).__name__}"
        finally:
            self.end_us = max(self.end_us, clock.now_us)
            self._ended[rank] = ended
            self._hand_over(rank)

    def wait_until(self, is_over: Callable[[], bool], what: str) -> None:
        """Run other ranks until *is_over*. Raises RuntimeError if all ranks would wait forever."""
        rank = self._at_work
        while not is_over():
            if self._stuck:
                raise RuntimeError(self._stuck)
            self._waiting[rank] = Waiting(is_over, what)
            own = State.now()
            self._hand_over(rank)
            with self._changed:
                self._changed.wait_for(lambda: self._at_work == rank)
            own.restore(rank, self._server_cards)
        self._waiting.pop(rank, None)

    def _hand_over(self, rank: int) -> None:
        others = [(rank + step) % self.size for step in range(1, self.size + 1)]
        left = [other for other in others if other not in self._ended]
        able = [
            other for other in left if other not in self._waiting or self._waiting[other].is_over()
        ]
        if left and not able and not self._stuck:
            self._stuck = self._why()
        with self._changed:
            self._at_work = (able or left or [rank])[0]
            self._changed.notify_all()

    def _why(self) -> str:
        what = [
            f"rank {rank} {self._ended.get(rank) or f'waits in {self._waiting[rank].what}'}"
            for rank in range(self.size)
        ]
        return (
            f"npusim.torch.distributed: ranks must come to each collective and message together, "
            f"but {', '.join(what)}; let each of them call it"
        )


_running: list[Turns] = []


def running() -> Turns | None:
    """The current run of threads, or None."""
    return _running[-1] if _running else None


class Threads:
    """The transport of a group whose ranks are threads."""

    def __init__(self, turns: Turns, group: object, rank: int, size: int) -> None:
        self._turns, self._board, self._rank, self._size = turns, turns.boards[group], rank, size
        self._count = 0

    def _bring(self, brought: object, what: str) -> list[Any]:
        """Synchronise all ranks and return the data of each, in order of ranks."""
        board, number = self._board, self._count
        self._count += 1
        board.rounds[number][self._rank] = brought
        self._turns.wait_until(lambda: len(board.rounds[number]) == self._size, what)
        found = [board.rounds[number][rank] for rank in range(self._size)]
        # All ranks have reached this synchronisation, so they have all left the previous one.
        board.rounds.pop(number - 1, None)
        return found

    def meet(self, call: Call) -> list[Call]:
        """The call of each rank; returns when all have joined."""
        return self._bring(call, call.name)

    def share(self, given: torch.Tensor, calls: Sequence[Call]) -> list[torch.Tensor]:
        """The bytes of each rank, as many as its call gives."""
        return self._bring(given.clone(), calls[self._rank].name)

    def send(self, call: Call, given: torch.Tensor, to: int, tag: int) -> Callable[[], Call]:
        """Send bytes. The returned function waits for the call of the receiver."""
        message = _Message(call, given.clone())
        self._board.messages[self._rank, to, tag].append(message)

        def finish() -> Call:
            self._turns.wait_until(lambda: message.answer is not None, f"send to rank {to}")
            assert message.answer is not None
            return message.answer

        return finish

    def receive(self, call: Call, source: int | None, tag: int) -> Callable[[], Arrival]:
        """Receive bytes, from any rank if *source* is None; returns a function that waits."""
        sources = range(self._size) if source is None else (source,)
        boxes = {giver: self._board.messages[giver, self._rank, tag] for giver in sources}
        taken: list[tuple[int, _Message]] = []

        def is_over() -> bool:
            if not taken:
                giver = next((giver for giver, box in boxes.items() if box), None)
                if giver is not None:
                    taken.append((giver, boxes[giver].pop(0)))
                    taken[0][1].answer = call
            return bool(taken)

        # A message that has already been sent is answered at once, so its sender can continue.
        is_over()

        def finish() -> Arrival:
            self._turns.wait_until(is_over, "recv")
            giver, message = taken[0]
            return giver, message.call, message.given

        return finish

    def close(self) -> None:
        """Do nothing: no message is pending."""


def threads(function: Callable[..., object], ranks: int, args: tuple[object, ...]) -> list[object]:
    """Call *function* with the rank and *args* on each rank, and return the results."""
    server_cards = min(ranks, card.spec().links.cards)
    turns, before = Turns(ranks, server_cards), State.now()
    begun = [
        threading.Thread(target=turns.run, args=(rank, _fresh(before), function, args), daemon=True)
        for rank in range(ranks)
    ]
    with _in_threads(turns, server_cards):
        for thread in begun:
            thread.start()
        for thread in begun:
            thread.join()
    before.restore(0, 1)
    clock.wait_until(clock.now_us + turns.end_us)
    if turns.errors:
        raise turns.errors[0]
    return turns.results


def _fresh(state: State) -> State:
    """The initial state of a rank, with a new clock and new caches."""
    (chip, key, values, caches, room_bytes) = state.card[0]
    fresh = type(caches)(chip) if caches is not None else None
    own = [(chip, key, values, fresh, room_bytes)]
    return State({**vars(Clock())}, [*state.streams], state.random, state.draws, 0, own, [])


@contextmanager
def _in_threads(turns: Turns, server_cards: int) -> Iterator[None]:
    """Give torch.distributed a separate world for each thread, synchronised by *turns*."""
    c10d = torch._C._distributed_c10d
    world, gloo = distributed_c10d._world, distributed_c10d.ProcessGroupGloo
    by_environment, environment = handlers["env"], {**os.environ}

    def meet(*_: object, **__: object) -> Iterator[tuple[Any, int, int]]:
        yield turns.store, int(os.environ["RANK"]), turns.size

    def refuse(*_: object, **__: object) -> NoReturn:
        raise RuntimeError(
            "npusim.torch.distributed: groups of ranks that are threads must have the backend hccl "
            "alone, not gloo, which would wait for the others for ever; leave gloo out, or start "
            "processes with torchrun"
        )

    def leave() -> None:
        _running.pop()
        distributed_c10d._world, handlers["env"] = world, by_environment
        distributed_c10d.ProcessGroupGloo = gloo
        c10d._set_thread_isolation_mode(False)
        os.environ.clear()
        os.environ.update(environment)

    with ExitStack() as stack:
        stack.callback(leave)
        _running.append(turns)
        distributed_c10d._world, handlers["env"] = ThreadLocalWorld(), meet
        distributed_c10d.ProcessGroupGloo = refuse
        c10d._set_thread_isolation_mode(True)
        os.environ |= {"WORLD_SIZE": str(turns.size), "LOCAL_WORLD_SIZE": str(server_cards)}
        yield
