"""What precedes an event on a core, as far as other cores can see it.

Waits, sets and accesses are numbered. What precedes something is a *past*: two integers with a bit
for each wait and for each access, so that the union of two pasts is one operation. Each pipe has a
past, and so has each flag that is set. A micro-op only joins pasts, adds its own bit, and passes
pasts on through flags.

So a body is followed once, from symbolic pasts: one bit for each pipe and for each flag that is
set. Its results are unions of some of these with new bits, and a call of the body substitutes the
actual pasts; unions of unions are unions, so this also holds for nested calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, get_args

from npusim.check.hazards.flags import Flag, awaited, raised
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

__all__ = [
    "PIPES",
    "Accesses",
    "Effect",
    "Epoch",
    "FlagUse",
    "Record",
    "State",
    "Touched",
    "Use",
    "bits_of",
]

PIPES: tuple[Pipe, ...] = get_args(Pipe)
ORDERS = frozenset((SetFlag, WaitFlag, CrossCoreSetFlag, CrossCoreWaitFlag))
Past = tuple[int, int]
"""What precedes: waits, and accesses, one bit each."""
Accesses = tuple[tuple[dict[str, int], tuple[MicroOp, ...]], ...]
"""Micro-ops that touch global memory, and the shifts of their names."""
Touched = tuple[int, int]
"""Accesses of a program: the index of the call, and their index in its body."""


@dataclass(frozen=True, slots=True)
class FlagUse:
    """A set or a wait of a flag between cores, and the waits of its core that precede it."""

    op: CrossCoreSetFlag | CrossCoreWaitFlag
    index: int
    waits: int
    number: int
    """Index among the sets, or the waits, of its core."""


@dataclass(slots=True)
class Epoch:
    """Accesses that follow the same waits and precede the same sets."""

    waits: int
    sets: int = 0
    touched: list[Touched] = field(default_factory=list)


@dataclass(slots=True)
class Record:
    """A program's use of flags between cores, in an order that the core could take."""

    flags: list[FlagUse] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)


class Union(NamedTuple):
    """A past in a body: the initial pasts it contains, by number, and new bits."""

    base: int
    """The number of another union that it contains and that comes before it, or -1."""
    found: tuple[int, ...]
    waits: int
    accesses: int


class Use(NamedTuple):
    """A set or wait of a flag between cores."""

    op: CrossCoreSetFlag | CrossCoreWaitFlag
    number: int
    past: int


class Effect(NamedTuple):
    """The effect of a body on pasts, which are numbers of its unions."""

    unions: tuple[Union, ...]
    pipes: tuple[int, ...]
    """The final past of each pipe."""
    flags: tuple[tuple[Flag, int, tuple[int, ...]], ...]
    """How many pasts are consumed of those that each flag has, and which ones are added."""
    uses: tuple[Use, ...]
    touched: tuple[int, ...]
    """The past that each access follows."""
    waits: int
    """Number of waits."""
    micro_ops: int
    """Number of micro-ops."""


