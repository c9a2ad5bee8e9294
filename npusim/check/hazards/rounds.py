"""Programs that do the same again and again are walked in part."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from npusim.check.hazards.aliases import NO_ALIASES, Aliases, Touched, aliases, touched
from npusim.check.hazards.states import START, States
from npusim.check.hazards.walk import shared_names, walk
from npusim.devices.schema import Pipe
from npusim.isa import Barrier, MicroOp, ScalarLoadGlobal
from npusim.kernel.program import Block, Body, Call, Program

__all__ = ["Orders", "order"]

_Run = Body | tuple[MicroOp, ...]
EVERYTHING = (Barrier(),)
"""Micro-ops after which all pipes are done."""


@dataclass(frozen=True, slots=True, eq=False)
class _Numbered:
    """A body, and the number that it shares with all equal ones."""

    number: int
    body: Body
    calls: tuple[_Numbered, ...] = ()
    """What it calls, if it makes calls."""


@dataclass(slots=True)
class _Led:
    """States, and where bodies lead."""

    states: States
    led: dict[tuple[int, int], int | None] = field(default_factory=dict)
    """State and number of a body -> the state that it leads to, or None."""

    def after(self, state: int, bodies: tuple[_Numbered, ...]) -> int | None:
        """The state that *bodies* lead to, one after the other, or None."""
        for body in bodies:
            key = state, body.number
            if key not in self.led:
                self.led[key] = (
                    self.after(state, body.calls)
                    if body.calls
                    else self.states.after(state, body.body)
                )
            after = self.led[key]
            if after is None:
                return None
            state = after
        return state


@dataclass(slots=True)
class Orders:
    """The orders of the programs of a launch; what was found for one serves those alike."""

    _found: dict[tuple[Program, Aliases], Sequence[int]] = field(default_factory=dict)
    _equal: dict[Hashable, _Numbered] = field(default_factory=dict)
    """Micro-ops, or calls by their numbers and shifts -> the body that has them."""
    _by_body: dict[Body, _Numbered] = field(default_factory=dict)
    _states: dict[tuple[frozenset[Pipe], frozenset[str]], _Led] = field(default_factory=dict)
    """Pipes, and names that they share -> the states of programs that use these."""
    _pipes: dict[tuple[Body, frozenset[str]], frozenset[Pipe]] = field(default_factory=dict)
    """Body without calls, and names that pipes share -> the pipes that it uses."""
    _touched: dict[Program, Touched] = field(default_factory=dict)

    def of_block(self, block: Block) -> Sequence[int]:
        """What :func:`order` says of the program of *block*, whose names may share a tensor."""
        tensors = {bound.tensor for bound in block.bindings.values()}
        if len(tensors) == len(block.bindings):
            return self.of(block.program)
        if block.program not in self._touched:
            self._touched[block.program] = touched(block.program)
        return self.of(block.program, aliases(block, self._touched[block.program]))

    def of(self, program: Program, aliases: Aliases = NO_ALIASES) -> Sequence[int]:
        """What :func:`order` says of *program* where its names stand for *aliases*."""
        key = program, aliases
        if key not in self._found:
            self._found[key] = self._order(program, aliases)
            # The order is the same whatever the names stand for.
            self._found.setdefault((program, NO_ALIASES), self._found[key])
        return self._found[key]

    def number(self, body: Body) -> int:
        """The number that *body* shares with all equal ones."""
        return self._numbered(body).number

    def sequence(self, program: Program) -> tuple[int, ...]:
        """The bodies of *program*, equal ones by the same number."""
        return tuple(self._numbered(call.body).number for call in program.calls)

    def _numbered(self, body: Body) -> _Numbered:
        numbered = self._by_body.get(body)
        if numbered is None:
            calls = tuple(self._numbered(call.body) for call in body.calls)
            shifts = (tuple(sorted(call.shifts.items())) for call in body.calls)
            key: Hashable = body.parts
            if calls:
                key = tuple((x.number, found) for x, found in zip(calls, shifts, strict=True))
            numbered = self._equal.get(key)
            if numbered is None:
                numbered = self._equal[key] = _Numbered(len(self._equal), body, calls)
            self._by_body[body] = numbered
        return numbered

    def _order(self, program: Program, aliases: Aliases) -> Sequence[int]:
        is_long = len(program.calls) > 1 or any(call.body.calls for call in program.calls)
        shared = _shared(program, aliases) if is_long else None
        if shared is not None and self._passes(program, shared):
            return range(len(program))
        found = walk(program, aliases)
        return range(len(found)) if found == list(range(len(found))) else tuple(found)

    def _passes(self, program: Program, shared: frozenset[str]) -> bool:
        """Whether each micro-op of *program* goes at once, and no flag is left up.

        *shared* are the names of global memory that several of its pipes touch.
        """
        bodies = tuple(self._numbered(call.body) for call in program.calls)
        for body in program.leaves:
            if (body, shared) not in self._pipes:
                self._pipes[body, shared] = frozenset(
                    op.pipe for op in body if not _leaves_no_trace(op, shared)
                )
        pipes = frozenset[Pipe]().union(*(self._pipes[body, shared] for body in program.leaves))
        key = pipes, shared
        if key not in self._states:
            self._states[key] = _Led(States(pipes, shared))
        led = self._states[key]
        state = led.after(START, bodies)
        # The whole program says what is wrong, with its own numbers.
        return state is not None and led.states.is_even(state)


def order(program: Program) -> Sequence[int]:
    """Indices of the micro-ops in an order that the chip could take: a range in program order.

    Bodies that calls share are walked once from each state in which they are found, see
    :class:`States`, if no two pipes touch the same global memory from one barrier of all pipes to
    the next, unless it is where all calls find it in the same place. What does not go in program
    order that way, or not at all, is walked in full.

    Raises RaceError, naming both micro-ops, the buffer and the bytes; DeadlockError, naming each
    waiting pipe and its flag; FlagError, naming the flags that nobody awaits.
    """
    return Orders().of(program)


def _leaves_no_trace(op: MicroOp, shared: frozenset[str]) -> bool:
    """Whether *op* is one of the scalar unit that no later micro-op can race with.

    Of a barrier of all pipes, and of what it reads of global memory that nobody writes, remains
    only what others know afterwards.
    """
    if isinstance(op, ScalarLoadGlobal):
        return op.src.name not in shared
    return op in EVERYTHING


def _shared(program: Program, aliases: Aliases) -> frozenset[str] | None:
    """The names that two pipes touch with no barrier of all pipes between them.

    None where a call moves one of them on, or where names stand for each other.
    """
    segment: dict[_Run, None] = {}
    stages: dict[Body, list[tuple[_Run, ...]]] = {}
    found: set[str] = set()
    for call in program.calls:
        if call.body not in stages:
            stages[call.body] = _stages(call.body)
        first, *others = stages[call.body]
        segment |= dict.fromkeys(first)
        for stage in others:
            found |= shared_names((op for run in segment for op in run), aliases)
            segment = dict.fromkeys(stage)
    found |= shared_names((op for run in segment for op in run), aliases)
    if found and (aliases is not NO_ALIASES or found & _moved(program.calls, {})):
        return None
    return frozenset(found)


def _moved(calls: Iterable[Call], known: dict[Body, set[str]]) -> set[str]:
    """The names that some of *calls*, or some that these make, move on."""
    found: set[str] = set()
    for call in calls:
        found.update(name for name, nbytes in call.shifts.items() if nbytes)
        if call.body not in known:
            known[call.body] = _moved(call.body.calls, known)
        found |= known[call.body]
    return found


def _stages(body: Body) -> list[tuple[_Run, ...]]:
    """*body* from barrier to barrier of all pipes; where it makes calls, the last alone counts."""
    if body.calls:
        return [body.leaves, ()] if _ends(body) else [body.leaves]
    ends = [index for index, op in enumerate(body, 1) if op in EVERYTHING]
    if not ends:
        return [(body,)]
    return [(body.ops[a:b],) for a, b in zip([0, *ends], [*ends, len(body)], strict=True)]


def _ends(body: Body) -> bool:
    """Whether its last micro-op is one after which all pipes are done."""
    return _ends(body.calls[-1].body) if body.calls else body.parts[-1:] == EVERYTHING
