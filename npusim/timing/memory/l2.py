"""The L2 cache: how much of the tensors' lines it holds, and what leaves it for others.

A line may lie in any of the `ways` of one set, and a hash of the address chooses the set. The line
that was touched longest ago leaves its set when one more comes in. Which lines share a set is not
known, and nothing is drawn: of a line, the *share* counts that is expected to be still there, so
that equal cores have equal times and a run gives the same times again. After v bytes came in, a set
has seen as many of them as a Poisson variable of mean ways x v / capacity, and the line is there if
these are fewer than its ways.
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
"""Units a byte: requests that share a fetched line are charged a fraction of it each."""
WHOLE = 1 << 16
"""A line that is there for certain; less is the share of it that is expected to be there."""
AGES = 1 << 8
"""Ages of lines are distinguished by so many parts of the capacity."""
NEVER = 1 << 50
"""Age, in bytes, of a line that was never in the L2."""

Lines = slice | NDArray[np.int64]
"""Which lines of a tensor a copy touches: a run of them, or their numbers."""


@cache
def survival(ways: int) -> NDArray[np.int64]:
    """The share left of a line after i / AGES of the capacity came in, for i = 0, 1, ..., then 0.

    Of whole numbers, which are the same on every machine.
    """
    # exp(-x) of the largest mean that matters, and 64 bits more.
    bits = 256 + 3 * ways
    exact = Context(prec=bits // 3)
    # Poisson(x) < ways: exp(-x) times the sum of x^k / k!
    ratio = int(exact.multiply(exact.exp(exact.divide(-ways, AGES)), 1 << bits))
    # In whole numbers: x is age times over / under, and each sum comes times `unit`.
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
    """The share, of WHOLE, left of a line after *age_bytes* came in."""
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
    """How many different sets of lines these cores access: one each, or 1 shared by all."""
    unkept: NDArray[np.int64] | None = None
    """How many bursts end in each line that is read and does not stay, 0 for the others; None if
    all stay."""


class Found(NamedTuple):
    """Hits and misses among the lines of one core."""

    hits: int
    """Lines that were there, in 1 / WHOLE of a line."""
    misses: int
    """The rest, with what is on its way for others."""
    fetched: int
    """Its share of what reading the lines costs the link, in 1 / SHARE_UNITS of a byte."""
    read: int
    """Its share of the lines that are read from global memory, in 1 / COUNT_UNITS of a byte."""
    arrives: int = 0
    """Cycles until the first byte of what comes in is there: of a round trip what is left of it."""


class Coming(NamedTuple):
    """What of the lines of one core is on its way for others, and waited for."""

    shares: int
    """In 1 / WHOLE of a line."""
    arrives: int
    """Cycles until the first byte of the latest is there."""


class L2:
    """Which share of the tensors' lines is in the L2, and how many bytes of it are dirty.

    Requests of one cycle do not see each other's lines; those that miss the same line all wait for
    it, it is fetched once, and its cost is divided among them. Cores need not march in step for
    that: whoever asks for a line that is on its way gets it when they do, and costs nothing. A line
    that does not stay is fetched for each of them. The cache is write-back: stored bytes are
    written to global memory when as much as the cache holds has come in after them.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        tensors: list[GlobalTensor],
        ages: Mapping[str, int | Runs],
        stored: Sequence[tuple[int, int]] = (),
    ) -> None:
        """*ages* say how many bytes came in since a tensor was touched, or each of its lines; the
        others were NEVER. Those *stored* are ages of dirty bytes, the oldest first, and how many.
        """
        self._line_bytes = spec.l2.line_bytes
        self._capacity = spec.l2.capacity_bytes
        self._run_bytes = spec.gm.run_bytes
        self._on_way_cycles = round(spec.gm.read_latency_ns * spec.clock_hz / 1e9)
        """How long a line is on its way: the round trip of a request."""
        self._last_fetch = -self._on_way_cycles
        """The cycle in which a line was fetched last."""
        self.shares = survival(spec.l2.ways)
        self._volume = 0
        """Bytes brought in since launch."""
        self.stored = deque((-age, nbytes) for age, nbytes in stored)
        """Volume when bytes were stored, and how many."""
        self.counts = {
            tensor.name: ceil_div(allocated_bytes(tensor.nbytes), self._line_bytes)
            for tensor in tensors
        }
        """Tensor -> how many lines it has."""
        self.launched = {
            name: _launched(ages.get(name, NEVER), count) for name, count in self.counts.items()
        }
        """Tensor -> volume when each of its lines was last touched before launch."""
        self.absent = {
            name: count if self.launched[name].numbers.any() else 0
            for name, count in self.counts.items()
        }
        """Tensor -> how many of its lines were never in the L2; counted only if all tensors fit."""
        lines = sum(self.counts.values())
        self.holds_all = resident_share(lines * self._line_bytes, spec) == WHOLE and all(
            isinstance(age, int) and age in (0, NEVER) for age in ages.values()
        )
        """Whether nothing ever leaves."""
        self.is_carried = any(isinstance(age, Runs) for age in ages.values())
        """Whether it passes from launch to launch."""

    @cached_property
    def _touched(self) -> dict[str, NDArray[np.int64]]:
        """Tensor -> volume when each line was last touched."""
        return {name: then.each() for name, then in self.launched.items()}

    @cached_property
    def _readers(self) -> dict[str, NDArray[np.int64]]:
        """Tensor -> how many cores miss each line in the present cycle; zero between cycles."""
        return {name: np.zeros(count, np.int64) for name, count in self.counts.items()}

    @cached_property
    def _brought(self) -> dict[str, NDArray[np.int64]]:
        """Tensor -> share of each line brought in in the present cycle; zero between cycles."""
        return {name: np.zeros(count, np.int64) for name, count in self.counts.items()}

    @cached_property
    def _fetched(self) -> dict[str, NDArray[np.int64]]:
        """Tensor -> the cycle in which each line was fetched last, and the share of it that was."""
        return {name: np.zeros((2, count), np.int64) for name, count in self.counts.items()}

    def touch(self, uses: Sequence[Use], now: int) -> list[Found]:
        """Look up all *uses* of the cycle *now*, then bring in what missed, for those after it."""
        waits = now - self._last_fetch < self._on_way_cycles
        # Shortcut: nothing leaves and every line has come in, so everything hits.
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
        # Stores first: a line that a store and a load both bring in is dirty, and counted once.
        for use, missing in sorted(seen, key=lambda each: each[0].is_read):
            brought[use.is_read] += self._bring(use, missing)
        # Rounded for all requests together, so that equivalent cores may come as one.
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
        """What the launch leaves; before it all lines must have had an age above 0."""
        touched = {
            name: Runs.of(np.maximum(volumes, UNTOUCHED)) for name, volumes in self._touched.items()
        }
        return Left(touched, self._volume)

    def end(self, touched: dict[str, NDArray[np.int64]], volume: int) -> None:
        """An engine that looks lines up by itself has come to these volumes."""
        self._touched, self._volume = touched, volume

    def evicted(self) -> int:
        """Dirty bytes that leave now and have to be written to global memory."""
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
        """The share of each line of *use* that is not there."""
        ages = (self._volume - self._touched[use.tensor][use.lines]) * AGES // self._capacity
        missing: NDArray[np.int64] = WHOLE - self.shares[np.minimum(ages, self.shares.size - 1)]
        return missing

    def _coming(self, use: Use, missing: NDArray[np.int64], now: int) -> Coming:
        """What of the lines of *use* is on its way for others; one that does not stay is not."""
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
        """Remember which lines that stay are on their way from now on."""
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
            # Each run of consecutive lines costs overhead; readers of a line divide its cost.
            line, unit = self._line_bytes, SHARE_UNITS // WHOLE
            times = 1 if use.unkept is None else np.maximum(use.unkept, 1)
            costs = line * missing * times + self._run_bytes * run_starts(use.lines, missing)
            readers = np.maximum(self._readers[use.tensor][use.lines], 1)
            if use.unkept is not None:
                readers = np.where(use.unkept > 0, 1, readers)
            fetched = int((costs * unit // readers).sum())
            # Shares are rounded to the nearest.
            nbytes = missing * times * (line * (COUNT_UNITS // WHOLE))
            read = int(((nbytes + readers // 2) // readers).sum())
        misses += coming.shares
        return Found(missing.size * WHOLE - misses, misses, fetched, read, arrives)

    def _bring(self, use: Use, missing: NDArray[np.int64]) -> int:
        """Lines that *use* brings in, in 1 / WHOLE of a line, but for those brought in before it in
        the same cycle.
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
    """Volumes when *count* lines of that age were touched."""
    if isinstance(age, Runs):
        return age._replace(numbers=-age.numbers)
    return Runs(np.array([count], np.int64), np.array([-age], np.int64))


def line_count(lines: Lines) -> int:
    """How many *lines* there are."""
    return lines.stop - lines.start if isinstance(lines, slice) else lines.size


def run_starts(lines: Lines, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """How far each of *lines*, *chosen* by its share of WHOLE, follows no other chosen one."""
    starts = chosen.copy()
    follows = chosen[1:] * chosen[:-1] // WHOLE
    starts[1:] -= follows if isinstance(lines, slice) else follows * (np.diff(lines) == 1)
    return starts


def touched_lines(place: Global, base_bytes: int, line_bytes: int) -> Lines:
    """The lines of its tensor that *place* touches: a run, or the numbers of scattered ones."""
    first = base_bytes + place.offset_bytes
    # Gaps shorter than a line leave no line out, so all bursts are one run of lines.
    if place.bursts == 1 or place.stride_bytes - place.burst_bytes < line_bytes:
        end = base_bytes + place.end_bytes
        return slice(first // line_bytes, ceil_div(end, line_bytes))
    # (bursts,) -> (bursts, most lines a burst touches), masked to the lines of each burst
    starts = first + place.stride_bytes * np.arange(place.bursts, dtype=np.int64)
    lows, highs = starts // line_bytes, (starts + place.burst_bytes - 1) // line_bytes
    runs = lows[:, None] + np.arange(int((highs - lows).max()) + 1)
    return distinct(runs[runs <= highs[:, None]])


def unaligned_lines(
    place: Global, base_bytes: int, spec: DeviceSpec, lines: Lines
) -> NDArray[np.int64] | None:
    """How many ends of bursts that do not begin on a sector lie in each of *lines*, those of a load
    from *place*; None if none do.

    Such an end comes as a whole line, and the line does not stay for others: rows of 512 B at odd
    addresses take twice as long, though their neighbours ask for the other parts of the same lines
    (asc-devkit, data_copy, rows m0816 and m0823).
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