class State:
    """The state of a core: the pasts of its pipes, and of the flags that are set."""

    def __init__(self, unknown: int, up: dict[Flag, int]) -> None:
        """The start of a program; or *unknown* pasts, of the pipes and of the flags in *up*.

        Unknown pasts use the first bits of waits, in the order of `_find`.
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
        """The waits before each access, and the access."""
        self._count = 0
        """Number of micro-ops so far."""

    # ---- execution ----

    def play(self, ops: Iterable[tuple[int, MicroOp]], *, follows_dispatch: bool) -> list[Accesses]:
        """Execute *ops*, with their indices; return their accesses.

        A pipe always learns what the scalar unit knew when it issued a micro-op; only if they
        *follow dispatch*, in program order, is that everything that the scalar unit knows by now.
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

    def call(self, effect: Effect, touched: list[Touched]) -> None:
        """Apply the effect of a body, whose accesses are *touched*."""
        found = self._find(effect)
        pasts = []
        for base, numbers, waits, accesses in effect.unions:
            if base < 0 and len(numbers) == 1 and not waits and not accesses:
                pasts.append(found[numbers[0]])
                continue
            waits, accesses = waits << self._waits, accesses << len(self._touched)
            if base >= 0:
                waits |= pasts[base][0]
                accesses |= pasts[base][1]
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

    def _find(self, effect: Effect) -> list[Past]:
        """The initial pasts of a body: those of the pipes, then those of flags that it consumes."""
        found = list(self.pipes.values())
        for flag, taken, _ in effect.flags:
            held = self.flags.get(flag, ())
            found += [held[number] for number in range(taken)]
        return found

    # ---- results ----

    def effect(self) -> tuple[Effect, list[list[int]]]:
        """The effect on pasts, and the accesses grouped into those that are alike."""
        flags = []
        # Unknown past -> its index in the order of `_find`
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
        unions: dict[Union, int] = {}

        def union(past: Past) -> int:
            waits, accesses = past
            found = tuple(number_of[x] for x in bits_of(waits & (1 << self._unknown) - 1))
            groups = sum(1 << group for group in {group_of[x] for x in bits_of(accesses)})
            whole = Union(-1, found, waits >> self._unknown, groups)
            return unions.setdefault(whole, len(unions))

        pipes = tuple(map(union, self.pipes.values()))
        given = tuple((flag, taken, tuple(map(union, pasts))) for flag, taken, pasts in flags)
        uses = tuple(Use(op, index, union(past)) for op, index, past in self._uses)
        touched = tuple(union((self._touched[group[0]][0], 0)) for group in alike)
        waits = self._waits - self._unknown
        shortened = tuple(map(_shortened, accumulate([union] for union in unions)))
        effect = Effect(shortened, pipes, given, uses, touched, waits, self._count)
        return effect, alike

    def _alike(self, handed_on: Iterable[Past]) -> list[list[int]]:
        """The accesses, grouped by what they follow and by which of these pasts contain them."""
        later = [0] * len(self._touched)
        for number, accesses in enumerate(dict.fromkeys(past[1] for past in handed_on)):
            for access in bits_of(accesses):
                later[access] |= 1 << number
        groups: dict[tuple[int, int], list[int]] = {}
        for access, (waits, _) in enumerate(self._touched):
            groups.setdefault((waits, later[access]), []).append(access)
        return list(groups.values())

    def record(self) -> Record:
        """The record of the whole, starting from the beginning of a program."""
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
            # The past of a pipe only grows: what precedes a set precedes all later ones.
            seen, after = 0, sum(1 << number for number, _ in of_pipe)
            for number, accesses in of_pipe:
                for access in bits_of(accesses & ~seen):
                    later[access] |= after
                seen |= accesses
                after ^= 1 << number
        epochs: dict[tuple[int, int], Epoch] = {}
        for (waits, place), after in zip(self._touched, later, strict=True):
            epoch = epochs.setdefault((waits, after), Epoch(waits, after))
            epoch.touched.append(place)
        found.epochs = list(epochs.values())
        return found


def _shortened(unions: list[Union]) -> Union:
    """The last of *unions*, without what its largest contained union already has."""
    *others, (_, found, waits, accesses) = unions
    base, most = -1, 0
    for number, other in enumerate(others):
        is_part = not other.waits & ~waits and not other.accesses & ~accesses
        if len(other.found) > most and is_part and set(other.found) <= {*found}:
            base, most = number, len(other.found)
    if base < 0:
        return unions[-1]
    part = others[base]
    rest = tuple([number for number in found if number not in part.found])
    return Union(base, rest, waits & ~part.waits, accesses & ~part.accesses)


def _joined(past: Past, other: Past) -> Past:
    return past[0] | other[0], past[1] | other[1]


def bits_of(number: int) -> Iterator[int]:
    """The indices of the bits set in *number*, ascending."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def _matters(op: MicroOp) -> bool:
    if type(op) is Barrier:
        return op.on is None
    return type(op) in ORDERS or global_operand(op) is not None
