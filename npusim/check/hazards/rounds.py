"""Programs that do the same again and again are walked in part."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from npusim.check.hazards.aliases import NO_ALIASES, Aliases, Touched, aliases, touched
from npusim.check.hazards.states import START, States
from npusim.check.hazards.walk import shared_names, walk
from npusim.isa import Barrier, MicroOp
from npusim.kernel.program import Block, Body, Program

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
class Orders:
    """The orders of the programs of a launch; what was found for one serves those alike."""

    _found: dict[tuple[Program, Aliases], Sequence[int]] = field(default_factory=dict)
    _equal: dict[Hashable, _Numbered] = field(default_factory=dict)
    """Micro-ops, or calls by their numbers and shifts -> the body that has them."""
    _by_body: dict[Body, _Numbered] = field(default_factory=dict)
    _states: States = field(default_factory=States)
    _led: dict[tuple[int, int], int | None] = field(default_factory=dict)
    """State and number of a body -> the state that it leads to, or None."""
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
        is_long = len(program.calls) > 1
        if is_long and not _shares(program, aliases) and self._passes(program):
            return range(len(program))
        found = walk(program, aliases)
        return range(len(found)) if found == list(range(len(found))) else tuple(found)

    def _passes(self, program: Program) -> bool:
        """Whether each micro-op of *program* goes at once, and no flag is left up."""
        bodies = tuple(self._numbered(call.body) for call in program.calls)
        state = self._after(START, bodies)
        # The whole program says what is wrong, with its own numbers.
        return state is not None and self._states.is_even(state)

    def _after(self, state: int, bodies: tuple[_Numbered, ...]) -> int | None:
        """The state that *bodies* lead to, one after the other, or None."""
        for body in bodies:
            key = state, body.number
            if key not in self._led:
                self._led[key] = (
                    self._after(state, body.calls)
                    if body.calls
                    else self._states.after(state, body.body)
                )
            after = self._led[key]
            if after is None:
                return None
            state = after
        return state


def order(program: Program) -> Sequence[int]:
    """Indices of the micro-ops in an order that the chip could take: a range in program order.

    Bodies that calls share are walked once from each state in which they are found, see
    :class:`States`, if no two pipes touch the same global memory, where calls differ, from one
    barrier of all pipes to the next. What does not go in program order that way, or not at all, is
    walked in full.

    Raises RaceError, naming both micro-ops, the buffer and the bytes; DeadlockError, naming each
    waiting pipe and its flag; FlagError, naming the flags that nobody awaits.
    """
    return Orders().of(program)


def _shares(program: Program, aliases: Aliases) -> bool:
    """Whether two pipes touch the same global memory with no barrier of all pipes between them."""
    segment: dict[_Run, None] = {}
    stages: dict[Body, list[tuple[_Run, ...]]] = {}
    for call in program.calls:
        if call.body not in stages:
            stages[call.body] = _stages(call.body)
        first, *others = stages[call.body]
        segment |= dict.fromkeys(first)
        for stage in others:
            if shared_names((op for run in segment for op in run), aliases):
                return True
            segment = dict.fromkeys(stage)
    return bool(shared_names((op for run in segment for op in run), aliases))


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
