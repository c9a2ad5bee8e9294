"""Programs with repeated parts are walked only in part."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from npusim.check.hazards.aliases import NO_ALIASES, Aliases, Touched, aliases, touched
from npusim.check.hazards.envelopes import Envelopes
from npusim.check.hazards.states import START, States
from npusim.check.hazards.walk import walk
from npusim.devices.schema import Pipe
from npusim.isa import Barrier, MicroOp, ScalarLoadGlobal, writes_global
from npusim.kernel.program import Block, Body, Call, Program
from npusim.kernel.table import Calls, LaunchTable, MicroOps, in_pairs

__all__ = ["Orders", "order"]

_Touch = tuple[str, Pipe, bool]
"""A name of global memory, the pipe that touches it, and whether it is written."""
_STAGES: WeakKeyDictionary[Body, tuple[frozenset[_Touch], ...]] = WeakKeyDictionary()
EVERYTHING = (Barrier(),)
"""Micro-ops after which all pipes have finished."""


@dataclass(frozen=True, slots=True, eq=False)
class _Numbered:
    """A body, and the number that it shares with all equal ones."""

    number: int
    body: Body
    calls: tuple[_Numbered, ...] = ()
    """The bodies that it calls, if it makes calls."""


@dataclass(slots=True)
class _Led:
    """States, and the state that each body leads to."""

    states: States
    led: dict[tuple[int, int], int | None] = field(default_factory=dict)
    """State and number of a body -> the state that it leads to, or None."""

    def after(self, state: int, body: _Numbered) -> int | None:
        """The state that *body* leads to, or None."""
        key = state, body.number
        if key not in self.led:
            after: int | None = state
            for call in body.calls:
                after = None if after is None else self.after(after, call)
            self.led[key] = after if body.calls else self.states.after(state, body.body)
        return self.led[key]

    def passes(self, body: _Numbered) -> bool:
        """Whether *body*, from the start, runs in program order and leaves no flag set."""
        state = self.after(START, body)
        return state is not None and self.states.is_even(state)


@dataclass(slots=True)
class Orders:
    """The orders of the programs of a launch; a result for one is reused for equivalent ones."""

    micro_ops: MicroOps = field(default_factory=MicroOps)
    _found: dict[tuple[Program, Aliases], Sequence[int]] = field(default_factory=dict)
    _equal: dict[Hashable, _Numbered] = field(default_factory=dict)
    """Micro-ops, or calls by their numbers and shifts -> the body that has them."""
    _by_body: dict[Body, _Numbered] = field(default_factory=dict)
    _states: dict[tuple[frozenset[Pipe], frozenset[str]], _Led] = field(default_factory=dict)
    """Pipes, and names that they share -> the states of programs that use these."""
    _pipes: dict[tuple[Body, frozenset[str]], frozenset[Pipe]] = field(default_factory=dict)
    """Body without calls, and names that pipes share -> the pipes that it uses."""
    _touched: dict[Program, Touched] = field(default_factory=dict)
    _of_bodies: set[Program] = field(default_factory=set)
    """Programs whose order follows from their bodies alone, whatever the calls' offsets."""
    _envelopes: Envelopes = field(default_factory=Envelopes)
    _standing: dict[Body, _Numbered] = field(default_factory=dict)
    """Body -> its envelope, for checks of order with the most bytes."""
    _standing_equal: dict[Hashable, _Numbered] = field(default_factory=dict)
    _states_of_most: dict[frozenset[Pipe], _Led] = field(default_factory=dict)
    """Pipes -> the states of programs that use these, with the most bytes."""
    _whole: dict[Program, Body] = field(default_factory=dict)

    @staticmethod
    def of_launch(launch: LaunchTable) -> Orders:
        """The orders for *launch*, with the envelopes of its bodies found first."""
        envelopes = Envelopes.of(launch.bodies, launch.micro_ops)
        return Orders(micro_ops=launch.micro_ops, _envelopes=envelopes, _whole=launch.whole())

    def of_block(self, block: Block, like: Block | None = None) -> Sequence[int]:
        """The :func:`order` of the program of *block*, whose names may share a tensor.

        *like* is a block of the same sequence (see :meth:`LaunchTable.sequences`) that was checked
        before: if its order follows from its bodies alone, it applies to *block* too.
        """
        if like is not None and like.program in self._of_bodies:
            key = block.program, NO_ALIASES
            return self._found.setdefault(key, self._found[like.program, NO_ALIASES])
        tensors = {bound.tensor for bound in block.bindings.values()}
        if len(tensors) == len(block.bindings):
            return self.of(block.program)
        if block.program not in self._touched:
            self._touched[block.program] = touched(block.program)
        return self.of(block.program, aliases(block, self._touched[block.program]))

    def of(self, program: Program, aliases: Aliases = NO_ALIASES) -> Sequence[int]:
        """The :func:`order` of *program* if its names are *aliases*."""
        key = program, aliases
        if key not in self._found:
            self._found[key] = self._order(program, aliases)
            # The order does not depend on the aliases.
            self._found.setdefault((program, NO_ALIASES), self._found[key])
        return self._found[key]

    def whole(self, program: Program) -> Body:
        """All calls of *program* as one body, without shifts, see :func:`in_pairs`."""
        if program not in self._whole:
            calls = Calls.of(program)
            edges = np.array([0, calls.body.size])
            (self._whole[program],) = in_pairs(calls.bodies, calls.body, edges)
        return self._whole[program]

    def number(self, body: Body) -> int:
        """The number that *body* shares with all equal ones."""
        return self._numbered(body).number

    def sequence(self, program: Program) -> tuple[int, ...]:
        """The bodies of *program*, with equal ones under the same number."""
        return tuple([self._numbered(body).number for body in program.called])

    def _numbered(self, body: Body) -> _Numbered:
        numbered = self._by_body.get(body)
        if numbered is None:
            calls = tuple([self._numbered(call.body) for call in body.calls])
            shifts = [tuple(sorted(call.shifts.items())) for call in body.calls]
            key: Hashable = tuple(zip([call.number for call in calls], shifts, strict=True))
            if not calls:
                key = tuple(self.micro_ops.of(body))
            numbered = self._equal.get(key)
            if numbered is None:
                numbered = self._equal[key] = _Numbered(len(self._equal), body, calls)
            self._by_body[body] = numbered
        return numbered

    def _standing_for(self, body: Body) -> _Numbered:
        """The envelope of *body*, for checks of order with the most bytes."""
        found = self._standing.get(body)
        if found is None:
            calls = tuple(self._standing_for(call.body) for call in body.calls)
            one = body if calls else self._envelopes.standing[body]
            key: Hashable = tuple(call.number for call in calls) if calls else one
            number = len(self._standing_equal)
            found = self._standing_equal.setdefault(key, _Numbered(number, one, calls))
            self._standing[body] = found
        return found

    def _order(self, program: Program, aliases: Aliases) -> Sequence[int]:
        whole = self.whole(program)
        shared = _shared(program, whole, aliases) if whole.calls else None
        if shared is not None and self._passes(program, shared):
            if aliases is NO_ALIASES:
                self._of_bodies.add(program)
            return range(len(program))
        found = walk(program, aliases)
        return range(len(found)) if found == list(range(len(found))) else tuple(found)

    def _passes(self, program: Program, shared: frozenset[str]) -> bool:
        """Whether each micro-op of *program* starts without waiting, and no flag is left set.

        *shared* are the names of global memory that several of its pipes touch.
        """
        for body in program.leaves:
            if (body, shared) not in self._pipes:
                ops = map(self.micro_ops.distinct.__getitem__, {*self.micro_ops.of(body)})
                self._pipes[body, shared] = frozenset(
                    op.pipe for op in ops if not _leaves_no_trace(op, shared)
                )
        pipes = frozenset[Pipe]().union(*(self._pipes[body, shared] for body in program.leaves))
        if not shared and self._passes_with_most(program, pipes):
            return True
        key = pipes, shared
        if key not in self._states:
            states = States(pipes, shared, of_buffers=self._envelopes.of_buffers)
            self._states[key] = _Led(states)
        # Walking the whole program gives the error with its own indices.
        return self._states[key].passes(self._numbered(self.whole(program)))

    def _passes_with_most(self, program: Program, pipes: frozenset[Pipe]) -> bool:
        """The same, with each body replaced by its envelope."""
        if not all(body in self._envelopes.standing for body in program.leaves):
            return False
        if pipes not in self._states_of_most:
            states = States(pipes, touches=self._envelopes.touches)
            self._states_of_most[pipes] = _Led(states)
        return self._states_of_most[pipes].passes(self._standing_for(self.whole(program)))


