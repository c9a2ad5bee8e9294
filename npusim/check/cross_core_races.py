"""Races between the blocks of a launch in global memory.

Only flags between cores order the cores of a launch. So no other block may access the bytes that a
block writes, unless such a flag orders the two accesses, or both add in the same type.
(``check/hazards`` checks the order within one block.)
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.check.byte_ranges import (
    Numbers,
    Pieces,
    Search,
    is_read_elsewhere,
    kind_of,
    merged,
    overlap,
    pieces_of,
    shifted,
)
from npusim.check.hazards import CrossCoreOrder, Moment, RaceError
from npusim.check.hazards.pasts import Accesses
from npusim.data.integers import ceil_div
from npusim.isa import global_operand
from npusim.kernel.program import Block, Body, added
from npusim.kernel.table import Calls

__all__ = ["by_kind", "check_apart", "common_bytes", "shared_tensors"]

FEW_PAIRS = 200
"""Pairs of accesses up to which comparing them is as fast as comparing the bytes of two."""
PAIRS = 2**20
"""Pairs that are compared at a time, with some bytes of memory for each."""


def shared_tensors(blocks: tuple[Block, ...], ranges: Search) -> list[str]:
    """The tensors in which a block touches bytes that another one writes."""
    found = []
    for tensor in sorted({bound.tensor for block in blocks for bound in block.bindings.values()}):
        if ranges.is_simple(tensor):
            continue
        writes = ranges.of_tensor(tensor, True)
        if writes.starts.size and (
            overlap(writes) or is_read_elsewhere(writes, ranges.of_tensor(tensor, False))
        ):
            found.append(tensor)
    return found


def check_apart(blocks: tuple[Block, ...], tensors: list[str], order: CrossCoreOrder) -> None:
    """Raise RaceError, naming cores, tensor and bytes, if accesses of two blocks race.

    *tensors* are those of :func:`shared_tensors`.
    """
    if tensors:
        touched = _Touched(blocks, order)
        for tensor in tensors:
            _check_order(tensor, touched.shares(tensor), blocks)


# ---- whether flags order accesses to the same bytes ----


class _Share(NamedTuple):
    """The accesses of a block to a tensor between two flags, or in total."""

    owner: int
    kind: str
    """read, write, or the type in which it adds: additions do not conflict with each other."""
    pieces: Pieces
    moment: Moment | None


def common_bytes(pieces: Pieces, other: Pieces) -> tuple[int, int] | None:
    """The first bytes that both contain."""
    (starts, ends), (others, other_ends) = pieces, other
    at = np.searchsorted(other_ends, starts, side="right")
    inside = np.flatnonzero(at < others.size)
    inside = inside[others[at[inside]] < ends[inside]]
    if not inside.size:
        return None
    a, b = int(inside[0]), int(at[inside[0]])
    return max(int(starts[a]), int(others[b])), min(int(ends[a]), int(other_ends[b]))


class _Touched:
    """The accesses of blocks and their moments, as columns with one entry per access of a call."""

    def __init__(self, blocks: tuple[Block, ...], order: CrossCoreOrder) -> None:
        names = dict.fromkeys(name for block in blocks for name in block.bindings)
        self._blocks, self._columns = blocks, {name: x for x, name in enumerate(names)}
        self._moments: list[tuple[int, Moment | None]] = []
        """All moments, block after block, each with the index of its block."""
        self._pieces: dict[tuple[str, str], dict[int, Pieces]] = {}
        """Name of global memory and kind -> index of accesses -> their bytes."""
        self._accesses = 0
        self._first: dict[int, tuple[tuple[Accesses, ...], int]] = {}
        """Address of the accesses of a body -> the accesses, and the index of the first."""
        rows = [self._rows(owner, block, order) for owner, block in enumerate(blocks)]
        self._moment, self._access, self._offset = map(np.concatenate, zip(*rows, strict=True))
        """Moment and access of each entry, and the offsets of the names, `(rows, names)`."""
        self._owner = np.array([owner for owner, _ in self._moments], np.int64)[self._moment]

    def _rows(
        self, owner: int, block: Block, order: CrossCoreOrder
    ) -> tuple[Numbers, Numbers, Numbers]:
        first, found = len(self._moments), order.of(block)
        if found is None:
            calls = Calls.of(block.program)
            of_bodies = [self._number((_accesses(body),)) for body in calls.bodies]
            access = np.array(of_bodies, np.int64)[calls.body]
            moment, names, shifts = np.full(access.size, first), calls.names, calls.shifts
            self._moments.append((owner, None))
        else:
            moments, called = found
            sizes = [len(each.touched) for each in moments]
            touched = np.array([x for each in moments for x in each.touched], np.int64)
            call, number = touched.reshape(-1, 2).T
            access = np.array([self._number(x) for x in called.accesses], np.int64)[call] + number
            moment = np.repeat(np.arange(first, first + len(moments)), sizes)
            names, shifts = called.names, called.shifts[call]
            self._moments += [(owner, each) for each in moments]
        offset = np.zeros((access.size, len(self._columns)), np.int64)
        for column, name in enumerate(names):
            if name in self._columns:
                offset[:, self._columns[name]] = shifts[:, column]
        for name, bound in block.bindings.items():
            offset[:, self._columns[name]] += bound.base_bytes
        return moment, access, offset

    def _number(self, accesses: tuple[Accesses, ...]) -> int:
        """The index of the first of *accesses*; the others follow."""
        known = self._first.get(id(accesses[0]) if accesses else 0)
        if known is None:
            known = accesses, self._accesses
            self._accesses += len(accesses)
            if accesses:
                self._first[id(accesses[0])] = known
            for number, each in enumerate(accesses, known[1]):
                for key, pieces in by_kind(each).items():
                    self._pieces.setdefault(key, {})[number] = pieces
        return known[1]

    def shares(self, tensor: str) -> list[_Share]:
        """All accesses to *tensor*, one share for each moment and kind."""
        kinds, places = dict[str, int](), list[tuple[Pieces, int]]()
        entries = [
            (*found, np.full(found[0].size, kinds.setdefault(kind, len(kinds))))
            for (name, kind), pieces in self._pieces.items()
            # A name without a binding is reported by the check of bounds.
            if name in self._columns
            for found in [self._of_name(tensor, name, pieces, places)]
        ]
        moment, place, which = map(np.concatenate, zip(*entries, strict=True))
        order = np.lexsort((which, moment))
        moment, place, which = moment[order], place[order], which[order]
        is_first = np.append(True, (np.diff(moment) != 0) | (np.diff(which) != 0))
        first = np.flatnonzero(is_first) if moment.size else moment
        together: dict[bytes, Pieces] = {}
        names, shares = [*kinds], []
        edges = pairwise([*first.tolist(), moment.size])
        rows = zip(edges, moment[first].tolist(), which[first].tolist(), strict=True)
        for (start, end), number, kind in rows:
            # Moments often touch the same bytes, iteration after iteration.
            key = place[start:end].tobytes()
            if key not in together:
                each = place[start:end].tolist()
                together[key] = merged([shifted(*places[x]) for x in each])
            owner, when = self._moments[number]
            shares.append(_Share(owner, names[kind], together[key], when))
        return shares

    def _of_name(
        self,
        tensor: str,
        name: str,
        pieces: dict[int, Pieces],
        places: list[tuple[Pieces, int]],
    ) -> tuple[Numbers, Numbers]:
        """The entries that touch *pieces* of *name*, bound to *tensor*.

        Returns the moment of each, and the index of its bytes among *places*, to which new ones are
        added: pieces, and the bytes by which they are shifted.
        """
        column = self._columns[name]
        is_of = np.zeros(self._accesses, np.bool_)
        is_of[[*pieces]] = True
        bound = [
            x.bindings[name].tensor == tensor if name in x.bindings else False for x in self._blocks
        ]
        rows = np.flatnonzero(np.array(bound)[self._owner] & is_of[self._access])
        offsets, offset = np.unique(self._offset[rows, column], return_inverse=True)
        keys, place = np.unique(self._access[rows] * offsets.size + offset, return_inverse=True)
        first = len(places)
        for key in keys.tolist():
            access, at = divmod(key, offsets.size)
            places.append((pieces[access], int(offsets[at])))
        return self._moment[rows], place + first


@lru_cache(maxsize=4096)
def _accesses(body: Body) -> Accesses:
    """The accesses of *body*."""
    if not body.calls:
        return (({}, body.ops),)
    return tuple(
        (added(shifts, call.shifts), ops)
        for call in body.calls
        for shifts, ops in _accesses(call.body)
    )


def by_kind(accesses: Accesses) -> dict[tuple[str, str], Pieces]:
    """The bytes of *accesses* by name of global memory and kind."""
    found: dict[tuple[str, str], list[Pieces]] = {}
    for shifts, ops in accesses:
        for op in ops:
            place = global_operand(op)
            if place is not None:
                moved = shifted(pieces_of(place), shifts.get(place.name, 0))
                found.setdefault((place.name, kind_of(op)), []).append(moved)
    return {key: merged(pieces) for key, pieces in found.items()}


class _Alike(NamedTuple):
    """The shares of one kind in exactly the same bytes."""

    kind: str
    pieces: Pieces
    numbers: Numbers


def _alike(shares: list[_Share]) -> list[_Alike]:
    """*shares* grouped by kind and bytes, in the order in which the bytes begin."""
    found: dict[tuple[str, bytes, bytes], list[int]] = {}
    keys: dict[int, tuple[bytes, bytes]] = {}
    for number, (_, kind, (starts, ends), _) in enumerate(shares):
        if id(starts) not in keys:
            keys[id(starts)] = starts.tobytes(), ends.tobytes()
        found.setdefault((kind, *keys[id(starts)]), []).append(number)
    groups = [_Alike(key[0], shares[x[0]].pieces, np.array(x)) for key, x in found.items()]
    return sorted(groups, key=lambda group: int(group.pieces[0][0]))


def _check_order(tensor: str, shares: list[_Share], blocks: tuple[Block, ...]) -> None:
    owners = np.array([share.owner for share in shares])
    ordered = _Ordered(shares)
    groups = _alike(shares)
    low = np.array([group.pieces[0][0] for group in groups], np.int64)
    racing: list[tuple[int, int]] = []
    for place, group in enumerate(groups):
        # Of the groups that begin no earlier, those that begin before its end.
        end = int(np.searchsorted(low, group.pieces[1][-1]))
        met = [
            other.numbers
            for other in groups[place:end]
            if (other.kind != group.kind or group.kind == "write") and _may_meet(group, other)
        ]
        if not met:
            continue
        others = np.concatenate(met)
        for numbers in np.array_split(
            group.numbers, ceil_div(group.numbers.size * others.size, PAIRS)
        ):
            apart = ordered.all_with_all(numbers, others)
            apart |= owners[numbers][:, None] == owners[others]
            for index, other in np.argwhere(~apart):
                first, second = sorted((int(numbers[index]), int(others[other])))
                if common_bytes(shares[first].pieces, shares[second].pieces) is not None:
                    racing.append((first, second))
    if racing:
        first, second = min(racing)
        common = common_bytes(shares[first].pieces, shares[second].pieces)
        assert common is not None
        _raise(tensor, *common, shares[first].owner, shares[second].owner, blocks)


def _may_meet(group: _Alike, other: _Alike) -> bool:
    """Whether shares of both may have bytes in common.

    If there are few pairs of them, it is as fast to test their order first.
    """
    is_few = group.numbers.size * other.numbers.size < FEW_PAIRS
    return is_few or common_bytes(group.pieces, other.pieces) is not None


class _Ordered:
    """Which shares are ordered by flags, in either direction."""

    def __init__(self, shares: list[_Share]) -> None:
        moments = [share.moment for share in shares]
        clocks = {id(moment.before): moment.before for moment in moments if moment}
        rows = {clock: row for row, clock in enumerate(clocks, 1)}
        size = max((clock.size for clock in clocks.values()), default=0)
        # Row 0, and the last column, are for shares with nothing before or after them.
        self._before = np.zeros((len(rows) + 1, size + 1), np.int32)
        for row, clock in enumerate(clocks.values(), 1):
            self._before[row, :size] = clock
        self._row = np.array([rows[id(moment.before)] if moment else 0 for moment in moments])
        most = max((len(moment.after) for moment in moments if moment), default=0)
        # (setters of a core, shares): the first set of each that follows
        self._setters = np.full((most, len(shares)), size)
        self._firsts = np.zeros((most, len(shares)), np.int64)
        for number, moment in enumerate(moments):
            for place, (setter, first) in enumerate(moment.after if moment else ()):
                self._setters[place, number], self._firsts[place, number] = setter, first

    def all_with_all(self, some: Numbers, others: Numbers) -> NDArray[np.bool_]:
        """Whether each of *some* shares is ordered with each of *others*, `(some, others)`."""
        either = np.zeros((some.size, others.size), np.bool_)
        # Rows of one against columns of the other
        some, others = some[:, None], others[None, :]
        for setters, firsts in zip(self._setters, self._firsts, strict=True):
            either |= self._before[self._row[others], setters[some]] > firsts[some]
            either |= self._before[self._row[some], setters[others]] > firsts[others]
        return either


def _raise(
    tensor: str, start: int, end: int, owner: int, other: int, blocks: tuple[Block, ...]
) -> None:
    a, b = sorted((blocks[owner].core, blocks[other].core))
    raise RaceError(
        f"{blocks[owner].program.name}: bytes that a core writes must be its own, but "
        f"cores {a} and {b} both touch {tensor}[{start}:{end}]; give each core its own part, "
        f"or order them by flags between cores"
    )
