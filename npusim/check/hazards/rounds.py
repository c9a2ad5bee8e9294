"""Programs that do the same again and again are walked for two rounds only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from npusim.check.hazards.aliases import NO_ALIASES, Aliases, Touched, aliases, touched
from npusim.check.hazards.walk import Flag, awaited, raised, shared_names, walk
from npusim.isa import Barrier, MicroOp
from npusim.kernel.program import Block, Body, Call, Program

__all__ = ["Orders", "order"]

LONGEST_ROUND = 64
"""Calls in a round that is looked for."""
EVERYTHING = (Barrier(),)
"""What ends a call after which all pipes are done."""


@dataclass(frozen=True, slots=True, eq=False)
class _Numbered:
    """A body, and the number that it shares with all equal ones."""

    number: int
    body: Body
    raised: Counter[Flag]
    """How much more often it raises each flag than it awaits it."""


@dataclass(slots=True)
class Orders:
    """The orders of the programs of a launch; what was found for one serves those alike."""

    _found: dict[tuple[Program, Aliases], Sequence[int]] = field(default_factory=dict)
    _equal: dict[tuple[MicroOp, ...], _Numbered] = field(default_factory=dict)
    _by_body: dict[Body, _Numbered] = field(default_factory=dict)
    _passed: set[tuple[int, ...]] = field(default_factory=set)
    """Sequences of bodies that may run in program order."""
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
                counts: Counter[Flag] = Counter()
                counts.update(flag for flag in map(raised, body) if flag is not None)
                counts.subtract(flag for flag in map(awaited, body) if flag is not None)
                numbered = self._equal[body.ops] = _Numbered(len(self._equal), body, counts)
            self._by_body[body] = numbered
        return numbered

    def _order(self, program: Program, aliases: Aliases) -> Sequence[int]:
        is_long = len(program.calls) > 1
        if is_long and not _shares(program, aliases) and self._passes(program):
            return range(len(program))
        found = walk(program, aliases)
        return range(len(found)) if found == list(range(len(found))) else tuple(found)

    def _passes(self, program: Program) -> bool:
        """Whether two rounds of each loop, walked in place of all, keep program order."""
        sequence = self._shortened([self._numbered(call.body) for call in program.calls])
        numbers = tuple(each.number for each in sequence)
        if numbers not in self._passed:
            short = Program(program.name, tuple(Call(each.body) for each in sequence))
            try:
                keeps = walk(short) == list(range(len(short)))
            except RuntimeError:
                return False  # The whole program says what is wrong, with its own numbers.
            if not keeps:
                return False
            self._passed.add(numbers)
        return True

    def _shortened(self, sequence: list[_Numbered]) -> list[_Numbered]:
        """*sequence* with two rounds left of each loop, loops in loops too."""
        while True:
            shorter: list[_Numbered] = []
            at = 0
            while at < len(sequence):
                period, rounds = _loop(sequence, at)
                shorter += sequence[at : at + period * min(rounds, 2)]
                at += period * rounds
            if len(shorter) == len(sequence):
                return shorter
            sequence = shorter


def order(program: Program) -> Sequence[int]:
    """Indices of the micro-ops in an order that the chip could take: a range in program order.

    A loop, which is a round of one or more bodies that comes three times or more, is walked for two
    rounds if a round raises each flag as often as it awaits it, and if no two pipes touch the same
    global memory, where rounds differ, from one barrier of all pipes to the next. That is enough.
    Flags are counted, so the n-th wait takes the n-th set, and in a balanced loop a chain of flags
    from round 0 to round 1 is found again from any round to the next. Pipes are in order, so what
    follows an access of the last round follows those of all rounds before. What leads from before
    the loop to round 0, or from its last round on, stays as it is; a wait after the loop takes a
    later set of the same pipe when there are more rounds, and so learns no less. If two rounds run
    in program order, they leave the flags as they were, and so does every further one. Whatever two
    rounds do not decide is walked in full.

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


def _loop(sequence: list[_Numbered], at: int) -> tuple[int, int]:
    """Calls in a round, and rounds, of the loop that begins *at*; (1, 1) if none does."""
    first = sequence[at]
    for period in range(1, min(LONGEST_ROUND, (len(sequence) - at) // 3) + 1):
        if sequence[at + period] is not first or sequence[at + 2 * period] is not first:
            continue
        one = sequence[at : at + period]
        rounds = 1
        while sequence[at + rounds * period : at + (rounds + 1) * period] == one:
            rounds += 1
        if rounds > 2 and _is_balanced(one):
            return period, rounds
    return 1, 1


def _is_balanced(bodies: list[_Numbered]) -> bool:
    total: Counter[Flag] = Counter()
    for body in bodies:
        total.update(body.raised)
    return not any(total.values())
