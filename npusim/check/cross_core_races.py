"""What the blocks of a launch write of global memory must be their own.

Only flags between cores order the cores of a launch. So the bytes that a block writes must be its
own, unless such a flag comes between it and whoever else touches them, or both add in the same
type. (``check/hazards`` checks the order within one block.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.check.hazards import CrossCoreOrder, Moment, RaceError
from npusim.check.hazards.record import Accesses
from npusim.isa import Global, MicroOp, added_dtype, global_operand, writes_global
from npusim.kernel.program import Block, Body, Program, added

__all__ = ["check_apart"]

Numbers = NDArray[np.int64]
Pieces = tuple[Numbers, Numbers]
"""Where byte ranges begin and end."""


class _Ranges(NamedTuple):
    """Byte ranges of one tensor, ascending, and the block that each belongs to."""

    starts: Numbers
    ends: Numbers
    owners: Numbers


def check_apart(blocks: tuple[Block, ...], order: CrossCoreOrder) -> None:
    """Raise RaceError, naming cores, tensor and bytes, if accesses of two blocks race."""
    ranges = _Search()
    for tensor in sorted({bound.tensor for block in blocks for bound in block.bindings.values()}):
        writes = ranges.of_tensor(blocks, tensor, True)
        if writes.starts.size and (
            _overlap(writes) or _is_read_elsewhere(writes, ranges.of_tensor(blocks, tensor, False))
        ):
            _check_order(tensor, _shares(blocks, tensor, order), blocks)


# ---- whether cores share bytes that one of them writes ----


def _overlap(writes: _Ranges) -> bool:
    """Whether blocks write the same bytes; the ranges of each block are apart."""
    shared = (writes.starts[1:] < writes.ends[:-1]) & (writes.owners[1:] != writes.owners[:-1])
    return bool(np.any(shared))


def _is_read_elsewhere(writes: _Ranges, reads: _Ranges) -> bool:
    """Whether blocks read what others write; the writes are apart."""
    low = np.searchsorted(writes.ends, reads.starts, side="right")
    high = np.searchsorted(writes.starts, reads.ends, side="left")
    hit = np.flatnonzero(high > low)
    low, high, owners = low[hit], high[hit], reads.owners[hit]
    changes = np.concatenate(([0], np.cumsum(writes.owners[1:] != writes.owners[:-1])))
    others = (writes.owners[low] != owners) | (changes[low] != changes[high - 1])
    return bool(np.any(others))


class _Search:
    """Byte ranges that blocks touch; bodies that calls share are searched once."""

    def __init__(self) -> None:
        self._places: dict[Body, dict[tuple[str, bool], Pieces]] = {}
        self._programs: dict[tuple[Program, str, bool], Pieces] = {}

    def of_tensor(self, blocks: tuple[Block, ...], tensor: str, is_write: bool) -> _Ranges:
        """What all blocks read or write of *tensor*."""
        found: list[_Ranges] = []
        for owner, block in enumerate(blocks):
            pieces = [
                _shifted(self._of_program(block.program, name, is_write), bound.base_bytes)
                for name, bound in sorted(block.bindings.items())
                if bound.tensor == tensor
            ]
            starts, ends = _merged(pieces)
            found.append(_Ranges(starts, ends, np.full(starts.size, owner)))
        starts, ends, owners = (np.concatenate(column) for column in zip(*found, strict=True))
        by_start = np.argsort(starts, kind="stable")
        return _Ranges(starts[by_start], ends[by_start], owners[by_start])

    def _of_program(self, program: Program, name: str, is_write: bool) -> Pieces:
        key = program, name, is_write
        if key not in self._programs:
            pieces = []
            for call in program.calls:
                pieces_of_body = self._of_body(call.body).get((name, is_write))
                if pieces_of_body is not None:
                    pieces.append(_shifted(pieces_of_body, call.shifts.get(name, 0)))
            self._programs[key] = _merged(pieces)
        return self._programs[key]

    def _of_body(self, body: Body) -> dict[tuple[str, bool], Pieces]:
        if body not in self._places:
            found: dict[tuple[str, bool], list[Pieces]] = {}
            for call in body.calls:
                for (name, is_write), pieces in self._of_body(call.body).items():
                    shifted = _shifted(pieces, call.shifts.get(name, 0))
                    found.setdefault((name, is_write), []).append(shifted)
            for op in () if body.calls else body:
                place = global_operand(op)
                if place is not None:
                    found.setdefault((place.name, writes_global(op)), []).append(_pieces(place))
            self._places[body] = {key: _merged(pieces) for key, pieces in found.items()}
        return self._places[body]


@lru_cache(maxsize=4096)
def _pieces(place: Global) -> Pieces:
    if place.bursts > 1 and 0 <= place.stride_bytes <= place.burst_bytes:
        # Each touches the next one.
        size = (place.bursts - 1) * place.stride_bytes + place.burst_bytes
        return np.array([place.offset_bytes]), np.array([place.offset_bytes + size])
    starts = place.offset_bytes + place.stride_bytes * np.arange(place.bursts)
    return starts, starts + place.burst_bytes


def _shifted(pieces: Pieces, nbytes: int) -> Pieces:
    return pieces[0] + nbytes, pieces[1] + nbytes


def _merged(pieces: list[Pieces]) -> Pieces:
    """*pieces*, each merged by itself, in ascending order, those that touch or overlap joined."""
    if not pieces:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if len(pieces) == 1:
        return pieces[0]
    start, end = (np.concatenate(column) for column in zip(*pieces, strict=True))
    if not start.size:
        return start, end
    by_start = np.argsort(start, kind="stable")
    start, furthest = start[by_start], np.maximum.accumulate(end[by_start])
    first = np.flatnonzero(np.concatenate(([True], start[1:] > furthest[:-1])))
    return start[first], furthest[np.append(first[1:] - 1, start.size - 1)]


# ---- whether flags order those that do ----


@dataclass(frozen=True, slots=True)
class _Share:
    """What a block does to a tensor between two flags, or in all."""

    owner: int
    kind: str
    """read, write, or the type in which it adds: additions do not mind each other."""
    pieces: Pieces
    moment: Moment | None

    def common(self, other: _Share) -> tuple[int, int] | None:
        """The first bytes that both touch."""
        (starts, ends), (others, other_ends) = self.pieces, other.pieces
        at = np.searchsorted(other_ends, starts, side="right")
        inside = np.flatnonzero(at < others.size)
        inside = inside[others[at[inside]] < ends[inside]]
        if not inside.size:
            return None
        a, b = int(inside[0]), int(at[inside[0]])
        return max(int(starts[a]), int(others[b])), min(int(ends[a]), int(other_ends[b]))


def _shares(blocks: tuple[Block, ...], tensor: str, order: CrossCoreOrder) -> list[_Share]:
    """All accesses to *tensor*, one share for those between the same flags between cores."""
    found = []
    shapes = _Shapes()
    for owner, block in enumerate(blocks):
        bound = {name: to for name, to in block.bindings.items() if to.tensor == tensor}
        if not bound:
            continue
        moments = order.of(block)
        spans: list[tuple[Moment | None, Iterable[tuple[dict[str, int], Accesses]]]]
        if moments is None:
            calls = block.program.calls
            spans = [(None, ((call.shifts, _accesses(call.body)) for call in calls))]
        else:
            spans = [(moment, moment.accesses) for moment in moments]
        for moment, touched in spans:
            pieces: dict[str, list[Pieces]] = {}
            for shifts, accesses in touched:
                for name, kind, of_kind in shapes.of(accesses):
                    if name in bound:
                        shift = shifts.get(name, 0) + bound[name].base_bytes
                        pieces.setdefault(kind, []).append(_shifted(of_kind, shift))
            found += [_Share(owner, kind, _merged(x), moment) for kind, x in pieces.items()]
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
    """The bytes of accesses, each found once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Accesses, list[tuple[str, str, Pieces]]]] = {}
        """Address of accesses -> them, and their bytes by name and kind."""

    def of(self, accesses: Accesses) -> list[tuple[str, str, Pieces]]:
        """The bytes of *accesses* by name of global memory and kind."""
        known = self._known.get(id(accesses))
        if known is None:
            found: dict[tuple[str, str], list[Pieces]] = {}
            for shifts, ops in accesses:
                for op in ops:
                    place = global_operand(op)
                    if place is not None:
                        moved = _shifted(_pieces(place), shifts.get(place.name, 0))
                        found.setdefault((place.name, _kind(op)), []).append(moved)
            merged = [(*key, _merged(pieces)) for key, pieces in found.items()]
            known = self._known[id(accesses)] = accesses, merged
        return known[1]


