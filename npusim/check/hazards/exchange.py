"""What cores of a group know of each other, call by call, as states that recur.

Cores that exchange flags are walked together, call by call, each as far as the flags allow. The
state of the walk consists of *pasts*: a bit for each event that some core may not know of yet.
Events are:

- a call's accesses to memory of the group: conflicting ones must be in each other's past;
- the wait for a flag of the group: the setter may be only a limited number of sets ahead of it;
- the wait for a flag of all cores: accesses that follow it belong to the next *phase*;
- an access to memory that groups share: a flag of all cores must follow it before its phase ends.

An event that everyone who needs to know has learnt is dropped, and bits are renumbered, so a
steady loop returns to a state seen before. From there a call leads to the same state again: a walk
is one table look-up per call, however many groups there are.

A walk that finishes proves that no accesses of a group race, that no wait is endless, and that no
counter overflows. It is conservative, and one that does not finish proves nothing: calls are not
split, and of flags of all cores only the waits count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Literal, NamedTuple

from npusim.check.hazards.flags import Flag
from npusim.check.hazards.pasts import PIPES, Effect, Use, bits_of
from npusim.isa import CrossCoreSetFlag

__all__ = ["MOST_SETS", "NO_PHASE", "Exchange", "Members", "Touch", "Visible"]

MOST_SETS = 16
"""Sets of a flag that a core may not have waited for yet.

