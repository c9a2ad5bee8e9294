"""Which flags between cores precede and follow each access of a program to global memory.

A program is followed body by body, see ``hazards/pasts``. Of the flags that a body waits for, those
that are set decide which pasts it joins; a body is followed again where they differ. Nothing else
can differ: micro-ops are in program order, and their effect on pasts depends on no number and no
address. Accesses of a body that follow the same pasts, and that are in the same ones of all that it
leaves or sets, are equivalent for everything that follows. They are treated as one access.

Programs whose bodies have the same effect on pasts share one record, whatever their addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.check.hazards.flags import Flag, awaited
from npusim.check.hazards.pasts import PIPES, Accesses, Effect, Record, State
from npusim.check.hazards.rounds import Orders
from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag, MicroOp
from npusim.kernel.program import Body, Call, Program, added
from npusim.kernel.table import Calls, spread

__all__ = ["Called", "Followed", "Recorder", "has_cross_core_flags"]


@dataclass(frozen=True, slots=True)
class Called:
    """The calls of a program, or of its bodies that have many flags, one per row."""

    accesses: list[tuple[Accesses, ...]]
    """The accesses of each call's body."""
    names: tuple[str, ...]
    shifts: NDArray[np.int64]
    """The shift of each of *names* in a call, `(calls, names)`."""

    def __getitem__(self, call: int) -> tuple[dict[str, int], tuple[Accesses, ...]]:
        """The shifts of a call, and the accesses of its body."""
        row = self.shifts[call].tolist()
        return dict(zip(self.names, row, strict=True)), self.accesses[call]


class Followed(NamedTuple):
    """A body, followed from a given set of flags."""

    number: int
    """Equal for equal effects."""
    effect: Effect
    accesses: tuple[Accesses, ...]


def has_cross_core_flags(program: Program) -> bool:
    """Whether *program* sets or waits for flags between cores."""
    return any(body.has_cross_core_flags for body in program.leaves)


FEW_FLAGS = 16
"""Most flags between cores in a body that is followed as one.

The product of many flags and many accesses is longer than the calls that the body makes.
"""


