"""The L2 cache: which lines of the tensors it holds, least recently used first out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.data.integers import ceil_div
from npusim.data.tensor import GlobalTensor, allocated_bytes
from npusim.devices.schema import DeviceSpec
from npusim.isa import Global
from npusim.trace.copies import COUNT_UNITS

__all__ = ["L2", "SHARE_UNITS", "Found", "Lines", "Use", "touched_lines"]

SHARE_UNITS = 1 << 20
"""Units a byte: requests that share a fetched line are charged a fraction of it each."""
NEVER = -(2**62)
"""Last-use volume of a line that was never accessed: so early that it always misses."""

Lines = slice | NDArray[np.int64]
"""Which lines of a tensor a copy touches: a run of them, or their numbers."""


class Use(NamedTuple):
    """Lines that one core, or several equivalent ones, access in a cycle."""

    is_read: bool
    tensor: str
    lines: Lines
    copies: int = 1
    """How many cores make this request."""
    different: int = 1
    """How many different sets of lines these cores access: one each, or 1 shared by all."""


class Found(NamedTuple):
    """Hits and misses among the lines of one core."""

    hits: int
    misses: int
    fetched: int
    """Its share of what reading the lines costs the link, in 1 / SHARE_UNITS of a byte."""
    read: int
    """Its share of the lines that are read from global memory, in 1 / COUNT_UNITS of a byte."""


class L2:
    """Which lines of the tensors are in the L2, and how many bytes of them are dirty.

    Replacement is least recently used, measured by volume: a line hits if at most the capacity has
    been brought in since its last access, by the requests of that cycle and all later ones.
    Requests of one cycle do not see each other's lines; those that miss the same line all wait for
    it, it is fetched once, and its cost is divided among them. The cache is write-back: stored
    bytes stay until they are evicted, and are written to global memory then.
    """

    def __init__(
        self, spec: DeviceSpec, tensors: list[GlobalTensor], warm: frozenset[str] = frozenset()
    ) -> None:
        self._line_bytes = spec.l2.line_bytes
        self._capacity = spec.l2.capacity_bytes
        self._run_bytes = spec.gm.run_bytes
        self._volume = 0
        """Bytes brought in so far."""
        self._stored: deque[tuple[int, int]] = deque()
        """Volume when bytes were stored, and how many."""
        self._touched: dict[str, NDArray[np.int64]] = {}
        """Tensor -> volume when each line was last touched."""
        self._readers: dict[str, NDArray[np.int64]] = {}
        """Tensor -> how many cores miss each line in the present cycle; zero between cycles."""
        self._brought: dict[str, NDArray[np.bool_]] = {}
        """Tensor -> whether each line is brought in in the present cycle; False between cycles."""
        self._absent: dict[str, int] = {}
        """Tensor -> how many of its lines were never in the L2; kept up only if all tensors fit."""
        for tensor in tensors:
            count = ceil_div(allocated_bytes(tensor.nbytes), self._line_bytes)
            if tensor.name in warm:
                first = self._volume
                self._volume += count * self._line_bytes
                self._touched[tensor.name] = np.arange(first, self._volume, self._line_bytes)
            else:
                self._touched[tensor.name] = np.full(count, NEVER)
            self._absent[tensor.name] = 0 if tensor.name in warm else count
            self._readers[tensor.name] = np.zeros(count, np.int64)
            self._brought[tensor.name] = np.zeros(count, np.bool_)
        lines = sum(touched.size for touched in self._touched.values())
        self._holds_all = lines * self._line_bytes <= self._capacity
        """Whether all tensors fit, so that nothing is ever evicted."""

    def touch(self, uses: Sequence[Use]) -> list[Found]:
        """Look up all *uses* of one cycle, then bring in what missed, for the cycles after it."""
        # Shortcut: nothing is evicted and every line has come in, so everything hits.
        if self._holds_all and not any(self._absent[use.tensor] for use in uses):
            return [Found(line_count(use.lines), 0, 0, 0) for use in uses]
        seen = [(use, self._missing(use)) for use in uses]
        if not any(missing.any() for _, missing in seen):
            for use in uses:
                self._touched[use.tensor][use.lines] = self._volume
            return [Found(missing.size, 0, 0, 0) for _, missing in seen]
        for use, missing in seen:
            if use.is_read:
                self._readers[use.tensor][use.lines] += missing * (use.copies // use.different)
        found = [self._found(use, missing) for use, missing in seen]
        pending = 0
        # Stores first: a line that a store and a load both bring in is dirty, and counted once.
        for use, missing in sorted(seen, key=lambda each: each[0].is_read):
            nbytes = self._bring(use, missing)
            pending += nbytes
            if nbytes and not use.is_read:
                self._stored.append((self._volume, nbytes))
        for use in uses:
            self._touched[use.tensor][use.lines] = self._volume
            self._readers[use.tensor][use.lines] = 0
            self._brought[use.tensor][use.lines] = False
        self._volume += pending
        return found

    def evicted(self) -> int:
        """Dirty bytes that are evicted now and have to be written to global memory."""
        nbytes = 0
        while self._stored and self._volume - self._stored[0][0] > self._capacity:
            nbytes += self._stored.popleft()[1]
        return nbytes

    def _missing(self, use: Use) -> NDArray[np.bool_]:
        return self._volume - self._touched[use.tensor][use.lines] > self._capacity

    def _found(self, use: Use, missing: NDArray[np.bool_]) -> Found:
        misses = int(np.count_nonzero(missing))
        fetched = read = 0
        if misses and use.is_read:
            # Each run of consecutive lines costs overhead; readers of a line divide its cost.
            costs = self._line_bytes + self._run_bytes * run_starts(use.lines, missing)[missing]
            readers = self._readers[use.tensor][use.lines][missing]
            fetched = int((costs * SHARE_UNITS // readers).sum())
            line = self._line_bytes * COUNT_UNITS
            # Shortcut: nobody else asks for any of them. Else shares are rounded to the nearest.
            alone = int(readers.sum()) == misses
            read = misses * line if alone else int(((line + readers // 2) // readers).sum())
        return Found(missing.size - misses, misses, fetched, read)

    def _bring(self, use: Use, missing: NDArray[np.bool_]) -> int:
        """Bytes that *use* brings in, without lines brought in before it in the same cycle."""
        brought = self._brought[use.tensor][use.lines]
        count = int(np.count_nonzero(missing & ~brought))
        if self._holds_all:
            self._absent[use.tensor] -= count
        self._brought[use.tensor][use.lines] = brought | missing
        return count * use.different * self._line_bytes


def line_count(lines: Lines) -> int:
    """How many *lines* there are."""
    return lines.stop - lines.start if isinstance(lines, slice) else lines.size


def run_starts(lines: Lines, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which of the *chosen* ones among *lines* do not follow another chosen one."""
    starts = chosen.copy()
    if isinstance(lines, slice):
        starts[1:] &= ~chosen[:-1]
    else:
        starts[1:] &= (np.diff(lines) != 1) | ~chosen[:-1]
    return starts


def touched_lines(place: Global, base_bytes: int, line_bytes: int) -> Lines:
    """The lines of its tensor that *place* touches: a run, or the numbers of scattered ones."""
    first = base_bytes + place.offset_bytes
    # Gaps shorter than a line leave no line out, so all bursts are one run of lines.
    if place.bursts == 1 or place.stride_bytes - place.burst_bytes < line_bytes:
        end = base_bytes + place.end_bytes
        return slice(first // line_bytes, ceil_div(end, line_bytes))
    # (bursts,) -> (bursts, most lines a burst touches), masked to the lines of each burst
    starts = first + place.stride_bytes * np.arange(place.bursts)
    lows, highs = starts // line_bytes, (starts + place.burst_bytes - 1) // line_bytes
    runs = lows[:, None] + np.arange(int((highs - lows).max()) + 1)
    return np.unique(runs[runs <= highs[:, None]])
