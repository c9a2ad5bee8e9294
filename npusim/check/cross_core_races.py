"""What the blocks of a launch write of global memory must be their own.

Only flags between cores order the cores of a launch. So the bytes that a block writes must be its
own, unless such a flag comes between it and whoever else touches them, or both add in the same
type. (``check/hazards`` checks the order within one block.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
            _Shares(_shares(blocks, tensor, order), blocks, order).check(tensor)


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
            shifts: dict[Body, list[int]] = {}
            for call in program.calls:
                shifts.setdefault(call.body, []).append(call.shifts.get(name, 0))
            for body, moved in shifts.items():
                found = self._of_body(body).get((name, is_write))
                if found is not None:
                    # (calls, pieces) -> (calls x pieces,)
                    starts, ends = (edge + np.array(moved)[:, None] for edge in found)
                    pieces.append((starts.reshape(-1), ends.reshape(-1)))
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
    starts = place.offset_bytes + place.stride_bytes * np.arange(place.bursts)
    return starts, starts + place.burst_bytes


def _shifted(pieces: Pieces, nbytes: int) -> Pieces:
    return pieces[0] + nbytes, pieces[1] + nbytes


def _merged(pieces: list[Pieces]) -> Pieces:
    """*pieces* in ascending order, those that touch or overlap joined."""
    if len(pieces) == 1 and pieces[0][0].size == 1:
        return pieces[0]
    if not pieces:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
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


class _Shares:
    """All accesses to a tensor, and which of them flags between cores order."""

    def __init__(
        self, shares: list[_Share], blocks: tuple[Block, ...], order: CrossCoreOrder
    ) -> None:
        self._shares, self._blocks, self._order = shares, blocks, order
        self._low = np.array([share.pieces[0][0] for share in shares])
        self._high = np.array([share.pieces[1][-1] for share in shares])
        self._kinds = np.array([share.kind for share in shares])
        self._of: dict[int, list[int]] = {}
        """Owner -> the numbers of its shares, which follow each other."""
        for number, share in enumerate(shares):
            self._of.setdefault(share.owner, []).append(number)

    def check(self, tensor: str) -> None:
        """Raise RaceError for the first two accesses to *tensor* that race."""
        low = {owner: self._low[numbers].min() for owner, numbers in self._of.items()}
        high = {owner: self._high[numbers].max() for owner, numbers in self._of.items()}
        for owner in self._of:
            behind = [x for x in self._of if x > owner]
            near = [x for x in behind if low[x] < high[owner] and low[owner] < high[x]]
            pairs = [pair for other in near for pair in self._unordered(owner, other)]
            for one, other in sorted(pairs):
                common = self._shares[one].common(self._shares[other])
                if common is not None:
                    other_owner = self._shares[other].owner
                    _raise(tensor, *common, owner, other_owner, self._blocks)

    def _unordered(self, owner: int, other: int) -> Iterator[tuple[int, int]]:
        """Numbers of shares of both that clash, if they have bytes in common, and have no order."""
        theirs = self._of[other]
        for first in range(0, len(self._of[owner]), SHARES_AT_ONCE):
            ours = self._of[owner][first : first + SHARES_AT_ONCE]
            a, b = np.array(ours)[:, None], np.array(theirs)
            near = (self._low[b] < self._high[a]) & (self._low[a] < self._high[b])
            clash = (self._kinds[b] != self._kinds[a]) | (self._kinds[a] == "write")
            ordered = self._is_before(ours, theirs) | self._is_before(theirs, ours).T
            for row, column in np.argwhere(near & clash & ~ordered).tolist():
                yield ours[row], theirs[column]

    def _is_before(self, ours: list[int], theirs: list[int]) -> NDArray[np.bool_]:
        """Whether shares of an owner come before those of another, `(ours, theirs)`."""
        begin, pipes = self._order.sets_of(self._blocks[self._shares[ours[0]].owner])
        one, other = ([self._shares[x].moment for x in numbers] for numbers in (ours, theirs))
        found = np.zeros((len(ours), len(theirs)), bool)
        for sets in pipes:
            # The first set after each of ours, and the last one before each of theirs.
            after = (moment.after & sets if moment else 0 for moment in one)
            first = [(x & -x).bit_length() if x else NEVER for x in after]
            before = (moment.before >> begin & sets if moment else 0 for moment in other)
            last = [x.bit_length() for x in before]
            found |= np.array(first)[:, None] <= np.array(last)
        return found


SHARES_AT_ONCE = 1024
"""Of one owner held against all of another: arrays of some megabytes."""
NEVER = 1 << 62
"""Behind every set."""


def _raise(
    tensor: str, start: int, end: int, owner: int, other: int, blocks: tuple[Block, ...]
) -> None:
    a, b = sorted((blocks[owner].core, blocks[other].core))
    raise RaceError(
        f"{blocks[owner].program.name}: bytes that a core writes must be its own, but "
        f"cores {a} and {b} both touch {tensor}[{start}:{end}]; give each core its own part, "
        f"or order them by flags between cores"
    )
