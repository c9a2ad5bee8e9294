"""Contents of the L2 of a card across launches: lines, ages, and which are dirty.

Lines belong to global memory and have no tensor names: memory that is freed and allocated again
is found as it was left. The age of a line, as a set of the L2 sees it, is the number of lines
touched after it, of all tensors, each counted once however often it was touched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.data.integers import ceil_div, distinct
from npusim.data.json import Json
from npusim.devices.schema import DeviceSpec
from npusim.timing.memory.l2 import AGES, NEVER, WHOLE, survival
from npusim.trace.left import UNTOUCHED, Left, Runs

__all__ = ["Arrival", "CarriedL2"]

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Arrival:
    """What a launch finds in the L2; ages are in parts of the capacity, which has AGES parts."""

    tensors: Mapping[str, Runs]
    """Tensor -> the age of each line, NEVER for lines that are not cached."""
    dirty: tuple[tuple[int, int], ...]
    """Ages and bytes of dirty lines of any tensor, the oldest first."""
    resident_bytes: int
    """Expected bytes of the launch's tensors in the cache."""

    def __repr__(self) -> str:
        return f"<Arrival: {self.resident_bytes} bytes there, {self.dirty_bytes} bytes dirty>"

    @cached_property
    def digest(self) -> bytes:
        """A digest that is equal for equal states."""
        found = sha256(repr(self.dirty).encode())
        for name, runs in self.tensors.items():
            found.update(f"{name} {runs.ends.size} ".encode())
            found.update(runs.ends.tobytes() + runs.numbers.tobytes())
        return found.digest()

    @property
    def dirty_bytes(self) -> int:
        """Bytes to write back before as much as the L2 holds is brought in."""
        return sum(nbytes for _, nbytes in self.dirty)

    def ages(self, spec: DeviceSpec) -> dict[str, Runs]:
        """Tensor -> bytes brought in since each line was touched."""
        capacity, found = spec.l2.capacity_bytes, {}
        for name, runs in self.tensors.items():
            is_there = runs.numbers != NEVER
            ages = -(-np.where(is_there, runs.numbers, 0) * capacity // AGES)
            # Lines that the launch touches before bringing anything in have age 0.
            found[name] = runs._replace(numbers=np.where(is_there, np.maximum(ages, 1), NEVER))
        return found

    def stored(self, spec: DeviceSpec) -> list[tuple[int, int]]:
        """Bytes brought in since dirty lines were stored, the oldest first, and their bytes."""
        capacity = spec.l2.capacity_bytes
        return [(ceil_div(age * capacity, AGES), nbytes) for age, nbytes in self.dirty]

    def to_json(self) -> Json:
        return {"resident_bytes": self.resident_bytes, "dirty_bytes": self.dirty_bytes}


class _Lines(NamedTuple):
    """Disjoint runs of lines of global memory, in ascending order."""

    starts: Numbers
    ends: Numbers
    times: Numbers
    """Time of the last touch."""
    are_dirty: NDArray[np.bool_]

    def chosen(self, which: NDArray[np.bool_] | slice) -> _Lines:
        starts, ends, times, are_dirty = self
        return _Lines(starts[which], ends[which], times[which], are_dirty[which])

    def at(self, lines: Numbers) -> tuple[Numbers, NDArray[np.bool_]]:
        """When each of *lines* was touched, or UNTOUCHED, and whether it is dirty."""
        if not self.starts.size:
            return np.full(lines.size, UNTOUCHED), np.zeros(lines.size, np.bool_)
        run = np.searchsorted(self.starts, lines, side="right") - 1
        is_there = (run >= 0) & (lines < self.ends[run])
        return np.where(is_there, self.times[run], UNTOUCHED), is_there & self.are_dirty[run]


NONE = np.zeros(0, np.int64)


class CarriedL2:
    """The lines that launches have left in the L2 of a card."""

    def __init__(self, spec: DeviceSpec) -> None:
        self._spec = spec
        self._lines = _Lines(NONE, NONE, NONE, np.zeros(0, np.bool_))
        self._now = 0

    def found(self, places: Mapping[str, range]) -> Arrival:
        """What a launch finds if its tensors occupy the lines *places*."""
        lines, ages = self._lines, self._ages()
        shares = survival(self._spec.l2.ways)
        tensors, resident = {}, 0
        for name, place in places.items():
            first = int(np.searchsorted(lines.ends, place.start, side="right"))
            last = int(np.searchsorted(lines.starts, place.stop, side="left"))
            own = lines.chosen(slice(first, last))
            starts = np.clip(own.starts, place.start, place.stop)
            ends = np.clip(own.ends, place.start, place.stop)
            # The lines before each run and after the last one are not cached.
            before = np.append(starts, place.stop) - np.concatenate(([place.start], ends))
            sizes = np.append(np.stack((before[:-1], ends - starts), axis=1), before[-1])
            found = ages[first:last]
            parts = np.append(np.stack((np.full(found.size, NEVER), found), axis=1), NEVER)
            tensors[name] = Runs.of(np.repeat(parts, sizes))
            resident += int(((ends - starts) * shares[np.minimum(found, shares.size - 1)]).sum())
        line_bytes = self._spec.l2.line_bytes
        return Arrival(tensors, self._dirty(ages), resident * line_bytes // WHOLE)

    def launched(self, places: Mapping[str, range], left: Left, stored: Collection[str]) -> None:
        """Record a launch: *places* of its tensors, final state *left*, and tensors *stored*."""
        capacity_bytes = self._spec.l2.capacity_bytes
        lines = self._lines
        gone = self._ages() * capacity_bytes // AGES + left.volume > capacity_bytes
        lines = lines._replace(are_dirty=lines.are_dirty & ~gone)
        for name, place in places.items():
            runs = left.touched[name]
            is_touched = runs.numbers != UNTOUCHED
            volumes = runs.numbers[is_touched]
            is_kept = left.volume - volumes <= capacity_bytes
            own = _Lines(
                runs.starts[is_touched] + place.start,
                runs.ends[is_touched] + place.start,
                volumes + self._now,
                is_kept if name in stored else np.zeros(volumes.size, np.bool_),
            )
            lines = _later(lines, own)
        self._lines = lines
        self._now += left.volume + 1
        oldest = survival(self._spec.l2.ways).size - 1
        self._lines = lines.chosen((self._ages() < oldest) | lines.are_dirty)

    def _ages(self) -> Numbers:
        """The age of each run of lines, in parts of the capacity."""
        starts, ends, times, _ = self._lines
        latest_first = np.argsort(-times, kind="stable")
        sizes, turned = (ends - starts)[latest_first], -times[latest_first]
        before = np.cumsum(sizes) - sizes
        ages = np.empty(times.size, np.int64)
        # Lines touched at the same time have the same age.
        ages[latest_first] = before[np.searchsorted(turned, turned)] if times.size else before
        l2 = self._spec.l2
        return ages * l2.line_bytes * AGES // l2.capacity_bytes

    def _dirty(self, ages: Numbers) -> tuple[tuple[int, int], ...]:
        starts, ends, _, are_dirty = self._lines
        ages, sizes = ages[are_dirty], (ends - starts)[are_dirty]
        # Of lines that hits have made older than the capacity, some were evicted: those that remain
        # are evicted now.
        shares = survival(self._spec.l2.ways)
        left = np.where(ages > AGES, shares[np.minimum(ages, shares.size - 1)], WHOLE)
        lines = np.bincount(np.minimum(ages, AGES + 1), sizes * left) / WHOLE
        found = np.round(lines).astype(np.int64) * self._spec.l2.line_bytes
        return tuple((age, int(found[age])) for age in reversed(np.flatnonzero(found).tolist()))


def _later(lines: _Lines, others: _Lines) -> _Lines:
    """The union of both; lines in both have the later touch."""
    points = distinct(np.concatenate((*lines[:2], *others[:2])))
    times, are_dirty = lines.at(points)
    other_times, others_dirty = others.at(points)
    times, are_dirty = np.maximum(times, other_times), are_dirty | others_dirty
    is_first = np.ones(points.size, np.bool_)
    is_first[1:] = (times[1:] != times[:-1]) | (are_dirty[1:] != are_dirty[:-1])
    starts, times, are_dirty = points[is_first], times[is_first], are_dirty[is_first]
    # Nothing follows the last boundary.
    ends = np.append(starts[1:], starts[-1:])
    return _Lines(starts, ends, times, are_dirty).chosen(times != UNTOUCHED)
