"""Consecutive calls of one body, computed together.

Kernels process row after row, or tile after tile, with the same micro-ops: the calls differ only
in the offsets of their global memory names. If no call needs what another one leaves behind, all
but the last may be computed together, as blocks are (``lanes``). The last one is computed normally,
and leaves the buffers as all of them would have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import UINT8
from npusim.isa import (
    ORDERING,
    Binary,
    BinaryScalar,
    Broadcast,
    Cast,
    Compare,
    CompareScalar,
    Copy,
    Duplicate,
    Global,
    Load,
    Local,
    MicroOp,
    Select,
    Transpose,
    Unary,
    global_operand,
    reads,
    registers_read,
    registers_set,
    writes,
    writes_global,
)
from npusim.kernel.program import Body, Call
from npusim.values.buffers import Buffers
from npusim.values.facts import facts_of
from npusim.values.lanes import OPERAND_BYTES
from npusim.values.semantics.state import Memory, State

__all__ = ["Repeat", "repeat_at"]

LEAST = 3
"""Fewest calls for which analysing their body pays."""

WRITES_ALL: frozenset[type[MicroOp]] = frozenset(
    (
        *(Binary, BinaryScalar, Broadcast, Cast, Compare, CompareScalar, Copy, Duplicate, Load),
        *(Select, Transpose, Unary),
    )
)
"""Micro-ops that write each byte of a contiguous operand."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """*count* consecutive calls of one body."""

    count: int
    steps: Mapping[str, int]
    """Name of global memory -> bytes from a call to the next."""
    inputs: tuple[Local, ...]
    """What the body reads in the buffers before writing it."""

    def memories(self, first: Mapping[str, Memory]) -> dict[str, Memory]:
        """The bindings of all calls; *first* are those of the first one."""
        return {
            name: Memory(
                memory.data,
                memory.base_bytes,
                memory.is_constant,
                False,
                memory.bases,
                (self.count, self.steps.get(name, 0)),
            )
            for name, memory in first.items()
        }

    def state(self, before: State, buffers: Buffers) -> State:
        """Their initial state, in *buffers*; *before* is that of the first call."""
        for local in self.inputs:
            there = before.buffers.view(local)
            buffers.view(local)[...] = there[..., None, :]
        registers = {
            # Registers that differ between lanes have the lanes as first axis.
            name: values if values.ndim == 1 else values[:, None]
            for name, values in before.registers.items()
        }
        return State(
            buffers,
            {},
            before.overflow,
            before.cube_order,
            before.panels,
            {
                name: np.broadcast_to(values, (*buffers.lead, values.shape[-1]))
                for name, values in registers.items()
            },
        )


def repeat_at(
    place: int, calls: Sequence[Sequence[Call]], bound: Mapping[str, Memory]
) -> Repeat | None:
    """The calls from *place* on that may be computed together; None if it does not pay.

    *calls* are those of each lane in order, *bound* the bindings of the lanes.
    """
    first = calls[0]
    body = first[place].body
    after = first[place + 1 : place + LEAST]
    if len(after) + 1 < LEAST or any(call.body is not body for call in after):
        return None
    most = OPERAND_BYTES // max(1, len(calls) * facts_of(body).width)
    steps = _steps(first[place], first[place + 1])
    facts = _independent(body) if most > 1 and min(steps.values(), default=0) >= 0 else None
    if facts is None or not _are_apart(facts, steps, bound):
        return None
    end = place + 1
    while end < len(first) and end - place <= most and first[end].body is body:
        if any(_steps(lane[end - 1], lane[end]) != steps for lane in _distinct(calls, end)):
            break
        end += 1
    count = end - place - 1
    return Repeat(count, steps, facts.inputs) if count > 1 else None


def _are_apart(facts: _Independent, steps: Mapping[str, int], bound: Mapping[str, Memory]) -> bool:
    """Whether no call accesses global memory that another one writes, or that is written late."""
    tensors = {name: id(memory.data) for name, memory in bound.items()}
    stored = {tensors[name] for name in facts.stored}
    return (
        len(stored) == len(facts.stored)
        and stored.isdisjoint(tensors[name] for name in facts.loaded)
        and all(steps.get(name, 0) >= extent for name, extent in facts.stored.items())
        and not any(memory.is_late for memory in bound.values())
    )


def _distinct(calls: Sequence[Sequence[Call]], place: int) -> Iterable[Sequence[Call]]:
    """The lanes of *calls* that differ in the call at *place*, one of each."""
    return {id(lane[place]): lane for lane in calls}.values()


def _steps(one: Call, other: Call) -> dict[str, int]:
    names = dict.fromkeys((*one.shifts, *other.shifts))
    return {name: other.shifts.get(name, 0) - one.shifts.get(name, 0) for name in names}


@dataclass(frozen=True, slots=True)
class _Independent:
    """Dependences of the calls of a body on global memory and initial buffers only."""

    inputs: tuple[Local, ...]
    loaded: frozenset[str]
    """Names of global memory that it reads."""
    stored: Mapping[str, int]
    """Name of global memory that it writes -> bytes from the first to the last written."""


_known: WeakKeyDictionary[Body, _Independent | None] = WeakKeyDictionary()


def _independent(body: Body) -> _Independent | None:
    """What *body* needs from before it; None if a call leaves data for the next one."""
    if body not in _known:
        facts = facts_of(body)
        is_free = not (facts.is_alone or facts.meets or facts.traps)
        _known[body] = _look([op for op in body if type(op) not in ORDERING]) if is_free else None
    return _known[body]


def _look(ops: Sequence[MicroOp]) -> _Independent | None:
    needed, touched, covered = _Bytes(), _Bytes(), _Bytes()
    read, is_set = set[str](), set[str]()
    # Reading or writing a range again in the same way changes nothing.
    sources, results = set[Local](), set[tuple[Local, bool]]()
    for op in ops:
        for local in reads(op):
            if local not in sources:
                sources.add(local)
                needed.add(local, but=covered)
        for local in writes(op):
            covers = type(op) in WRITES_ALL and not local.is_strided
            if (local, covers) not in results:
                results.add((local, covers))
                touched.add(local)
                if covers:
                    covered.add(local)
        read.update(name for name in registers_read(op) if name not in is_set)
        is_set.update(registers_set(op))
    if read & is_set or needed.meets(touched):
        return None
    places = [(op, place) for op in ops if (place := global_operand(op)) is not None]
    stored: dict[str, list[Global]] = {}
    for op, place in places:
        if writes_global(op):
            stored.setdefault(place.name, []).append(place)
    return _Independent(
        needed.locals(),
        frozenset(place.name for op, place in places if not writes_global(op)),
        {name: _extent(there) for name, there in stored.items()},
    )


def _extent(places: Sequence[Global]) -> int:
    """Bytes from the first to the last of *places*."""
    return max(x.end_bytes for x in places) - min(x.offset_bytes for x in places)


class _Bytes:
    """A set of bytes in the buffers."""

    def __init__(self) -> None:
        self._of: dict[str, NDArray[np.bool_]] = {}

    def _until(self, buffer: str, end: int) -> NDArray[np.bool_]:
        """Whether each byte of *buffer* is in the set, at least up to *end*."""
        found = self._of.get(buffer, np.zeros(0, np.bool_))
        if found.size < end:
            found = self._of[buffer] = np.concatenate([found, np.zeros(end - found.size, np.bool_)])
        return found

    def add(self, local: Local, but: _Bytes | None = None) -> None:
        """Add the bytes from the first to the last of *local*, except those in *but*."""
        start, end = local.offset_bytes, local.end_bytes
        there = self._until(local.buffer, end)[start:end]
        there |= True if but is None else ~but._until(local.buffer, end)[start:end]

    def meets(self, others: _Bytes) -> bool:
        """Whether some bytes are also in *others*."""
        return any(
            bool((found & others._until(buffer, found.size)[: found.size]).any())
            for buffer, found in self._of.items()
        )

    def locals(self) -> tuple[Local, ...]:
        """The set as operands."""
        found = []
        for buffer, bytes_ in self._of.items():
            edges = np.flatnonzero(np.diff(bytes_, prepend=False, append=False))
            pairs = edges.reshape(-1, 2).tolist()
            found += [Local(buffer, start, UINT8, end - start) for start, end in pairs]
        return tuple(found)
