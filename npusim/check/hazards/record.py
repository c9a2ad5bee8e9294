"""Which flags between cores come before and after each access of a program to global memory.

Waits, sets and accesses are numbered, and what comes before something is a *past*: two integers
with a bit for each wait and for each access, so that the union of two is one operation. A pipe has
a past, and so has each flag that is up. All that a micro-op does is to join pasts, to add a bit of
its own, and to hand pasts on through flags.

So a body is followed once, from pasts that stand for whatever it finds: a bit for each pipe and for
each flag that is up. What it leaves is a union of some of these with bits of its own, and a call of
it fills in what the bits stand for; unions of unions are unions, so this holds for calls in calls
too. Which flags are up, of those that it awaits, decides which pasts it joins; bodies are followed
anew where that differs, and where nothing else does that is all that can differ: micro-ops are in
program order, and what they do to pasts depends on no number and no address. Accesses of a body
that follow the same pasts, and that are in the same ones of all that it leaves or sets, are never
told apart by anything behind it. They are one access from then on.

Programs whose bodies do the same to pasts, wherever they read and write, share one record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from npusim.check.hazards.rounds import Orders
from npusim.check.hazards.walk import Flag, awaited, raised
from npusim.devices.schema import Pipe
from npusim.isa import (
    Barrier,
    CrossCoreSetFlag,
    CrossCoreWaitFlag,
    MicroOp,
    SetFlag,
    WaitFlag,
    global_operand,
)
from npusim.kernel.program import Body, Call, Program, added
from npusim.kernel.table import Calls, spread

__all__ = [
    "Accesses",
    "Called",
    "Epoch",
    "FlagUse",
    "Record",
    "Recorder",
    "Touched",
    "has_cross_core_flags",
]

PIPES: tuple[Pipe, ...] = get_args(Pipe)
Past = tuple[int, int]
"""What came before: waits, and accesses, a bit each."""
Accesses = tuple[tuple[dict[str, int], tuple[MicroOp, ...]], ...]
"""Micro-ops that touch global memory, and by how much their names are shifted."""
Touched = tuple[int, int]
"""Accesses of a program: the number of the call, and their number in its body."""


@dataclass(frozen=True, slots=True)
class Called:
    """The calls of a program, or of its bodies that have many flags, a row each."""

    accesses: list[tuple[Accesses, ...]]
    """What the body of each accesses."""
    names: tuple[str, ...]
    shifts: NDArray[np.int64]
    """By how much a call shifts each of *names*, `(calls, names)`."""

    def __getitem__(self, call: int) -> tuple[dict[str, int], tuple[Accesses, ...]]:
        """The shifts of a call, and the accesses of its body."""
        row = self.shifts[call].tolist()
        return dict(zip(self.names, row, strict=True)), self.accesses[call]


@dataclass(frozen=True, slots=True)
class FlagUse:
    """A set or a wait of a flag between cores, and the waits of its core that come before it."""

    op: CrossCoreSetFlag | CrossCoreWaitFlag
    index: int
    waits: int
    number: int
    """Among the sets, or the waits, of its core."""


@dataclass(slots=True)
class Epoch:
    """Accesses that follow the same waits and come before the same sets."""

    waits: int
    sets: int = 0
    touched: list[Touched] = field(default_factory=list)


@dataclass(slots=True)
class Record:
    """What a program does with flags between cores, in an order that the core could take."""

    flags: list[FlagUse] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)


class _Union(NamedTuple):
    """A past of a body: some of those that it finds, by number, with bits of its own."""

    found: tuple[int, ...]
    waits: int
    accesses: int


class _Use(NamedTuple):
    """A set or wait of a flag between cores."""

    op: CrossCoreSetFlag | CrossCoreWaitFlag
    number: int
    past: int


class _Effect(NamedTuple):
    """What a body does to pasts; these are numbers of its unions."""

    unions: tuple[_Union, ...]
    pipes: tuple[int, ...]
    """What each pipe has at the end."""
    flags: tuple[tuple[Flag, int, tuple[int, ...]], ...]
    """Of each flag how many pasts are taken of those that it finds, and which ones are added."""
    uses: tuple[_Use, ...]
    touched: tuple[int, ...]
    """What each access follows."""
    waits: int
    """How many waits it has."""
    micro_ops: int
    """How many micro-ops it has."""


class _Followed(NamedTuple):
    """A body, followed from some flags that are up."""

    number: int
    """Equal for equal effects."""
    effect: _Effect
    accesses: tuple[Accesses, ...]


def has_cross_core_flags(program: Program) -> bool:
    """Whether *program* sets or awaits flags between cores."""
    kinds = CrossCoreSetFlag, CrossCoreWaitFlag
    return any(isinstance(op, kinds) for body in program.leaves for op in body)


FEW_FLAGS = 16
"""Between cores, in a body that is followed as one.