Assumed: today's page has the counter go up to 15, an older one allows 16 sets (asc-devkit,
CrossCoreSetFlag(ISASI).md), and the msd kernel, whose ring has two halves of up to 8
slots like the vendor's (ops-nn, weight_quant_batch_matmul_v2, *_msd_split_k.h), sets a flag
16 times ahead.
"""
MOST_EVENTS = 256
"""Most events of a state: if nobody learns of anything, no state recurs."""
Past = int
Pipes = frozenset[int]
"""Indices in PIPES."""
NO_PHASE = -1


class Touch(NamedTuple):
    """Accesses of a call by the same pipes."""

    accesses: tuple[int, ...]
    """Their indices; who knows of the last one knows of all."""
    footprint: int
    """The number of what they touch within the group, 0 for nothing."""
    is_phased: bool
    """Whether they touch memory that groups share."""


@dataclass(frozen=True, slots=True, eq=False)
class Visible:
    """What other cores can see of a call."""

    effect: Effect
    touches: tuple[Touch, ...]


Kind = Literal["access", "wait", "all", "open"]


class Event(NamedTuple):
    core: int
    kind: Kind
    what: int
    """The number of the footprint, of the flag, or of the phase."""


class State(NamedTuple):
    """The state of the cores of a group; pasts are sets of events by number."""

    events: tuple[Event, ...]
    pipes: tuple[tuple[Past, ...], ...]
    """For each core and pipe."""
    flags: tuple[tuple[tuple[Flag, tuple[Past, ...]], ...], ...]
    """For each core, the flags within it that are set."""
    sent: tuple[tuple[tuple[int, int, int], tuple[Past, ...]], ...]
    """Setter, receiver and flag of the group -> its sets that have not been waited for yet."""
    sets: tuple[int, ...]
    """For each core, its sets of flags of all cores; *waits* counts its waits for them."""
    waits: tuple[int, ...]
    """Waits before *floor* are known to all."""
    floor: int


class Move(NamedTuple):
    """The result of a call."""

    state: int
    phase: int
    """The phase of its accesses to memory that groups share, NO_PHASE without."""


BLOCKED = Move(-1, NO_PHASE)
"""The result of a call that has to wait for others."""


@dataclass(frozen=True, slots=True)
class Members:
    """The cores of a group, and which pipes of each matter to the others."""

    kinds: tuple[str, ...]
    touching: tuple[Pipes, ...]
    """Those that touch memory shared within the group."""
    phased: tuple[Pipes, ...]
    """Those that touch memory that groups share."""
    setting: tuple[Pipes, ...]
    """Those that set flags of the group."""
    setting_all: tuple[Pipes, ...]
    """Those that set flags of all cores; empty if its kind has none."""
    phases: int
    """How often all cores wait for each other."""

    def others(self, core: int) -> list[int]:
        """The cores that flags of the group tie to *core*."""
        return [x for x, kind in enumerate(self.kinds) if kind != self.kinds[core]]


class Exchange:
    """Walks groups of the same *members*."""

    def __init__(self, members: Members, clash: Callable[[int, int], bool]) -> None:
        """*clash* says whether two footprints race unless they are ordered."""
        self._members, self._clash = members, clash
        count = len(members.kinds)
        nothing = (0,) * len(PIPES)
        start = State((), (nothing,) * count, ((),) * count, (), (0,) * count, (0,) * count, 0)
        self._states, self._numbers = [start], {start: 0}
        self._moves: dict[tuple[int, int, int], Move | None] = {}

    def walk(
        self, calls: Sequence[Sequence[int]], visible: Sequence[Visible]
    ) -> list[list[int]] | None:
        """The phase of each call of each core; *calls* are numbers of *visible*.

        None if the walk does not finish.
        """
        state, moves = 0, self._moves
        phases: list[list[int]] = [[] for _ in calls]
        is_moving = True
        while is_moving:
            is_moving = False
            for core, own in enumerate(calls):
                found = phases[core]
                while len(found) < len(own):
                    call = own[len(found)]
                    key = state, core, call
                    move = moves.get(key, BLOCKED)
                    if key not in moves:
                        move = moves[key] = self._move(state, core, visible[call])
                    if move is None:
                        return None
                    if move is BLOCKED:
                        break
                    state, phase = move
                    found.append(phase)
                    is_moving = True
        return phases if [*map(len, phases)] == [*map(len, calls)] else None

    def _move(self, number: int, core: int, call: Visible) -> Move | None:
        stand = _Standing(self._members, self._states[number], core)
        is_through = stand.call(call, self._clash)
        if not is_through:
            return BLOCKED if is_through is None else None
        state = stand.state()
        if state is None:
            return None
        after = self._numbers.setdefault(state, len(self._states))
        if after == len(self._states):
            self._states.append(state)
        return Move(after, stand.phase)


class _Pasts:
    """Resolves the unions of a body where it is called, on demand."""

    def __init__(self, effect: Effect, found: Sequence[Past], accesses: Sequence[Past]) -> None:
        self._unions, self._found, self._accesses = effect.unions, found, accesses
        self.waits: list[Past] = []
        """What each finished wait for a flag between cores has taught."""
        self._known: dict[int, Past] = {}

    def __getitem__(self, number: int) -> Past:
        if number not in self._known:
            base, found, waits, accesses = self._unions[number]
            past = self[base] if base >= 0 else 0
            for each, bits in ((self.waits, waits), (self._accesses, accesses)):
                for place in bits_of(bits):
                    past |= each[place]
            for place in found:
                past |= self._found[place]
            self._known[number] = past
        return self._known[number]


class _Standing:
    """The state of a group while *core* makes a call."""

    def __init__(self, members: Members, state: State, core: int) -> None:
        self._members, self._core = members, core
        self._events = [*state.events]
        self._pipes = [*state.pipes]
        self._flags = [dict(held) for held in state.flags]
        self._sent = dict(state.sent)
        self._sets, self._waits, self._floor = [*state.sets], [*state.waits], state.floor
        self._met: list[tuple[int, Past]] = []
        """Sets of flags of all cores, and what precedes them."""
        self._over: Past = 0
        """Events that are over for everyone who could encounter them."""
        self.phase = NO_PHASE

    # ---- a call ----

    def call(self, call: Visible, clash: Callable[[int, int], bool]) -> bool | None:
        """Make *call*; return whether it is known to be correct, None if it has to wait."""
        effect, core = call.effect, self._core
        found = [*self._pipes[core]]
        for flag, taken, _ in effect.flags:
            found += self._flags[core].get(flag, ())[:taken]
        others = [
            (1 << number, event.what)
            for number, event in enumerate(self._events)
            if event.kind == "access" and event.core != core
        ]
        accesses = [0] * len(effect.touched)
        for touch in call.touches:
            accesses[touch.accesses[-1]] = (
                self._add("access", touch.footprint) if touch.footprint else 0
            ) | (self._add("open", NO_PHASE) if touch.is_phased else 0)
        pasts = _Pasts(effect, found, accesses)
        for use in effect.uses:
            is_right = self._use(use, pasts)
            if not is_right:
                return is_right
        for number, footprint, is_phased in call.touches:
            past = reduce(and_, [pasts[effect.touched[x]] for x in number])
            if footprint and any(not past & bit and clash(footprint, x) for bit, x in others):
                return False
            if is_phased and not self._opens(past, accesses[number[-1]]):
                return False
        self._pipes[core] = tuple([pasts[x] for x in effect.pipes])
        for flag, taken, given in effect.flags:
            held = self._flags[core].get(flag, ())
            self._flags[core][flag] = held[taken:] + tuple([pasts[x] for x in given])
        return True

    def _add(self, kind: Kind, what: int) -> Past:
        self._events.append(Event(self._core, kind, what))
        return 1 << len(self._events) - 1

    def _of_kind(self, kind: Kind) -> list[tuple[int, Event]]:
        return [(x, event) for x, event in enumerate(self._events) if event.kind == kind]

    def _use(self, use: Use, pasts: _Pasts) -> bool | None:
        is_set, flag = isinstance(use.op, CrossCoreSetFlag), use.op.event
        if use.op.mode == "group":
            return self._set(flag, pasts[use.past]) if is_set else self._wait(flag, pasts)
        return self._set_all(pasts[use.past]) if is_set else self._wait_all(pasts)

    # ---- flags of the group ----

    def _set(self, flag: int, past: Past) -> bool:
        for other in self._members.others(self._core):
            key = self._core, other, flag
            unawaited = self._sent.get(key, ())
            waits = [
                past >> x & 1
                for x, event in self._of_kind("wait")
                if (event.core, event.what) == (other, flag)
            ]
            # From the first one that this core may not know of.
            unknown = len(waits) - waits.index(0) if 0 in waits else 0
            if len(unawaited) + unknown >= MOST_SETS:
                return False
            self._sent[key] = *unawaited, past
        return True

    def _wait(self, flag: int, pasts: _Pasts) -> bool | None:
        learnt: Past = 0
        keys = [(other, self._core, flag) for other in self._members.others(self._core)]
        if not keys or not all(self._sent.get(key) for key in keys):
            return None
        for key in keys:
            first, *rest = self._sent[key]
            learnt |= first
            self._sent[key] = tuple(rest)
        pasts.waits.append(learnt | self._add("wait", flag))
        return True

    # ---- flags of all cores ----

    def _waits_of(self, number: int) -> dict[int, Past]:
        """For the cores that have made wait *number* for all cores, its bit."""
        found = self._of_kind("all")
        return {event.core: 1 << x for x, event in found if event.what == number}

    def _set_all(self, past: Past) -> bool:
        number, core = self._sets[self._core], self._core
        if any(past >> x & 1 and event.what >= number for x, event in self._of_kind("all")):
            return False  # It would wait for itself.
        full = number - MOST_SETS
        if full >= self._floor and not past & self._waits_of(full).get(core, 0):
            return False
        self._met.append((number, past))
        self._sets[core] += 1
        return True

    def _wait_all(self, pasts: _Pasts) -> bool | None:
        number = self._waits[self._core]
        if self._sets[self._core] <= number:
            return None
        self._waits[self._core] += 1
        pasts.waits.append(self._add("all", number))
        return True

    def _opens(self, past: Past, bits: Past) -> bool:
        """Whether an access to memory that groups share, the last of *bits*, is in this phase."""
        phase = self._floor
        while any(past & bit for bit in self._waits_of(phase).values()):
            phase += 1
        if self.phase not in (NO_PHASE, phase):
            return False
        self.phase, number = phase, bits.bit_length() - 1
        self._events[number] = self._events[number]._replace(what=phase)
        if phase == self._members.phases:
            self._over |= 1 << number
        return True

    # ---- result ----

    def state(self) -> State | None:
        """The state afterwards, without events that are over for all; None if it is not certain."""
        if not self._close():
            return None
        members, every = self._members, range(len(self._pipes))
        known = [self._known(members.touching, [x for x in every if x != core]) for core in every]
        of_waits = [self._known(members.setting, members.others(core)) for core in every]
        first = set[tuple[int, int]]()
        for x, (core, kind, flag) in enumerate(self._events):
            if kind == "access":
                self._over |= known[core] & 1 << x
            elif kind == "wait":
                # A later event is not dropped before this one.
                if not of_waits[core] >> x & 1:
                    first.add((core, flag))
                if (core, flag) not in first:
                    self._over |= 1 << x
        while self._is_over(self._floor):
            self._floor += 1
        left = [x for x in range(len(self._events)) if not self._over >> x & 1]
        left.sort(key=self._events.__getitem__)
        return self._renumbered(left) if len(left) <= MOST_EVENTS else None

    def _known(self, pipes: Sequence[Pipes], cores: Iterable[int]) -> Past:
        """The events that all *pipes* of *cores* know of."""
        pasts = (self._pipes[core][pipe] for core in cores for pipe in pipes[core])
        return reduce(and_, pasts, -1)

    def _close(self) -> bool:
        """Close events that a flag of all cores surely follows; return whether none is left."""
        setting = self._members.setting_all
        known = {core: self._known(setting, (core,)) for core, x in enumerate(setting) if x}
        for x, event in self._of_kind("open"):
            ahead = [past for core, past in known.items() if self._sets[core] <= event.what]
            met = [past for number, past in self._met if number <= event.what]
            if any(past >> x & 1 for past in (*ahead, *met)):
                self._over |= 1 << x
            elif not ahead and not self._over >> x & 1:
                return False
        return True

    def _is_over(self, number: int) -> bool:
        """Whether wait *number* for all cores is over for all; it is then dropped."""
        members, bits = self._members, self._waits_of(number)
        cores = [core for core, pipes in enumerate(members.setting_all) if pipes]
        if not cores or not all(core in bits and self._sets[core] > number for core in cores):
            return False
        every = sum(bits.values())
        touching = [
            past[pipe]
            for past, own in zip(self._pipes, members.phased, strict=True)
            for pipe in own
        ]
        if not all(past & every for past in touching):
            return False
        if not all(self._known(members.setting_all, (core,)) & bits[core] for core in cores):
            return False
        self._over |= every
        return True

    def _renumbered(self, left: list[int]) -> State:
        """The state with the events *left*, renumbered in this order."""
        known = dict[Past, Past]()
        bits = [(1 << x, 1 << place) for place, x in enumerate(left)]

        def renumbered(pasts: Iterable[Past]) -> tuple[Past, ...]:
            for past in pasts:
                if past not in known:
                    known[past] = sum([new for old, new in bits if past & old])
            return tuple([known[past] for past in pasts])

        flags = [
            tuple(sorted((flag, renumbered(held)) for flag, held in own.items() if held))
            for own in self._flags
        ]
        sent = sorted((key, renumbered(pasts)) for key, pasts in self._sent.items() if pasts)
        return State(
            tuple([self._events[x] for x in left]),
            tuple(map(renumbered, self._pipes)),
            tuple(flags),
            tuple(sent),
            tuple(self._sets),
            tuple(self._waits),
            self._floor,
        )
