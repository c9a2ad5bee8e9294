"""Programs of a core: micro-ops, calls of bodies, and bindings of global memory names."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from operator import eq
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from npusim.devices.schema import Pipe
from npusim.isa import (
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    Global,
    MicroOp,
    copied_place,
    global_operand,
    moved,
)

__all__ = [
    "Binding",
    "Block",
    "Body",
    "Call",
    "Declared",
    "FirstCalls",
    "Line",
    "Place",
    "Program",
    "QueueName",
    "added",
    "copies_of_bodies",
    "short_line",
]

__kernel_vocabulary__ = True

Number = TypeVar("Number", bound=np.generic)
Line = tuple[str, int]
"""File and number of a line of a kernel."""
Place = tuple[Line, type[MicroOp]]
"""A line of a kernel, and the type of a micro-op that it writes."""


FirstCalls = tuple[tuple[int, "Body"], ...]
"""Indices of micro-ops, and the bodies whose first calls begin there."""


@lru_cache(maxsize=4096)
def short_line(line: Line) -> Line:
    """*line* with a short file name: relative to the package, or without folders."""
    file = Path(line[0])
    above = Path(__file__).parents[2]
    name = file.relative_to(above).as_posix() if file.is_relative_to(above) else file.name
    return name, line[1]


@dataclass(frozen=True, eq=False)
class Body:
    """Micro-ops, and calls of other bodies, in program order; many calls share one body.

    A body equals only itself and is hashed by its identity, so that results about it can be cached
    in a dictionary without reading its micro-ops.
    """

    parts: tuple[MicroOp | Call, ...]
    part_lines: tuple[Line, ...] = ()
    """The line of the kernel that wrote each part, if known."""

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """The body as calls only, like those of a program; empty if it makes no call."""
        are_calls = [type(part) is Call for part in self.parts]
        if all(are_calls):
            return cast(tuple[Call, ...], self.parts)
        return _as_calls(self.parts, self.part_lines) if any(are_calls) else ()

    @cached_property
    def leaves(self) -> tuple[Body, ...]:
        """The bodies without calls that it is made of, each once, in order of appearance."""
        return _leaves(call.body for call in self.calls) if self.calls else (self,)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of global memory that it touches."""
        if self.calls:
            return frozenset[str]().union(*(leaf.names for leaf in self.leaves))
        return frozenset(place.name for _, _, place in self.touching)

    @cached_property
    def touching(self) -> tuple[tuple[int, MicroOp, Global], ...]:
        """Its micro-ops that touch global memory, as `(index, micro-op, operand)`.

        For bodies without calls only; for others use the bodies that they call.
        """
        places = ((index, op, global_operand(op)) for index, op in enumerate(self.ops))
        return tuple((index, op, place) for index, op, place in places if place is not None)

    @cached_property
    def has_cross_core_flags(self) -> bool:
        """Whether it sets or waits for flags between cores."""
        if self.calls:
            return any(leaf.has_cross_core_flags for leaf in self.leaves)
        return any(isinstance(op, CrossCoreSetFlag | CrossCoreWaitFlag) for op in self)

    @cached_property
    def copies(self) -> NDArray[np.int64]:
        """Indices of its micro-ops that copy from or to global memory, `(copies,)`."""
        if self.calls:
            return copies_of_bodies(call.body for call in self.calls)
        found = [index for index, op, _ in self.touching if copied_place(op) is not None]
        return np.array(found, np.int64)

    @cached_property
    def ops(self) -> tuple[MicroOp, ...]:
        """Every micro-op, those of its calls shifted.

        For work on each of them; work that is the same for all calls goes through `calls`.
        """
        return _written_out(self.calls) if self.calls else cast(tuple[MicroOp, ...], self.parts)

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """The line of the kernel that wrote each micro-op, if known."""
        return tuple(chain.from_iterable(call.lines for call in self.calls)) or self.part_lines

    @cached_property
    def places(self) -> frozenset[Place]:
        """The places in the kernel that write its micro-ops; a loop counts once.

        If the lines of a body are unknown, each micro-op counts as one place.
        """
        lines = self.lines or [("", number) for number in range(len(self))]
        return frozenset(zip(lines, map(type, self), strict=True))

    @cached_property
    def _count(self) -> int:
        return sum(len(call.body) for call in self.calls) or len(self.parts)

    def __iter__(self) -> Iterator[MicroOp]:
        return iter(self.ops)

    def __len__(self) -> int:
        """Number of micro-ops, with calls expanded."""
        return self._count