What many of them say of many accesses is longer than the calls that the body makes.
"""


class Recorder:
    """Records programs; bodies that they share are followed once."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._known: dict[tuple[int, Hashable], _Followed] = {}
        self._numbers: dict[_Effect, int] = {}
        self._ups: dict[Hashable, int] = {(): 0}
        """Flags that are up, and how often -> their number."""
        self._up_of: list[dict[Flag, int]] = [{}]
        self._moves: dict[tuple[int, Body], tuple[_Followed, int]] = {}
        """Number of such flags, and a body -> what it does, and the number that it leads to."""
        self._awaited: dict[Body, tuple[Flag, ...]] = {}
        self._cross_core: dict[Body, int] = {}
        self._records: dict[Hashable, Record] = {}

    def record(self, program: Program) -> tuple[Record, Called]:
        """What *program* does, in an order that its flags allow, and what each call accesses."""
        order = self._orders.of(program)
        if not isinstance(order, range):
            return _recorded_in(order, program.ops)
        bodies, names, shifts = self._with_few_flags(program)
        called, up = [], 0
        for body in bodies:
            move = self._moves.get((up, body))
            if move is None:
                move = self._moves[up, body] = self._move(up, body)
            called.append(move[0])
            up = move[1]
        key = tuple([followed.number for followed in called])
        if key not in self._records:
            state = _State(0, {})
            for number, followed in enumerate(called):
                touched = [(number, index) for index in range(len(followed.accesses))]
                state.call(followed.effect, touched)
            self._records[key] = state.record()
        accesses = [followed.accesses for followed in called]
        return self._records[key], Called(accesses, names, shifts)

    def _move(self, number: int, body: Body) -> tuple[_Followed, int]:
        """What *body* does where flags of that *number* are up, and which are up then."""
        up = self._up_of[number].copy()
        followed = self._followed(body, up)
        for flag, taken, pasts in followed.effect.flags:
            up[flag] = up.get(flag, 0) - taken + len(pasts)
        after = tuple(sorted((flag, count) for flag, count in up.items() if count))
        if after not in self._ups:
            self._ups[after] = len(self._up_of)
            self._up_of.append(dict(after))
        return followed, self._ups[after]

    def _with_few_flags(
        self, program: Program
    ) -> tuple[tuple[Body, ...], tuple[str, ...], NDArray[np.int64]]:
        """The bodies that *program* calls, and by how much each shifts which names.

        In place of a body with more than a few flags between cores come those that it calls.
        """
        calls = Calls.of(program)
        if all(self._has_few_flags(body) for body in calls.bodies):
            return program.called, calls.names, calls.shifts
        inner = [tuple(self._inner(Call(body))) for body in calls.bodies]
        size = np.array([len(each) for each in inner], np.int64)
        row, where = spread(size[calls.body], (np.cumsum(size) - size)[calls.body])
        flat = [call for each in inner for call in each]
        names = dict.fromkeys((*calls.names, *(name for call in flat for name in call.shifts)))
        own = np.array([[call.shifts.get(x, 0) for x in names] for call in flat], np.int64)
        shifts = own.reshape(-1, len(names))[where]
        shifts[:, : len(calls.names)] += calls.shifts[row]
        return tuple([flat[x].body for x in where.tolist()]), tuple(names), shifts

    def _has_few_flags(self, body: Body) -> bool:
        return not body.calls or self._flags_in(body) <= FEW_FLAGS

    def _inner(self, call: Call) -> Iterator[Call]:
        """*call*, or the calls of its body where flags between cores are more than a few."""
        if self._has_few_flags(call.body):
            yield call
            return
        for inner in call.body.calls:
            yield from self._inner(Call(inner.body, added(inner.shifts, call.shifts)))

    def _flags_in(self, body: Body) -> int:
        """How many flags between cores *body* sets and awaits."""
        if body not in self._cross_core:
            kinds = CrossCoreSetFlag, CrossCoreWaitFlag
            self._cross_core[body] = (
                sum(self._flags_in(call.body) for call in body.calls)
                if body.calls
                else sum(isinstance(op, kinds) for op in body.ops)
            )
        return self._cross_core[body]

    def _followed(self, body: Body, up: dict[Flag, int]) -> _Followed:
        """*body*, followed from where so many sets of flags are *up*."""
        counts = tuple([(flag, up[flag]) for flag in self._awaits(body) if up.get(flag)])
        key = self._orders.number(body), counts
        if key not in self._known:
            state = _State(len(PIPES) + sum(count for _, count in counts), dict(counts))
            if body.calls:
                accesses = self._call_all(state, body.calls)
            else:
                accesses = state.play(enumerate(body.ops), follows_dispatch=True)
            effect, alike = state.effect()
            number = self._numbers.setdefault(effect, len(self._numbers))
            together = (tuple(part for x in group for part in accesses[x]) for group in alike)
            self._known[key] = _Followed(number, effect, tuple(together))
        return self._known[key]

    def _call_all(self, state: _State, calls: tuple[Call, ...]) -> list[Accesses]:
        accesses: list[Accesses] = []
        for call in calls:
            up = {flag: len(pasts) for flag, pasts in state.flags.items()}
            followed = self._followed(call.body, up)
            first = len(accesses)
            for found in followed.accesses:
                moved = tuple((added(shifts, call.shifts), ops) for shifts, ops in found)
                accesses.append(moved)
            touched = [(0, number) for number in range(first, len(accesses))]
            state.call(followed.effect, touched)
        return accesses

    def _awaits(self, body: Body) -> tuple[Flag, ...]:
        """The flags of its own core that *body* awaits, each once."""
        if body not in self._awaited:
            if body.calls:
                flags = [flag for call in body.calls for flag in self._awaits(call.body)]
            else:
                flags = [flag for op in body.ops if (flag := awaited(op)) is not None]
            self._awaited[body] = tuple(dict.fromkeys(flags))
        return self._awaited[body]


