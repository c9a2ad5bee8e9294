"""Programs that do the same again and again are walked in part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from npusim.check.hazards.aliases import NO_ALIASES, Aliases, Touched, aliases, touched
from npusim.check.hazards.states import START, States
from npusim.check.hazards.walk import shared_names, walk
from npusim.isa import Barrier, MicroOp
from npusim.kernel.program import Block, Body, Program

__all__ = ["Orders", "order"]

EVERYTHING = (Barrier(),)
"""What ends a call after which all pipes are done."""


@dataclass(frozen=True, slots=True, eq=False)
class _Numbered:
    """A body, and the number that it shares with all equal ones."""

    number: int
    body: Body


@dataclass(slots=True)
class Orders:
    """The orders of the programs of a launch; what was found for one serves those alike."""

    _found: dict[tuple[Program, Aliases], Sequence[int]] = field(default_factory=dict)
    _equal: dict[tuple[MicroOp, ...], _Numbered] = field(default_factory=dict)
    _by_body: dict[Body, _Numbered] = field(default_factory=dict)
    _states: States = field(default_factory=States)
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
            numbered = self._equal.get(body.ops)
            if numbered is None:
                numbered = self._equal[body.ops] = _Numbered(len(self._equal), body)
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
        state = START
        for call in program.calls:
            number = self._numbered(call.body)
            after = self._states.after(state, number.number, number.body)
            if after is None:
                return False  # The whole program says what is wrong, with its own numbers.
            state = after
        return self._states.is_even(state)


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
    segment: dict[Body, None] = {}
    for number, call in enumerate(program.calls, 1):
        segment[call.body] = None
        if call.ops[-1:] == EVERYTHING or number == len(program.calls):
            if shared_names((op for body in segment for op in body), aliases):
                return True
            segment.clear()
    return False