def copies_of_bodies(bodies: Iterable[Body]) -> NDArray[np.int64]:
    """Indices of the micro-ops of *bodies* that copy from or to global memory, `(copies,)`."""
    found, first = [np.zeros(0, np.int64)], 0
    for body in bodies:
        found.append(body.copies + first)
        first += len(body)
    return np.concatenate(found)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A body with its global memory names shifted."""

    body: Body
    shifts: dict[str, int] = field(default_factory=dict)
    """Name of global memory -> bytes added to every offset into it."""

    @property
    def ops(self) -> tuple[MicroOp, ...]:
        """The micro-ops of its body, not shifted."""
        return self.body.ops

    @property
    def lines(self) -> tuple[Line, ...]:
        """The line of the kernel that wrote each of them, if known."""
        return self.body.lines


def added(shifts: dict[str, int], others: dict[str, int]) -> dict[str, int]:
    """The shifts that result from applying both, name by name."""
    names = dict.fromkeys((*shifts, *others))
    return {name: shifts.get(name, 0) + others.get(name, 0) for name in names}


def _as_calls(parts: tuple[MicroOp | Call, ...], lines: tuple[Line, ...]) -> tuple[Call, ...]:
    """*parts* as calls only; micro-ops between two calls become one call without shifts."""
    found: list[Call] = []
    first = 0
    for index, part in enumerate((*parts, Call(Body(())))):
        if isinstance(part, Call):
            plain = tuple(op for op in parts[first:index] if not isinstance(op, Call))
            if plain:
                found.append(Call(Body(plain, lines[first:index])))
            found.append(part)
            first = index + 1
    return tuple(found[:-1])


def _leaves(bodies: Iterable[Body]) -> tuple[Body, ...]:
    return tuple({leaf: None for body in dict.fromkeys(bodies) for leaf in body.leaves})


def _first_calls(called: Iterable[Body], start: int = 0) -> FirstCalls:
    """The bodies *called*, each with the index where it first occurs, counting from *start*."""
    found: dict[Body, int] = {}
    for body in called:
        found.setdefault(body, start)
        start += len(body)
    return tuple((start, body) for body, start in found.items())


def _find_first(calls: FirstCalls, found: dict[Body, int], known: set[Body]) -> None:
    """Add the first index of each body without calls that *calls* are made of."""
    for start, body in calls:
        if body not in known:
            known.add(body)
            if body.calls:
                inner = _first_calls([call.body for call in body.calls], start)
                _find_first(inner, found, known)
            else:
                found[body] = start


def _written_out(calls: tuple[Call, ...]) -> tuple[MicroOp, ...]:
    if len(calls) == 1 and not calls[0].shifts:
        return calls[0].ops
    return tuple(_one_by_one(calls))


def _one_by_one(calls: tuple[Call, ...]) -> Iterator[MicroOp]:
    return (_shifted(op, call.shifts) for call in calls for op in call.ops)


def _laid_out(calls: tuple[Call, ...], known: dict[Body, NDArray[Number]]) -> NDArray[Number]:
    """The arrays that *known* has for the bodies of *calls*, concatenated call by call."""
    found = []
    for call in calls:
        if call.body not in known:
            known[call.body] = _laid_out(call.body.calls, known)
        found.append(known[call.body])
    return np.concatenate(found)


@dataclass(frozen=True, slots=True)
class QueueName:
    """Identifies queues of a kernel: those of one buffer and two pipes, declared at one line."""

    line: Line
    """The line, shortened by :func:`short_line`."""
    buffer: str
    src: Pipe
    dst: Pipe


@dataclass(frozen=True, slots=True)
class Declared:
    """A queue as a kernel declares it."""

    name: QueueName
    events: tuple[int, ...]
    """One for each slot."""


@dataclass(frozen=True, eq=False)
class Program:
    """Micro-ops in program order, for every core that is bound to them."""

    name: str
    parts: tuple[MicroOp | Call, ...]
    claimed_bytes: dict[str, int] = field(default_factory=dict)
    """Buffer -> bytes that the program claims."""
    lines: tuple[Line, ...] = ()
    """The line of the kernel that wrote each part, if known."""
    queues: tuple[Declared, ...] = ()
    """The queues that its flags belong to, in order of declaration."""

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """The program as calls only; micro-ops between two calls become one call without shifts."""
        return _as_calls(self.parts, self.lines)

    @cached_property
    def called(self) -> tuple[Body, ...]:
        """The body of each call, in order."""
        return tuple([call.body for call in self.calls])

    @cached_property
    def first_calls(self) -> FirstCalls:
        """The bodies that the calls share, each once, in order of appearance.

        Each comes with the index of the first micro-op of its first call.
        """
        return _first_calls(self.called)

    @cached_property
    def bodies(self) -> tuple[Body, ...]:
        """Those bodies, without indices."""
        return tuple([body for _, body in self.first_calls])

    @cached_property
    def leaves(self) -> tuple[Body, ...]:
        """The bodies without calls that they are made of, each once, in the same order."""
        return _leaves(self.bodies)

    @cached_property
    def first_leaves(self) -> tuple[tuple[int, Body], ...]:
        """Those bodies, each with the index of its first micro-op."""
        found: dict[Body, int] = {}
        _find_first(self.first_calls, found, set())
        return tuple((start, body) for body, start in found.items())

    @cached_property
    def ops(self) -> tuple[MicroOp, ...]:
        """Every micro-op with its own offsets, calls expanded."""
        return _written_out(self.calls)

    def is_like(self, other: Program) -> bool:
        """Whether both have the same micro-ops, with the same offsets."""
        if self is other:
            return True
        mine, its = _one_by_one(self.calls), _one_by_one(other.calls)
        return len(self) == len(other) and all(map(eq, mine, its))

    def laid_out(self, of_body: Callable[[Body], NDArray[Number]]) -> NDArray[Number]:
        """*of_body* of each body without calls, concatenated for all micro-ops of the program.

        Both arrays are `(ops,)`; *of_body* is called once for each of :attr:`leaves`.
        """
        known = {leaf: of_body(leaf) for leaf in self.leaves}
        return _laid_out(self.calls, known) if known else of_body(Body(()))

    def distinct(self) -> tuple[tuple[MicroOp, ...], NDArray[np.int64]]:
        """The micro-ops of :attr:`leaves`, and the index of every micro-op among them, `(ops,)`."""
        ops: list[MicroOp] = []
        numbers: dict[Body, NDArray[np.int64]] = {}
        for body in self.leaves:
            numbers[body] = np.arange(len(ops), len(ops) + len(body))
            ops += body.ops
        return tuple(ops), self.laid_out(lambda body: numbers[body]) if ops else np.arange(0)

    def between(self, first: int, last: int) -> Iterator[tuple[Call, int, slice]]:
        """Calls that contain micro-ops from index *first* up to *last*.

        Each comes with the index of its first micro-op, and the slice of its micro-ops in the
        range.
        """
        place = max(bisect_right(self._begins, first) - 1, 0)
        for call, begin in zip(self.calls[place:], self._begins[place:], strict=False):
            if begin >= last:
                return
            own = slice(max(first - begin, 0), min(last - begin, len(call.body)))
            if own.start < own.stop:
                yield call, begin, own

    @cached_property
    def _begins(self) -> list[int]:
        """The index of the first micro-op of each call, and the total at the end."""
        return [0, *accumulate(len(call.body) for call in self.calls)]

    def numbered(self, index: int) -> str:
        """The name of micro-op *index* in messages."""
        return f"#{index}"

    def __len__(self) -> int:
        """Number of micro-ops, with calls expanded."""
        return sum(map(len, self.called))

    def __str__(self) -> str:
        return "\n".join(f"{op.pipe:8} {op}" for op in self.ops)


def _shifted(op: MicroOp, shifts: dict[str, int]) -> MicroOp:
    place = global_operand(op)
    return op if place is None else moved(op, shifts.get(place.name, 0))


@dataclass(frozen=True, slots=True)
class Binding:
    """The binding of a global memory name in a block: *tensor* from *base_bytes* on."""

    tensor: str
    base_bytes: int = 0
    is_cached: bool = True
    """Whether the L2 caches what is read."""
    is_early: bool = False
    """Whether its copies are issued before the loads to L0 that precede them, as compilers of
    kernels reorder them, so that a full mte1 queue does not delay them."""


@dataclass(frozen=True, eq=False)
class Block:
    """What one core does: a program, and the bindings of its global memory names."""

    core: int
    kind: str
    program: Program
    bindings: dict[str, Binding]
    group: int = 0
    """Cores of one group, a cube core and its two vector cores, share flags of mode "group"."""