class Recorder:
    """Records programs; shared bodies are followed once."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._known: dict[tuple[int, Hashable], Followed] = {}
        self._numbers: dict[Effect, int] = {}
        self._ups: dict[Hashable, int] = {(): 0}
        """Flags that are set, and how often -> their number."""
        self._up_of: list[dict[Flag, int]] = [{}]
        self._moves: dict[tuple[int, Body], tuple[Followed, int]] = {}
        """Number of such flags, and a body -> its effect, and the number that it leads to."""
        self._awaited: dict[Body, tuple[Flag, ...]] = {}
        self._uses: dict[Body, tuple[MicroOp, ...]] = {}
        self._last: dict[Body, bool] = {}
        self._parts: dict[Hashable, _Parts] = {}
        self._records: dict[Hashable, Record] = {}

    def record(self, program: Program) -> tuple[Record, Called]:
        """The record of *program*, in an order that flags allow, and the accesses of each call."""
        order = self._orders.of(program)
        if not isinstance(order, range):
            return _recorded_in(order, program.ops)
        called, calls = self._follow(program, self._has_few_flags)
        key = tuple([followed.number for followed in called])
        if key not in self._records:
            state = State(0, {})
            for number, followed in enumerate(called):
                touched = [(number, index) for index in range(len(followed.accesses))]
                state.call(followed.effect, touched)
            self._records[key] = state.record()
        accesses = [followed.accesses for followed in called]
        return self._records[key], Called(accesses, calls.names, calls.shifts)

    def call_by_call(self, program: Program) -> tuple[list[Followed], Calls] | None:
        """The effect of each call of *program*, and the calls.

        A body that continues after a flag between cores that it sets is split. None if the program
        cannot run in program order.
        """
        if not isinstance(self._orders.of(program), range):
            return None
        return self._follow(program, self._sets_last)

    def _follow(
        self, program: Program, is_one: Callable[[Body], bool]
    ) -> tuple[list[Followed], Calls]:
        calls = self._taken_apart(Calls.of(program), is_one)
        called, up = [], 0
        for number in calls.body.tolist():
            body = calls.bodies[number]
            move = self._moves.get((up, body))
            if move is None:
                move = self._moves[up, body] = self._move(up, body)
            called.append(move[0])
            up = move[1]
        return called, calls

    def _move(self, number: int, body: Body) -> tuple[Followed, int]:
        """The effect of *body* with flags of that *number* set, and the number afterwards."""
        up = self._up_of[number].copy()
        followed = self._followed(body, up)
        for flag, taken, pasts in followed.effect.flags:
            up[flag] = up.get(flag, 0) - taken + len(pasts)
        after = tuple(sorted((flag, count) for flag, count in up.items() if count))
        if after not in self._ups:
            self._ups[after] = len(self._up_of)
            self._up_of.append(dict(after))
        return followed, self._ups[after]

    def _taken_apart(self, calls: Calls, is_one: Callable[[Body], bool]) -> Calls:
        """*calls*, with bodies split for which *is_one* is False."""
        are_one = tuple(map(is_one, calls.bodies))
        if all(are_one):
            return calls
        # Programs of one launch have the same bodies.
        key = are_one, calls.bodies, calls.names
        if key not in self._parts:
            self._parts[key] = _Parts.of(calls, is_one)
        return self._parts[key].calls(calls)

    def _has_few_flags(self, body: Body) -> bool:
        return not body.calls or len(self._uses_of(body)) <= FEW_FLAGS

    def _sets_last(self, body: Body) -> bool:
        """Whether only sets of flags between cores follow the first one in *body*."""
        if body not in self._last:
            *before, last = body.calls or _parted(body)
            is_last = not body.calls or self._sets_last(last.body)
            self._last[body] = is_last and not any(self._has_set(call.body) for call in before)
        return self._last[body]

    def _has_set(self, body: Body) -> bool:
        return any(isinstance(op, CrossCoreSetFlag) for op in self._uses_of(body))

    def _uses_of(self, body: Body) -> tuple[MicroOp, ...]:
        """The sets and waits of flags between cores in *body*."""
        if body not in self._uses:
            kinds = CrossCoreSetFlag, CrossCoreWaitFlag
            inner = [op for call in body.calls for op in self._uses_of(call.body)]
            own = () if body.calls else (op for op in body.ops if isinstance(op, kinds))
            self._uses[body] = (*inner, *own)
        return self._uses[body]

    def _followed(self, body: Body, up: dict[Flag, int]) -> Followed:
        """*body*, followed with the flags in *up* set."""
        counts = tuple([(flag, up[flag]) for flag in self._awaits(body) if up.get(flag)])
        key = self._orders.number(body), counts
        if key not in self._known:
            state = State(len(PIPES) + sum(count for _, count in counts), dict(counts))
            if body.calls:
                accesses = self._call_all(state, body.calls)
            else:
                accesses = state.play(enumerate(body.ops), follows_dispatch=True)
            effect, alike = state.effect()
            number = self._numbers.setdefault(effect, len(self._numbers))
            together = (tuple(part for x in group for part in accesses[x]) for group in alike)
            self._known[key] = Followed(number, effect, tuple(together))
        return self._known[key]

    def _call_all(self, state: State, calls: tuple[Call, ...]) -> list[Accesses]:
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
        """The flags of its own core that *body* waits for, each once."""
        if body not in self._awaited:
            if body.calls:
                flags = [flag for call in body.calls for flag in self._awaits(call.body)]
            else:
                flags = [flag for op in body.ops if (flag := awaited(op)) is not None]
            self._awaited[body] = tuple(dict.fromkeys(flags))
        return self._awaited[body]


@dataclass(frozen=True, slots=True)
class _Parts:
    """Split bodies."""

    size: NDArray[np.int64]
    """For each body the number of calls that replace it, `(bodies,)`."""
    bodies: tuple[Body, ...]
    """The bodies of all these calls."""
    names: tuple[str, ...]
    shifts: NDArray[np.int64]
    """`(calls, names)`."""

    @staticmethod
    def of(calls: Calls, is_one: Callable[[Body], bool]) -> _Parts:
        """The bodies of *calls*, split where *is_one* is False."""
        inner = [tuple(_inner(Call(body), is_one)) for body in calls.bodies]
        size = np.array([len(each) for each in inner], np.int64)
        flat = [call for each in inner for call in each]
        names = dict.fromkeys((*calls.names, *(name for call in flat for name in call.shifts)))
        shifts = np.array([[call.shifts.get(x, 0) for x in names] for call in flat], np.int64)
        bodies = tuple([call.body for call in flat])
        return _Parts(size, bodies, tuple(names), shifts.reshape(len(flat), len(names)))

    def calls(self, calls: Calls) -> Calls:
        """The calls that replace *calls* of the original bodies."""
        first = np.cumsum(self.size) - self.size
        row, where = spread(self.size[calls.body], first[calls.body])
        shifts = self.shifts[where]
        shifts[:, : len(calls.names)] += calls.shifts[row]
        return Calls(self.bodies, self.names, where, shifts)


def _inner(call: Call, is_one: Callable[[Body], bool]) -> Iterator[Call]:
    """*call*, or the calls that its body makes if *is_one* is False."""
    if is_one(call.body):
        yield call
        return
    for inner in call.body.calls or _parted(call.body):
        yield from _inner(Call(inner.body, added(inner.shifts, call.shifts)), is_one)


def _parted(body: Body) -> list[Call]:
    """*body*, which makes no calls, split after its sets of flags between cores."""
    are_sets = [isinstance(op, CrossCoreSetFlag) for op in body.ops]
    after = enumerate(pairwise(are_sets), 1)
    ends = [index for index, (is_set, is_next) in after if is_set and not is_next]
    return [
        Call(Body(body.ops[first:end]))
        for first, end in zip([0, *ends], [*ends, len(body)], strict=True)
    ]


def _recorded_in(order: Sequence[int], ops: tuple[MicroOp, ...]) -> tuple[Record, Called]:
    """The record of *ops* executed in *order*, as accesses of one call."""
    state = State(0, {})
    played = ((index, ops[index]) for index in order)
    accesses = state.play(played, follows_dispatch=False)
    return state.record(), Called([tuple(accesses)], (), np.zeros((1, 0), np.int64))
