"""The L2 cache: how much of the tensors' lines it holds, and what evicts them.

A line may be in any of the `ways` of one set, which a hash of the address selects. When another
line comes into the set, the least recently used one is evicted. Which lines share a set is not
known, and nothing is random here: each line counts by the *share* of it expected to be cached, so
that equal cores have equal times and runs are reproducible. After v bytes were brought in, the
number that fell into a set is a Poisson variable of mean ways x v / capacity, and the line is
cached if it is less than its ways.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from decimal import Context
from functools import cache, cached_property
from itertools import count
from math import gcd, perm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.data.integers import ceil_div, distinct
from npusim.data.tensor import GlobalTensor, allocated_bytes
from npusim.devices.schema import DeviceSpec
from npusim.isa import Global
from npusim.trace.copies import COUNT_UNITS
from npusim.trace.left import UNTOUCHED, Left, Runs

__all__ = [
    "L2",
    "NEVER",
    "SHARE_UNITS",
    "WHOLE",
    "Found",
    "Lines",
    "Use",
    "resident_share",
    "survival",
    "touched_lines",
    "unaligned_lines",
]

SHARE_UNITS = 1 << 20
"""Units per byte: requests that share a fetched line are charged a fraction of it each."""
WHOLE = 1 << 16
"""A line that is certainly cached; smaller values are the expected share of it."""
AGES = 1 << 8
"""Resolution of the age of lines: parts of the capacity."""
NEVER = 1 << 50
"""Age, in bytes, of a line that was never in the L2."""

Lines = slice | NDArray[np.int64]
"""The lines of a tensor that a copy touches: a range, or their indices."""


@cache
def survival(ways: int) -> NDArray[np.int64]:
    """The share of a line that remains after i / AGES of the capacity, for i = 0, 1, ..., then 0.

    Computed in integers, which give the same result on every machine.
    """
    # exp(-x) of the largest mean that matters, with 64 bits more.
    bits = 256 + 3 * ways
    exact = Context(prec=bits // 3)
    # Poisson(x) < ways: exp(-x) times the sum of x^k / k!
    ratio = int(exact.multiply(exact.exp(exact.divide(-ways, AGES)), 1 << bits))
    # In integers: x is age times over / under, and each sum is multiplied by `unit`.
    over, under = (number // gcd(ways, AGES) for number in (ways, AGES))
    last = ways - 1
    factors = [over**k * under ** (last - k) * perm(last, last - k) for k in range(last, -1, -1)]
    unit = factors[-1]
    shares: list[int] = []
    none = 1 << bits
    for age in count():
        total = 0
        for factor in factors:
            total = total * age + factor
        shares.append((none * total * WHOLE // unit + (1 << bits - 1)) >> bits)
        if not shares[-1]:
            break
        none = none * ratio >> bits
    return np.array(shares, np.int64)


def resident_share(age_bytes: int, spec: DeviceSpec) -> int:
    """The share, of WHOLE, of a line that remains after *age_bytes* were brought in."""
    shares = survival(spec.l2.ways)
    return int(shares[min(age_bytes * AGES // spec.l2.capacity_bytes, shares.size - 1)])


class Use(NamedTuple):
    """Lines that one core, or several equivalent ones, access in a cycle."""

    is_read: bool
    tensor: str
    lines: Lines
    copies: int = 1
    """How many cores make this request."""
    different: int = 1
    """How many distinct sets of lines these cores access: one each, or 1 shared by all."""
    unkept: NDArray[np.int64] | None = None
    """Number of bursts that end in each line read that is not retained, 0 for other lines; None if
    all are retained."""


class Found(NamedTuple):
    """Hits and misses among the lines of one core."""

    hits: int
    """Lines that were cached, in 1 / WHOLE of a line."""
    misses: int
    """The others, including those already being fetched for other cores."""
    fetched: int
    """Its share of the link time for fetching the lines, in 1 / SHARE_UNITS of a byte."""
    read: int
    """Its share of the lines read from global memory, in 1 / COUNT_UNITS of a byte."""
    arrives: int = 0
    """Cycles until the first byte of fetched lines arrives: the rest of the round trip."""


class Coming(NamedTuple):
    """The lines of one core that are being fetched for others, so that it waits for them."""

    shares: int
    """In 1 / WHOLE of a line."""
    arrives: int
    """Cycles until the first byte of the latest arrives."""


class L2:
    """The share of each line that is in the L2, and the number of dirty bytes.

    Requests of one cycle do not see each other's lines. Those that miss the same line all wait for
    it; it is fetched once, and its cost is divided among them. Cores need not be in step for that:
    a request for a line that is being fetched gets it at the same time, at no cost. A line that is
    not retained is fetched for each of them. The cache is write-back: stored bytes are written to
    global memory when as much as the cache holds was brought in after them.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        tensors: list[GlobalTensor],
        ages: Mapping[str, int | Runs],
        stored: Sequence[tuple[int, int]] = (),
    ) -> None:
        """*ages* give the bytes brought in since a tensor, or each of its lines, was touched; the
        others are NEVER. *stored* gives ages and sizes of dirty data, the oldest first.
        """
        self._line_bytes = spec.l2.line_bytes
        self._capacity = spec.l2.capacity_bytes
        self._run_bytes = spec.gm.run_bytes
        self._on_way_cycles = round(spec.gm.read_latency_ns * spec.clock_hz / 1e9)
        """How long a line is being fetched: the round trip of a request."""
        self._last_fetch = -self._on_way_cycles
        """The cycle of the last fetch."""
        self.shares = survival(spec.l2.ways)
        self._volume = 0
        """Bytes brought in since launch."""
        self.stored = deque((-age, nbytes) for age, nbytes in stored)
        """Volume at which bytes were stored, and their number."""
        self.counts = {
            tensor.name: ceil_div(allocated_bytes(tensor.nbytes), self._line_bytes)
            for tensor in tensors
        }
        """Tensor -> number of its lines."""
        self.launched = {
            name: _launched(ages.get(name, NEVER), count) for name, count in self.counts.items()
        }
        """Tensor -> volume at which each of its lines was last touched before launch."""
        self.absent = {
            name: count if self.launched[name].numbers.any() else 0
            for name, count in self.counts.items()
        }
        """Tensor -> number of lines never in the L2; counted only if all tensors fit."""
        lines = sum(self.counts.values())
        self.holds_all = resident_share(lines * self._line_bytes, spec) == WHOLE and all(
            isinstance(age, int) and age in (0, NEVER) for age in ages.values()
        )
        """Whether nothing is ever evicted."""
        self.is_carried = any(isinstance(age, Runs) for age in ages.values())
        """Whether the contents pass from launch to launch."""

    @cached_property
    def _touched(self) -> dict[str, NDArray[np.int64]]:
        """Tensor -> volume at which each line was last touched."""
        return {name: then.each() for name, then in self.launched.items()}

    @cached_property
    def _readers(self) -> dict[str, NDArray[np.int64]]:
        """Tensor -> number of cores that miss each line in this cycle; zero between cycles."""
        return {name: np.zeros(count, np.int64) for name, count in self.counts.items()}

    @cached_property
    def _brought(self) -> dict[str, NDArray[np.int64]]:
        """Tensor -> share of each line brought in in this cycle; zero between cycles."""
        return {name: np.zeros(count, np.int64) for name, count in self.counts.items()}

    @cached_property
    def _fetched(self) -> dict[str, NDArray[np.int64]]:
        """Tensor -> the cycle of the last fetch of each line, and the share fetched then."""
        return {name: np.zeros((2, count), np.int64) for name, count in self.counts.items()}

    def touch(self, uses: Sequence[Use], now: int) -> list[Found]:
        """Look up all *uses* of the cycle *now*, then bring in what missed, for later cycles."""
        waits = now - self._last_fetch < self._on_way_cycles
        # Shortcut: nothing is evicted and every line was brought in, so everything hits.
        if not waits and self.holds_all and not any(self.absent[use.tensor] for use in uses):
            return [Found(line_count(use.lines) * WHOLE, 0, 0, 0) for use in uses]
        seen = [(use, self._missing(use)) for use in uses]
        coming = [self._coming(*each, now) if waits else Coming(0, 0) for each in seen]
        if not waits and not any(missing.any() for _, missing in seen):
            for use in uses:
                self._keep(use)
            return [Found(missing.size * WHOLE, 0, 0, 0) for _, missing in seen]
        for use, missing in seen:
            if use.is_read:
                self._fetch(use, missing, now)
                readers = use.copies // use.different
                shared = missing if use.unkept is None else missing * (use.unkept == 0)
                self._readers[use.tensor][use.lines] += (shared > 0) * readers
        found = [self._found(*each, own) for each, own in zip(seen, coming, strict=True)]
        brought = {True: 0, False: 0}
        # Stores first: a line that both a store and a load bring in is dirty, and counted once.
        for use, missing in sorted(seen, key=lambda each: each[0].is_read):
            brought[use.is_read] += self._bring(use, missing)
        # Rounded for all requests together, so that equivalent cores can be merged.
        stored, loaded = (brought[is_read] * self._line_bytes // WHOLE for is_read in (False, True))
        if stored:
            self.stored.append((self._volume, stored))
        self._volume += stored + loaded
        for use in uses:
            self._keep(use)
            self._readers[use.tensor][use.lines] = 0
            self._brought[use.tensor][use.lines] = 0
        return found

    def left(self) -> Left:
        """The state after the launch; before it all lines must have had an age above 0."""
        touched = {
            name: Runs.of(np.maximum(volumes, UNTOUCHED)) for name, volumes in self._touched.items()
        }
        return Left(touched, self._volume)

    def end(self, touched: dict[str, NDArray[np.int64]], volume: int) -> None:
        """Take over the volumes from an engine that looks up lines itself."""
        self._touched, self._volume = touched, volume

    def evicted(self) -> int:
        """Dirty bytes that are evicted now and must be written to global memory."""
        nbytes = 0
        while self.stored and self._volume - self.stored[0][0] > self._capacity:
            nbytes += self.stored.popleft()[1]
        return nbytes

    def _keep(self, use: Use) -> None:
        touched = self._touched[use.tensor]
        if use.unkept is None:
            touched[use.lines] = self._volume
        else:
            touched[use.lines] = np.where(use.unkept > 0, touched[use.lines], self._volume)

    def _missing(self, use: Use) -> NDArray[np.int64]:
        """The share of each line of *use* that is not cached."""
        ages = (self._volume - self._touched[use.tensor][use.lines]) * AGES // self._capacity
        missing: NDArray[np.int64] = WHOLE - self.shares[np.minimum(ages, self.shares.size - 1)]
        return missing

    def _coming(self, use: Use, missing: NDArray[np.int64], now: int) -> Coming:
        """Lines of *use* being fetched for others; lines that are not retained are excluded."""
        if not use.is_read:
            return Coming(0, 0)
        then, shares = self._fetched[use.tensor][:, use.lines]
        left = self._on_way_cycles - now + then
        shares = np.where(left > 0, shares, 0)
        if use.unkept is not None:
            shares = np.where(use.unkept > 0, 0, shares)
        shares = np.minimum(shares, WHOLE - missing)
        return Coming(int(shares.sum()), int(left[shares > 0].max(initial=0)))

    def _fetch(self, use: Use, missing: NDArray[np.int64], now: int) -> None:
        """Record which retained lines are being fetched from now on."""
        is_fetched = missing > 0
        if use.unkept is not None:
            is_fetched &= use.unkept == 0
        if is_fetched.any():
            self._last_fetch = now
            then, shares = fetched = self._fetched[use.tensor][:, use.lines]
            then[is_fetched], shares[is_fetched] = now, missing[is_fetched]
            self._fetched[use.tensor][:, use.lines] = fetched

    def _found(self, use: Use, missing: NDArray[np.int64], coming: Coming) -> Found:
        misses = int(missing.sum())
        arrives = self._on_way_cycles if misses else coming.arrives
        fetched = read = 0
        if misses and use.is_read:
            # Each run of consecutive lines has an overhead; readers of a line divide its cost.
            line, unit = self._line_bytes, SHARE_UNITS // WHOLE
            times = 1 if use.unkept is None else np.maximum(use.unkept, 1)
            costs = line * missing * times + self._run_bytes * run_starts(use.lines, missing)
            readers = np.maximum(self._readers[use.tensor][use.lines], 1)
            if use.unkept is not None:
                readers = np.where(use.unkept > 0, 1, readers)
            fetched = int((costs * unit // readers).sum())
            # Shares are rounded to nearest.
            nbytes = missing * times * (line * (COUNT_UNITS // WHOLE))
            read = int(((nbytes + readers // 2) // readers).sum())
        misses += coming.shares
        return Found(missing.size * WHOLE - misses, misses, fetched, read, arrives)

    def _bring(self, use: Use, missing: NDArray[np.int64]) -> int:
        """Lines that *use* brings in, in 1 / WHOLE of a line, except those that an earlier use of
        the same cycle brought in.
        """
        if use.unkept is not None:
            missing = np.where(use.unkept > 0, 0, missing)
        brought = self._brought[use.tensor][use.lines]
        more = int(np.maximum(missing - brought, 0).sum())
        if self.holds_all:
            self.absent[use.tensor] -= more // WHOLE
        self._brought[use.tensor][use.lines] = np.maximum(brought, missing)
        return more * use.different


def _launched(age: int | Runs, count: int) -> Runs:
    """Volumes at which *count* lines of that age were touched."""
    if isinstance(age, Runs):
        return age._replace(numbers=-age.numbers)
    return Runs(np.array([count], np.int64), np.array([-age], np.int64))


def line_count(lines: Lines) -> int:
    """Number of *lines*."""
    return lines.stop - lines.start if isinstance(lines, slice) else lines.size


def run_starts(lines: Lines, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """To what extent each of *lines*, *chosen* by share of WHOLE, follows no other chosen one."""
    starts = chosen.copy()
    follows = chosen[1:] * chosen[:-1] // WHOLE
    starts[1:] -= follows if isinstance(lines, slice) else follows * (np.diff(lines) == 1)
    return starts


def touched_lines(place: Global, base_bytes: int, line_bytes: int) -> Lines:
    """The lines of its tensor that *place* touches: a range, or indices if scattered."""
    first = base_bytes + place.offset_bytes
    # Gaps shorter than a line skip no line, so all bursts are one run of lines.
    if place.bursts == 1 or place.stride_bytes - place.burst_bytes < line_bytes:
        end = base_bytes + place.end_bytes
        return slice(first // line_bytes, ceil_div(end, line_bytes))
    # (bursts,) -> (bursts, most lines per burst), masked to the lines of each burst
    starts = first + place.stride_bytes * np.arange(place.bursts, dtype=np.int64)
    lows, highs = starts // line_bytes, (starts + place.burst_bytes - 1) // line_bytes
    runs = lows[:, None] + np.arange(int((highs - lows).max()) + 1)
    return distinct(runs[runs <= highs[:, None]])


def unaligned_lines(
    place: Global, base_bytes: int, spec: DeviceSpec, lines: Lines
) -> NDArray[np.int64] | None:
    """Number of ends of bursts that are not sector-aligned in each of *lines*, loaded from *place*;
    None if all are aligned.

    Such an end is fetched as a whole line, and the line is not retained for others: rows of 512 B
    at odd addresses take twice as long, though their neighbours request the other parts of the same
    lines (asc-devkit, data_copy, rows m0816 and m0823).
    """
    sector, line = spec.transfer.sector_bytes, spec.l2.line_bytes
    first = base_bytes + place.offset_bytes
    if first % sector == 0 and (place.bursts == 1 or place.stride_bytes % sector == 0):
        return None
    starts = first + place.stride_bytes * np.arange(place.bursts, dtype=np.int64)
    starts = starts[starts % sector != 0]
    firsts, lasts = starts // line, (starts + place.burst_bytes - 1) // line
    ends = np.concatenate([firsts, lasts[lasts != firsts]])
    if isinstance(lines, slice):
        found = np.bincount(ends - lines.start, minlength=lines.stop - lines.start)
    else:
        numbers, counts = np.unique(ends, return_counts=True)
        found = np.zeros(lines.size, np.int64)
        found[np.searchsorted(lines, numbers)] = counts
    return found