def order(program: Program) -> Sequence[int]:
    """Indices of the micro-ops in an order that the chip could take: a range if in program order.

    Shared bodies are walked once from each state in which they occur, see :class:`States`, if no
    two pipes touch the same global memory between two barriers of all pipes, except at an offset
    that is the same in all calls. A program that cannot be walked in program order in this way is
    walked in full.

    Raises RaceError, naming both micro-ops, the buffer and the bytes; DeadlockError, naming each
    waiting pipe and its flag; FlagError, naming the flags that are never waited for.
    """
    return Orders().of(program)


def _leaves_no_trace(op: MicroOp, shared: frozenset[str]) -> bool:
    """Whether *op* is one of the scalar unit with which no later micro-op can race.

    A barrier of all pipes, and a read of global memory that is never written, only affect what
    others know afterwards.
    """
    if isinstance(op, ScalarLoadGlobal):
        return op.src.name not in shared
    return op in EVERYTHING


def _shared(program: Program, whole: Body, aliases: Aliases) -> frozenset[str] | None:
    """The names that two pipes touch without a barrier of all pipes in between.

    None if a call shifts one of them, or if names are aliases.
    """
    found = {name for stage in _stages(whole) for name in _clashing(stage, aliases)}
    if found and (aliases is not NO_ALIASES or found & _moved(program)):
        return None
    return frozenset(found)


