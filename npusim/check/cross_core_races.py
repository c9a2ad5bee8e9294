"""What the blocks of a launch write of global memory must be their own.

Only flags between cores order the cores of a launch. So the bytes that a block writes must be its
own, unless such a flag comes between it and whoever else touches them, or both add in the same
type. (``check/hazards`` checks the order within one block.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.check.byte_ranges import (
    Numbers,
    Pieces,
    Search,
    is_read_elsewhere,
    merged,
    overlap,
    pieces_of,
    shifted,
)
from npusim.check.hazards import CrossCoreOrder, Moment, RaceError
from npusim.check.hazards.record import Accesses
from npusim.data.integers import ceil_div
from npusim.isa import MicroOp, added_dtype, global_operand, writes_global
from npusim.kernel.program import Block, Body, added

__all__ = ["check_apart", "check_tensors", "shared_tensors"]

Touched = Sequence[tuple[dict[str, int], Accesses]]
"""Accesses, each with by how much its names are shifted."""
FEW_PAIRS = 200
"""Pairs of accesses that are held against each other as quickly as the bytes of two are."""
PAIRS = 2**20
"""Pairs that are held against each other at a time, some bytes of memory for each."""


def check_apart(blocks: tuple[Block, ...], order: CrossCoreOrder) -> None:
    """Raise RaceError, naming cores, tensor and bytes, if accesses of two blocks race."""
    check_tensors(blocks, shared_tensors(blocks, Search(blocks)), order)


def shared_tensors(blocks: tuple[Block, ...], ranges: Search) -> list[str]:
    """The tensors of which a block touches bytes that another one writes."""
    found = []
    for tensor in sorted({bound.tensor for block in blocks for bound in block.bindings.values()}):
        if ranges.is_simple(tensor):
            continue
        writes = ranges.of_tensor(blocks, tensor, True)
        if writes.starts.size and (
            overlap(writes) or is_read_elsewhere(writes, ranges.of_tensor(blocks, tensor, False))
        ):
            found.append(tensor)
    return found


def check_tensors(blocks: tuple[Block, ...], tensors: list[str], order: CrossCoreOrder) -> None:
    """As :func:`check_apart`, for *tensors* alone."""
    shapes = _Shapes()
    spans = [_spans(block, order, shapes) for block in blocks] if tensors else []
    for tensor in tensors:
        _check_order(tensor, _shares(blocks, tensor, spans, shapes), blocks)


# ---- whether flags order those that share bytes ----


class _Share(NamedTuple):
    """What a block does to a tensor between two flags, or in all."""

    owner: int
    kind: str
    """read, write, or the type in which it adds: additions do not mind each other."""
    pieces: Pieces
    moment: Moment | None


def _common(pieces: Pieces, other: Pieces) -> tuple[int, int] | None:
    """The first bytes that are in both."""
    (starts, ends), (others, other_ends) = pieces, other
    at = np.searchsorted(other_ends, starts, side="right")
    inside = np.flatnonzero(at < others.size)
    inside = inside[others[at[inside]] < ends[inside]]
    if not inside.size:
        return None
    a, b = int(inside[0]), int(at[inside[0]])
    return max(int(starts[a]), int(others[b])), min(int(ends[a]), int(other_ends[b]))


_ByName = dict[str, list[tuple[dict[str, int], Accesses]]]
"""Name of global memory -> the accesses that touch it, each with by how much it is shifted."""
_Span = tuple[Moment | None, _ByName]
"""What a block does between two flags, or in all."""


def _spans(block: Block, order: CrossCoreOrder, shapes: _Shapes) -> list[_Span]:
    """What *block* does, one span for what lies between the same flags between cores."""
    moments = order.of(block)
    if moments is None:
        calls = block.program.calls
        return [(None, shapes.by_name([(call.shifts, _accesses(call.body)) for call in calls]))]
    return [(moment, shapes.by_name(moment.accesses)) for moment in moments]


def _shares(
    blocks: tuple[Block, ...], tensor: str, spans: list[list[_Span]], shapes: _Shapes
) -> list[_Share]:
    """All accesses to *tensor*, a share for each of the *spans* of the blocks."""
    found = []
    for owner, (block, own) in enumerate(zip(blocks, spans, strict=True)):
        bases = {
            name: bound.base_bytes
            for name, bound in block.bindings.items()
            if bound.tensor == tensor
        }
        for moment, by_name in own if bases else ():
            touched = [each for name in bases for each in by_name.get(name, ())]
            if touched:
                places = shapes.together(touched, bases)
                found += [_Share(owner, *place, moment) for place in places]
    return found


@lru_cache(maxsize=4096)
def _accesses(body: Body) -> Accesses:
    """What *body* touches."""
    if not body.calls:
        return (({}, body.ops),)
    return tuple(
        (added(shifts, call.shifts), ops)
        for call in body.calls
        for shifts, ops in _accesses(call.body)
    )


class _Shapes:
    """The bytes of accesses to a tensor, each found once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Accesses, list[tuple[str, str, Pieces]]]] = {}
        """Address of accesses -> them, and their bytes by name and kind."""
        self._together: dict[tuple[tuple[int, str, int], ...], list[tuple[str, Pieces]]] = {}
        """Addresses of accesses, names and how far they are shifted -> kinds and bytes of all."""
        self._names_of: dict[int, tuple[str, ...]] = {}
        """Address of accesses -> the names that they touch."""

    def by_name(self, touched: Iterable[tuple[dict[str, int], Accesses]]) -> _ByName:
        """*touched* by the names of global memory that they touch."""
        found: _ByName = {}
        for each in touched:
            for name in self._names(each[1]):
                found.setdefault(name, []).append(each)
        return found

    def _names(self, accesses: Accesses) -> tuple[str, ...]:
        known = self._names_of.get(id(accesses))
        if known is None:
            names = dict.fromkeys(name for name, _, _ in self._of(accesses))
            known = self._names_of[id(accesses)] = tuple(names)
        return known

    def together(self, touched: Touched, bases: dict[str, int]) -> list[tuple[str, Pieces]]:
        """Kinds and bytes of all of *touched*; names of the tensor begin at *bases* of it."""
        key = tuple(
            [
                (id(accesses), name, shifts.get(name, 0) + base_bytes)
                for shifts, accesses in touched
                for name, base_bytes in bases.items()
            ]
        )
        found = self._together.get(key)
        if found is None:
            pieces: dict[str, list[Pieces]] = {}
            for shifts, accesses in touched:
                for name, kind, of_kind in self._of(accesses):
                    if name in bases:
                        shift_bytes = shifts.get(name, 0) + bases[name]
                        pieces.setdefault(kind, []).append(shifted(of_kind, shift_bytes))
            found = self._together[key] = [(kind, merged(x)) for kind, x in pieces.items()]
        return found

    def _of(self, accesses: Accesses) -> list[tuple[str, str, Pieces]]:
        """The bytes of *accesses* by name of global memory and kind."""
        known = self._known.get(id(accesses))
        if known is None:
            found: dict[tuple[str, str], list[Pieces]] = {}
            for shifts, ops in accesses:
                for op in ops:
                    place = global_operand(op)
                    if place is not None:
                        moved = shifted(pieces_of(place), shifts.get(place.name, 0))
                        found.setdefault((place.name, _kind(op)), []).append(moved)
            of_kinds = [(*key, merged(pieces)) for key, pieces in found.items()]
            known = self._known[id(accesses)] = accesses, of_kinds
        return known[1]


