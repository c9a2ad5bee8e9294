"""The byte ranges of global memory that the cores of a launch touch, and whether they overlap."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.check import bursts
from npusim.check.bursts import Bursts, BurstsOfBodies, bursts_of_cores, written_out
from npusim.isa import Global, MicroOp, combined_as, global_operand, writes_global
from npusim.kernel.program import Block
from npusim.kernel.table import LaunchTable, spread

__all__ = [
    "Numbers",
    "Owned",
    "Pieces",
    "Ranges",
    "Search",
    "are_apart",
    "is_read_elsewhere",
    "kind_of",
    "merged",
    "overlap",
    "pieces_of",
    "rows_of_pieces",
    "shifted",
]

Numbers = NDArray[np.int64]
PHASE_BYTES = 2**40
"""Distance from a byte in a phase to the same byte in the next one: beyond any tensor."""
Pieces = tuple[Numbers, Numbers]
"""Starts and ends of byte ranges."""
NO_PIECES: Pieces = np.zeros(0, np.int64), np.zeros(0, np.int64)


class Ranges(NamedTuple):
    """Byte ranges of one tensor, ascending, and the block that owns each."""

    starts: Numbers
    ends: Numbers
    owners: Numbers

    def together(self) -> Ranges:
        """The same bytes, joined where ranges touch or overlap; owner -1 if there are several."""
        starts, ends = merged([(self.starts, self.ends)])
        first = np.searchsorted(self.starts, starts)
        low, high = (
            each.reduceat(self.owners, first) if first.size else first
            for each in (np.minimum, np.maximum)
        )
        return Ranges(starts, ends, np.where(low == high, low, -1))


def overlap(writes: Ranges) -> bool:
    """Whether blocks write the same bytes; ranges of one block must be disjoint."""
    shared = (writes.starts[1:] < writes.ends[:-1]) & (writes.owners[1:] != writes.owners[:-1])
    return bool(np.any(shared))


def is_read_elsewhere(writes: Ranges, reads: Ranges) -> bool:
    """Whether blocks read what others write; writes must be disjoint."""
    low = np.searchsorted(writes.ends, reads.starts, side="right")
    high = np.searchsorted(writes.starts, reads.ends, side="left")
    hit = np.flatnonzero(high > low)
    low, high, owners = low[hit], high[hit], reads.owners[hit]
    changes = np.concatenate(([0], np.cumsum(writes.owners[1:] != writes.owners[:-1])))
    others = (writes.owners[low] != owners) | (changes[low] != changes[high - 1])
    return bool(np.any(others))


class Owned(NamedTuple):
    """Byte ranges of several owners, owner after owner: ascending and disjoint for each."""

    starts: Numbers
    ends: Numbers
    first: Numbers
    """Start of the ranges of each owner, and the end, `(owners + 1,)`."""

    @staticmethod
    def nothing(owners: int) -> Owned:
        """No ranges."""
        none = np.zeros(0, np.int64)
        return Owned(none, none, np.zeros(owners + 1, np.int64))

    @staticmethod
    def of(starts: Numbers, ends: Numbers, owner: Numbers, owners: int) -> Owned:
        """Ranges in any order, each owned by *owner*; joined where they touch."""
        # All owners at once, each in its own interval of the integers.
        apart = int(ends.max()) - int(starts.min()) + 2
        by_start = np.argsort(starts + owner * apart, kind="stable")
        owner = owner[by_start]
        starts, ends = starts[by_start] + owner * apart, ends[by_start] + owner * apart
        furthest = np.maximum.accumulate(ends)
        first = np.flatnonzero(np.concatenate(([True], starts[1:] > furthest[:-1])))
        owner = owner[first]
        starts, ends = starts[first], furthest[np.append(first[1:] - 1, furthest.size - 1)]
        moved = owner * apart
        return Owned(starts - moved, ends - moved, np.searchsorted(owner, np.arange(owners + 1)))

    def by_start(self) -> Ranges:
        """The ranges of all owners, ascending."""
        owner = np.repeat(np.arange(self.first.size - 1), np.diff(self.first))
        order = np.argsort(self.starts, kind="stable")
        return Ranges(self.starts[order], self.ends[order], owner[order])

    def rows_of(self, owners: Numbers) -> tuple[Numbers, Numbers]:
        """The ranges of *owners*, owner after owner: the owner of each, and its index."""
        return spread(self.first[owners + 1] - self.first[owners], self.first[owners])


class Search:
    """The byte ranges that cores of a launch touch; shared bodies are searched once."""

    def __init__(self, blocks: tuple[Block, ...]) -> None:
        self._launch = LaunchTable.of(blocks)
        self._bodies = {
            is_write: BurstsOfBodies(partial(_accessed, is_write)) for is_write in (False, True)
        }
        self._of_kind: dict[str, BurstsOfBodies] = {}
        self._of_cores: dict[tuple[str, bool], Owned] = {}
        """Tensor, and whether it is written -> the ranges of each core."""
        self._of_programs: dict[tuple[str, bool], Owned | None] = {}
        """Name of global memory, and whether it is written -> the ranges of each program."""

    def is_simple(self, tensor: str) -> bool:
        """Whether *tensor* is only read, or only written and each byte once."""
        number = self._launch.tensors.index(tensor)
        is_read, is_written = (self._may_touch(number, is_write) for is_write in (False, True))
        if not is_written or is_read:
            return not is_written
        written = bursts_of_cores(self._launch, number, self._bodies[True])
        if not written.size or bursts.are_apart(written):
            return True
        found = self._touched(tensor, True)
        return are_apart(found.starts, found.ends)

    def _may_touch(self, tensor: int, is_write: bool) -> bool:
        """Whether a body reads or writes a name that some core binds to tensor number *tensor*."""
        bound = (self._launch.tensor == tensor).any(axis=0).tolist()
        names = {name for name, own in zip(self._launch.names, bound, strict=True) if own}
        bodies = self._bodies[is_write]
        return any(not names.isdisjoint(bodies.of(body)) for body in self._launch.bodies)

    def of_tensor(self, tensor: str, is_write: bool) -> Ranges:
        """The ranges that each core reads or writes of *tensor*."""
        return self._touched(tensor, is_write).by_start()

    def of_groups(self, group: Numbers, tensor: str, is_write: bool) -> Ranges:
        """The ranges that each group of cores reads or writes; *group* is that of each core."""
        found = self._touched(tensor, is_write)
        if not found.starts.size:
            return found.by_start()
        owner = np.repeat(group, np.diff(found.first))
        return Owned.of(found.starts, found.ends, owner, int(group.max()) + 1).by_start()

    def in_phases(self, tensor: str, kind: str, phases: list[Numbers]) -> Ranges:
        """The ranges that each core touches of *tensor*, with those of different phases kept apart.

        *kind* is one of :func:`kind_of`; *phases* has the phase of each call of each core.
        """
        launch, number = self._launch, self._launch.tensors.index(tensor)
        found = [(np.zeros(0, np.int64),) * 4]
        bodies = self._of_kind.setdefault(kind, BurstsOfBodies(partial(_place_of_kind, kind)))
        for column, name in enumerate(launch.names):
            cores = np.flatnonzero(launch.tensor[:, column] == number).tolist()
            pieces = rows_of_pieces(launch, name, bodies) if cores else None
            if pieces is None:
                continue
            starts, ends, rows = pieces
            for core in cores:
                program = launch.program[core]
                edges = launch.first[program], launch.first[program + 1]
                own = slice(*np.searchsorted(rows, edges))
                base, phase = launch.base[core, column], phases[core][rows[own] - edges[0]]
                owner = np.full(phase.size, core)
                found.append((starts[own] + base, ends[own] + base, owner, phase))
        starts, ends, owner, phase = map(np.concatenate, zip(*found, strict=True))
        if not starts.size:
            return Ranges(starts, ends, owner)
        apart = PHASE_BYTES * phase
        return Owned.of(starts + apart, ends + apart, owner, launch.cores).by_start()

    def _touched(self, tensor: str, is_write: bool) -> Owned:
        """The ranges that each core reads or writes of *tensor*."""
        key = tensor, is_write
        if key not in self._of_cores:
            self._of_cores[key] = self._search(tensor, is_write)
        return self._of_cores[key]

    def _search(self, tensor: str, is_write: bool) -> Owned:
        launch, number = self._launch, self._launch.tensors.index(tensor)
        found = []
        for column, name in enumerate(launch.names):
            cores = np.flatnonzero(launch.tensor[:, column] == number)
            known = self._of_name(name, is_write) if cores.size else None
            if known is not None:
                # The ranges of each core's program, offset by the start of its name.
                whose, rows = known.rows_of(launch.program[cores])
                base = launch.base[cores, column][whose]
                found.append((known.starts[rows] + base, known.ends[rows] + base, cores[whose]))
        if not found:
            return Owned.nothing(launch.cores)
        starts, ends, owner = map(np.concatenate, zip(*found, strict=True))
        if len(found) > 1:
            return Owned.of(starts, ends, owner, launch.cores)
        return Owned(starts, ends, np.searchsorted(owner, np.arange(launch.cores + 1)))

    def _of_name(self, name: str, is_write: bool) -> Owned | None:
        """The ranges that each program touches of *name*; None if none touches it that way."""
        key = name, is_write
        if key not in self._of_programs:
            launch = self._launch
            found = rows_of_pieces(launch, name, self._bodies[is_write])
            programs = len(launch.programs)
            self._of_programs[key] = None
            if found is not None:
                starts, ends, rows = found
                self._of_programs[key] = Owned.of(
                    starts, ends, launch.program_of_row[rows], programs
                )
        return self._of_programs[key]


def are_apart(starts: Numbers, ends: Numbers) -> bool:
    """Whether no two of these ranges overlap.

    True if as many ranges have ended as begin before each next one begins.
    """
    return bool(np.all(np.sort(starts, kind="stable")[1:] >= np.sort(ends, kind="stable")[:-1]))


def rows_of_pieces(
    launch: LaunchTable, name: str, bodies: BurstsOfBodies
) -> tuple[Numbers, Numbers, Numbers] | None:
    """The ranges that each row touches of *name*: starts, ends, row; None if there are none."""
    pieces = [_pieces(bodies.of(body).get(name)) for body in launch.bodies]
    size = np.array([starts.size for starts, _ in pieces], np.int64)
    if not size[launch.body].any():
        return None
    starts, ends = map(np.concatenate, zip(*pieces, strict=True))
    row, where = spread(size[launch.body], (np.cumsum(size) - size)[launch.body])
    shift = launch.shifts[row, launch.column(name)]
    return starts[where] + shift, ends[where] + shift, row


def _pieces(found: Bursts | None) -> Pieces:
    return NO_PIECES if found is None else merged([written_out(found)])


def _accessed(is_write: bool, op: MicroOp) -> Global | None:
    """The place that *op* writes, or reads, in global memory."""
    place = global_operand(op)
    return place if place is not None and writes_global(op) is is_write else None


def _place_of_kind(kind: str, op: MicroOp) -> Global | None:
    """The place that *op* touches in global memory, if the access is of *kind*."""
    place = global_operand(op)
    return place if place is not None and kind_of(op) == kind else None


def kind_of(op: MicroOp) -> str:
    """How *op* accesses global memory: read, write, or how it combines with the contents."""
    if not writes_global(op):
        return "read"
    return combined_as(op) or "write"


@lru_cache(maxsize=4096)
def pieces_of(place: Global) -> Pieces:
    """The bytes of *place* as ranges, one per burst unless they are adjacent."""
    if place.bursts > 1 and 0 <= place.stride_bytes <= place.burst_bytes:
        # Adjacent bursts are one range.
        size = (place.bursts - 1) * place.stride_bytes + place.burst_bytes
        return np.array([place.offset_bytes], np.int64), np.array(
            [place.offset_bytes + size], np.int64
        )
    starts = place.offset_bytes + place.stride_bytes * np.arange(place.bursts, dtype=np.int64)
    return starts, starts + place.burst_bytes


def shifted(pieces: Pieces, nbytes: int) -> Pieces:
    """*pieces*, shifted by *nbytes*."""
    return pieces[0] + nbytes, pieces[1] + nbytes


def merged(pieces: list[Pieces]) -> Pieces:
    """*pieces* in ascending order, joined where they touch or overlap."""
    if len(pieces) == 1 and pieces[0][0].size == 1:
        return pieces[0]
    if not pieces:
        return NO_PIECES
    start, end = (np.concatenate(column) for column in zip(*pieces, strict=True))
    if not start.size:
        return start, end
    by_start = np.argsort(start, kind="stable")
    start, furthest = start[by_start], np.maximum.accumulate(end[by_start])
    first = np.flatnonzero(np.concatenate(([True], start[1:] > furthest[:-1])))
    return start[first], furthest[np.append(first[1:] - 1, start.size - 1)]