def _recorded_in(order: Sequence[int], ops: tuple[MicroOp, ...]) -> tuple[Record, Called]:
    """The same of *ops* that are executed in *order*, as accesses of one call."""
    state = _State(0, {})
    played = ((index, ops[index]) for index in order)
    accesses = state.play(played, follows_dispatch=False)
    return state.record(), Called([tuple(accesses)], (), np.zeros((1, 0), np.int64))


class _State:
    """Where a core stands: the pasts of its pipes, and of the flags that are up."""

    def __init__(self, unknown: int, up: dict[Flag, int]) -> None:
        """From the start of a program; or from *unknown* pasts, of the pipes and so many flags.

        Unknown pasts take the first bits of waits, in the order of `_find`.
        """
        self._unknown, self._up = unknown, up
        first = [(1 << number if unknown else 0, 0) for number in range(max(unknown, len(PIPES)))]
        self.pipes: dict[Pipe, Past] = dict(zip(PIPES, first, strict=False))
        self.flags: dict[Flag, deque[Past]] = {}
        rest = iter(first[len(PIPES) :])
        for flag, count in up.items():
            self.flags[flag] = deque(next(rest) for _ in range(count))
        self._taken: dict[Flag, int] = {}
        self._waits = unknown
        self._uses: list[tuple[CrossCoreSetFlag | CrossCoreWaitFlag, int, Past]] = []
        self._touched: list[tuple[int, Touched]] = []
        """Of each access the waits before it, and what it is."""
        self._count = 0
        """Micro-ops so far."""

    # ---- going on ----

    def play(self, ops: Iterable[tuple[int, MicroOp]], *, follows_dispatch: bool) -> list[Accesses]:
        """Execute *ops*, with their numbers; returns their accesses.

        A pipe always learns what the scalar unit had learnt when it handed a micro-op out; only
        where they *follow dispatch*, in program order, is that all that it has learnt by now.
        """
        accesses: list[Accesses] = []
        for index, op in ops:
            self._count += 1
            if not _matters(op):
                continue
            past = self.pipes[op.pipe]
            if follows_dispatch:
                past = _joined(past, self.pipes["scalar"])
            if isinstance(op, CrossCoreSetFlag | CrossCoreWaitFlag):
                self._uses.append((op, index, past))
            if isinstance(op, CrossCoreWaitFlag):
                past = past[0] | 1 << self._waits, past[1]
                self._waits += 1
            flag = awaited(op)
            if flag is not None:
                past = _joined(past, self.flags[flag].popleft())
                self._taken[flag] = self._taken.get(flag, 0) + 1
            flag = raised(op)
            if flag is not None:
                self.flags.setdefault(flag, deque()).append(past)
            elif isinstance(op, Barrier):
                for other in self.pipes.values():
                    past = _joined(past, other)
                self.pipes = dict.fromkeys(PIPES, past)
            elif global_operand(op) is not None:
                self._touched.append((past[0], (0, len(accesses))))
                past = past[0], past[1] | 1 << len(self._touched) - 1
                accesses.append((({}, (op,)),))
            self.pipes[op.pipe] = past
        return accesses

    def call(self, effect: _Effect, touched: list[Touched]) -> None:
        """Do what a body does, whose accesses are *touched*."""
        found = self._find(effect)
        pasts = []
        for numbers, waits, accesses in effect.unions:
            if len(numbers) == 1 and not waits and not accesses:
                pasts.append(found[numbers[0]])
                continue
            waits, accesses = waits << self._waits, accesses << len(self._touched)
            for number in numbers:
                past = found[number]
                waits |= past[0]
                accesses |= past[1]
            pasts.append((waits, accesses))
        self.pipes = {pipe: pasts[x] for pipe, x in zip(PIPES, effect.pipes, strict=True)}
        for flag, taken, given in effect.flags:
            held = self.flags.setdefault(flag, deque())
            for _ in range(taken):
                held.popleft()
            held.extend([pasts[x] for x in given])
            self._taken[flag] = self._taken.get(flag, 0) + taken
        self._uses += [(op, self._count + index, pasts[x]) for op, index, x in effect.uses]
        follows = zip(effect.touched, touched, strict=True)
        self._touched += [(pasts[x][0], place) for x, place in follows]
        self._waits += effect.waits
        self._count += effect.micro_ops

    def _find(self, effect: _Effect) -> list[Past]:
        """The pasts that a body finds: those of the pipes, then those of flags that it takes."""
        found = list(self.pipes.values())
        for flag, taken, _ in effect.flags:
            held = self.flags.get(flag, ())
            found += [held[number] for number in range(taken)]
        return found

    # ---- what came of it ----

    def effect(self) -> tuple[_Effect, list[list[int]]]:
        """What all of it does to pasts, and its accesses, those together that are alike."""
        flags = []
        # Unknown past -> its number among those that `_find` gives
        number_of = {number: number for number in range(len(PIPES))}
        first = len(PIPES)
        for flag, held in self.flags.items():
            up = self._up.get(flag, 0)
            taken = min(self._taken.get(flag, 0), up)
            number_of |= {first + x: len(number_of) + x for x in range(taken)}
            first += up
            if taken or len(held) > up:
                flags.append((flag, taken, list(held)[up - taken :]))
        handed_on = [*self.pipes.values(), *(past for _, _, given in flags for past in given)]
        alike = self._alike([*handed_on, *(past for _, _, past in self._uses)])
        group_of = {access: number for number, group in enumerate(alike) for access in group}
        unions: dict[_Union, int] = {}

        def union(past: Past) -> int:
            waits, accesses = past
            found = tuple(number_of[x] for x in _bits(waits & (1 << self._unknown) - 1))
            groups = sum(1 << group for group in {group_of[x] for x in _bits(accesses)})
            return unions.setdefault(_Union(found, waits >> self._unknown, groups), len(unions))

        pipes = tuple(map(union, self.pipes.values()))
        given = tuple((flag, taken, tuple(map(union, pasts))) for flag, taken, pasts in flags)
        uses = tuple(_Use(op, index, union(past)) for op, index, past in self._uses)
        touched = tuple(union((self._touched[group[0]][0], 0)) for group in alike)
        waits = self._waits - self._unknown
        effect = _Effect(tuple(unions), pipes, given, uses, touched, waits, self._count)
        return effect, alike

    def _alike(self, handed_on: Iterable[Past]) -> list[list[int]]:
        """The accesses, together those that follow the same and are in the same of these pasts."""
        later = [0] * len(self._touched)
        for number, accesses in enumerate(dict.fromkeys(past[1] for past in handed_on)):
            for access in _bits(accesses):
                later[access] |= 1 << number
        groups: dict[tuple[int, int], list[int]] = {}
        for access, (waits, _) in enumerate(self._touched):
            groups.setdefault((waits, later[access]), []).append(access)
        return list(groups.values())

    def record(self) -> Record:
        """All of it, from the start of a program on."""
        found = Record()
        counts = {CrossCoreSetFlag: 0, CrossCoreWaitFlag: 0}
        sets: dict[Pipe, list[tuple[int, int]]] = {}
        for op, index, (waits, accesses) in self._uses:
            number = counts[type(op)]
            counts[type(op)] += 1
            found.flags.append(FlagUse(op, index, waits, number))
            if isinstance(op, CrossCoreSetFlag):
                sets.setdefault(op.pipe, []).append((number, accesses))
        later = [0] * len(self._touched)
        for of_pipe in sets.values():
            # The past of a pipe only grows: what comes before a set comes before all later ones.
            seen, after = 0, sum(1 << number for number, _ in of_pipe)
            for number, accesses in of_pipe:
                for access in _bits(accesses & ~seen):
                    later[access] |= after
                seen |= accesses
                after ^= 1 << number
        epochs: dict[tuple[int, int], Epoch] = {}
        for (waits, place), after in zip(self._touched, later, strict=True):
            epoch = epochs.setdefault((waits, after), Epoch(waits, after))
            epoch.touched.append(place)
        found.epochs = list(epochs.values())
        return found


def _joined(past: Past, other: Past) -> Past:
    return past[0] | other[0], past[1] | other[1]


def _bits(number: int) -> Iterator[int]:
    """Which bits of *number* are set, ascending."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def _matters(op: MicroOp) -> bool:
    orders = SetFlag | WaitFlag | CrossCoreSetFlag | CrossCoreWaitFlag
    return isinstance(op, orders) or op == Barrier() or global_operand(op) is not None