def _kind(op: MicroOp) -> str:
    if not writes_global(op):
        return "read"
    dtype = added_dtype(op)
    return "write" if dtype is None else dtype.name


class _Alike(NamedTuple):
    """The shares of one kind in the very same bytes."""

    kind: str
    pieces: Pieces
    numbers: Numbers


def _alike(shares: list[_Share]) -> list[_Alike]:
    """*shares* by kind and bytes, in the order in which the bytes begin."""
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
    low = np.array([group.pieces[0][0] for group in groups])
    racing: list[tuple[int, int]] = []
    for place, group in enumerate(groups):
        # Of those that begin no earlier, those that begin before its end.
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
                if _common(shares[first].pieces, shares[second].pieces) is not None:
                    racing.append((first, second))
    if racing:
        first, second = min(racing)
        common = _common(shares[first].pieces, shares[second].pieces)
        assert common is not None
        _raise(tensor, *common, shares[first].owner, shares[second].owner, blocks)


def _may_meet(group: _Alike, other: _Alike) -> bool:
    """Whether shares of both may have bytes in common.

    Where pairs of them are few it is as quick to ask first which of these are ordered.
    """
    is_few = group.numbers.size * other.numbers.size < FEW_PAIRS
    return is_few or _common(group.pieces, other.pieces) is not None


class _Ordered:
    """Which of some shares flags order, whichever comes first."""

    def __init__(self, shares: list[_Share]) -> None:
        moments = [share.moment for share in shares]
        clocks = {id(moment.before): moment.before for moment in moments if moment}
        rows = {clock: row for row, clock in enumerate(clocks, 1)}
        size = max((clock.size for clock in clocks.values()), default=0)
        # Row 0, and the last column, are for shares that nothing comes before or after.
        self._before = np.zeros((len(rows) + 1, size + 1), np.int32)
        for row, clock in enumerate(clocks.values(), 1):
            self._before[row, :size] = clock
        self._row = np.array([rows[id(moment.before)] if moment else 0 for moment in moments])
        most = max((len(moment.after) for moment in moments if moment), default=0)
        # (setters of a core, shares): which set of each comes after
        self._setters = np.full((most, len(shares)), size)
        self._firsts = np.zeros((most, len(shares)), np.int64)
        for number, moment in enumerate(moments):
            for place, (setter, first) in enumerate(moment.after if moment else ()):
                self._setters[place, number], self._firsts[place, number] = setter, first

    def all_with_all(self, some: Numbers, others: Numbers) -> NDArray[np.bool_]:
        """Whether each of *some* shares is ordered with each of *others*, `(some, others)`."""
        either = np.zeros((some.size, others.size), np.bool_)
        # Rows of the one against columns of the other
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