def _clashing(touched: Iterable[_Touch], aliases: Aliases) -> set[str]:
    """The names that :func:`shared_names` finds in these accesses."""
    pipes: dict[str, set[Pipe]] = {}
    written: set[str] = set()
    for tensor, pipe, is_write in touched:
        name, _ = aliases.place(tensor)
        pipes.setdefault(name, set()).add(pipe)
        if is_write:
            written.add(name)
    return {name for name in written if len(pipes[name]) > 1}


def _moved(program: Program) -> set[str]:
    """The names that some call shifts."""
    calls = Calls.of(program)
    found = {name for name, shifts in zip(calls.names, calls.shifts.T, strict=True) if shifts.any()}
    left, seen = [*program.bodies], set[Body]()
    while left:
        body = left.pop()
        if body not in seen:
            seen.add(body)
            left += [call.body for call in body.calls]
            moved = (call.shifts.items() for call in body.calls)
            found.update(name for shifts in moved for name, nbytes in shifts if nbytes)
    return found


def _stages(body: Body) -> tuple[frozenset[_Touch], ...]:
    """What *body* touches between barriers of all pipes; equal neighbours are joined."""
    known = _STAGES.get(body)
    if known is None:
        known = _STAGES[body] = _of_calls(body.calls) if body.calls else _of_leaf(body)
    return known


def _of_calls(calls: tuple[Call, ...]) -> tuple[frozenset[_Touch], ...]:
    stages: list[frozenset[_Touch]] = [frozenset()]
    for call in calls:
        first, *others = _stages(call.body)
        stages[-1] |= first
        stages += others
    first, *inner = stages
    last = inner[-1:]
    return first, *dict.fromkeys(inner[:-1]), *last


def _of_leaf(body: Body) -> tuple[frozenset[_Touch], ...]:
    stages: list[set[_Touch]] = [set()]
    places = {index: place.name for index, _, place in body.touching}
    for index, op in enumerate(body):
        if index in places:
            stages[-1].add((places[index], op.pipe, writes_global(op)))
        elif type(op) is Barrier and op in EVERYTHING:
            stages.append(set())
    return tuple(map(frozenset, stages))