def _kind(op: MicroOp) -> str:
    if not writes_global(op):
        return "read"
    dtype = added_dtype(op)
    return "write" if dtype is None else dtype.name


def _check_order(tensor: str, shares: list[_Share], blocks: tuple[Block, ...]) -> None:
    low = np.array([share.pieces[0][0] for share in shares])
    high = np.array([share.pieces[1][-1] for share in shares])
    owners = np.array([share.owner for share in shares])
    kinds = np.array([share.kind for share in shares])
    ordered = _Ordered(shares)
    by_low = np.argsort(low, kind="stable")
    # Of those that begin no earlier, the first that begins behind the end of each.
    ends = np.searchsorted(low[by_low], high)
    racing: list[tuple[int, int]] = []
    for place, index in enumerate(by_low):
        others = by_low[place + 1 : ends[index]]
        clash = (kinds[others] != kinds[index]) | (kinds[index] == "write")
        others = others[clash & (owners[others] != owners[index])]
        for other in others[~ordered.with_all(int(index), others)]:
            first, second = sorted((int(index), int(other)))
            if shares[first].common(shares[second]) is not None:
                racing.append((first, second))
    if racing:
        first, second = min(racing)
        common = shares[first].common(shares[second])
        assert common is not None
        _raise(tensor, *common, shares[first].owner, shares[second].owner, blocks)


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
        # (shares, setters of a core): which set of each comes after
        self._setters = np.full((len(shares), most), size)
        self._firsts = np.zeros((len(shares), most), np.int64)
        for number, moment in enumerate(moments):
            for place, (setter, first) in enumerate(moment.after if moment else ()):
                self._setters[number, place], self._firsts[number, place] = setter, first

    def with_all(self, index: int, others: Numbers) -> NDArray[np.bool_]:
        """Whether share *index* is ordered with each of *others*."""
        rows = self._row[others]
        after = self._before[rows[:, None], self._setters[index]] > self._firsts[index]
        before = self._before[self._row[index]][self._setters[others]] > self._firsts[others]
        either: NDArray[np.bool_] = after.any(axis=1) | before.any(axis=1)
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
