"""Global memory, the L2, and the links to them that all cores share.

There are four links: read and write, past the L2 and out of it. A link is shared fairly: each copy
under way gets its own port's speed, or the same fraction of it as everybody else when the ports
together exceed the link. One number says all of that, the link's *virtual time*: it advances by one
each cycle while everybody has full speed, slower otherwise, and a copy is done when it has advanced
by `bytes / port speed`. Arithmetic is in integers, so that times are the same on every machine, and
equal copies stay equal whatever the order in which they came.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import simpy
from numpy.typing import NDArray

from npusim.isa import Global
from npusim.spec import DeviceSpec
from npusim.tensor import GlobalTensor, allocated_bytes

__all__ = ["Lines", "Link", "Request", "SharedMemory"]

TICKS = 1 << 40
"""How finely virtual time is counted: ticks a cycle."""
SLACK = 1 << 20
"""About a millionth of a cycle. What is so near its end is done, lest the rounding of a speed such
as one third let a copy that ends with a cycle end with the next."""
PORT_UNITS = 1 << 10
"""Port speeds are counted in 1/1024 byte a cycle."""


class Link:
    """A way that copies share, *bytes_per_cycle* wide.

    Of a link of several *slices* each copy keeps one busy, all those that ask for the same bytes
    the same one; which, is left to chance. So d different copies get the share
    `1 - (1 - 1 / slices) ** d` of it.
    """

    def __init__(self, env: simpy.Environment, bytes_per_cycle: float, slices: int = 1) -> None:
        self._env = env
        self._full = bytes_per_cycle * PORT_UNITS
        self._slices = slices
        self._widths = [0, round(self._full / slices)]
        self._virtual = 0
        self._since = 0
        self._load = 0
        self._waiting: list[tuple[int, int, Copy, Callable[[], None]]] = []
        self._streams: dict[object, int] = {}
        self._different = 0
        self._count = 0
        self._plan_number = 0

    @property
    def width(self) -> int:
        """What it moves at most, in units."""
        return round(self._full)

    def join(self, copy: Copy, done: Callable[[], None]) -> None:
        """Move the bytes of *copy*; then call *done*."""
        self._advance()
        needs = -(-copy.nbytes * PORT_UNITS * TICKS // copy.port)
        self._count += 1
        heapq.heappush(self._waiting, (self._virtual + needs, self._count, copy, done))
        self._load += copy.load
        before = self._streams.get(copy.stream, 0)
        self._streams[copy.stream] = before + 1
        self._different += copy.different if not before else 0
        self._plan()

    def _remove(self, copy: Copy) -> None:
        self._load -= copy.load
        left = self._streams[copy.stream] - 1
        self._streams[copy.stream] = left
        if not left:
            del self._streams[copy.stream]
            self._different -= copy.different

    def _speed(self) -> int:
        return min(TICKS, self._width() * TICKS // max(1, self._load))

    def _width(self) -> int:
        widths = self._widths
        while len(widths) <= self._different:
            idle = (1 - 1 / self._slices) ** len(widths)
            widths.append(round(self._full * (1 - idle)))
        return widths[self._different]

    def _advance(self) -> None:
        now = int(self._env.now)
        if self._waiting:
            self._virtual += self._speed() * (now - self._since)
        self._since = now

    def _plan(self) -> None:
        """Arrange to be called when the first copy ends, if nothing changes before."""
        self._plan_number += 1
        if self._waiting:
            left = self._waiting[0][0] - SLACK - self._virtual
            plan = self._plan_number
            event = self._env.timeout(max(0, -(-left // self._speed())))
            event.callbacks.append(lambda _: self._leave(plan))

    def _leave(self, plan: int) -> None:
        if plan != self._plan_number:
            return
        self._advance()
        left = []
        while self._waiting and self._waiting[0][0] - SLACK <= self._virtual:
            _, _, copy, done = heapq.heappop(self._waiting)
            self._remove(copy)
            left.append(done)
        self._plan()
        for done in left:
            done()


class Copy(NamedTuple):
    """What moves over a link."""

    nbytes: int
    """What one core gets."""
    port: int
    """The speed at which it can take them, in units."""
    load: int
    """What the link would move then for all cores that do this, in units."""
    stream: object
    """Copies of the same bytes have the same one."""
    different: int
    """How many slices they keep busy, as far as there are so many."""


Lines = slice | NDArray[np.int64]
"""Which lines of a tensor a copy touches: a run of them, or their numbers."""


class L2:
    """Which lines of the tensors lie in the L2, and how many of them the memory has not got yet.

    Least recently used, told by volume: a line is still there if no more bytes than fit have been
    brought in since it was touched, by that request and all later ones. Requests of one and the
    same cycle do not see each other, whatever their order; those that ask for the same line at
    once all wait for it, and it is brought in once. What is stored stays until it has to go, and is
    written to the memory then.
    """

    def __init__(
        self, spec: DeviceSpec, tensors: list[GlobalTensor], warm: frozenset[str] = frozenset()
    ) -> None:
        self._line_bytes = spec.l2.line_bytes
        self._capacity = spec.l2.capacity_bytes
        self._volume = 0
        """Bytes brought in before the present cycle."""
        self._pending = 0
        """Bytes brought in by the present cycle."""
        self._recent: list[tuple[str, Lines]] = []
        """What the present cycle touched."""
        self._now = 0
        self._stored: deque[tuple[int, int]] = deque()
        """Volume when bytes were stored, and how many."""
        self._touched: dict[str, NDArray[np.int64]] = {}
        """Tensor -> volume when each line was last touched; far below zero for never."""
        self._asked: dict[str, NDArray[np.int64]] = {}
        """Tensor -> the cycle when each line was last asked for and not there."""
        for tensor in tensors:
            count = -(-allocated_bytes(tensor.nbytes) // self._line_bytes)
            if tensor.name in warm:
                first = self._volume
                self._volume += count * self._line_bytes
                self._touched[tensor.name] = np.arange(first, self._volume, self._line_bytes)
            else:
                self._touched[tensor.name] = np.full(count, -(2**62))
            self._asked[tensor.name] = np.full(count, -1)

    def begin(self) -> None:
        """Cycles count from 0 again; what lies here stays."""
        self._next(0)
        for asked in self._asked.values():
            asked[:] = -1

    def _next(self, now: int) -> None:
        for name, recent in self._recent:
            self._touched[name][recent] = self._volume
        self._recent.clear()
        self._volume += self._pending
        self._pending, self._now = 0, now

    def store(self, tensor: str, lines: Lines, different: int, now: int) -> None:
        """Write *lines* at cycle *now*."""
        found = self.touch(tensor, lines, different, now)
        if found.misses:
            nbytes = found.misses * different * self._line_bytes
            self._stored.append((self._volume, nbytes))

    def evicted(self) -> int:
        """Bytes that had been stored and have to go to the memory now."""
        nbytes = 0
        while self._stored and self._volume - self._stored[0][0] > self._capacity:
            nbytes += self._stored.popleft()[1]
        return nbytes

    def touch(self, tensor: str, lines: Lines, different: int, now: int) -> Found:
        """Use *lines* at cycle *now*."""
        if now != self._now:
            self._next(now)
        missing = self._volume - self._touched[tensor][lines] > self._capacity
        misses = int(np.count_nonzero(missing))
        self._recent.append((tensor, lines))
        if not misses:
            return Found(missing.size, 0, 0, 0)
        asked = self._asked[tensor][lines]
        fetched = missing & (asked != now)
        self._asked[tensor][lines] = np.where(missing, now, asked)
        count = int(np.count_nonzero(fetched))
        self._pending += count * different * self._line_bytes
        return Found(missing.size - misses, misses, count, runs_of(lines, fetched))


class Found(NamedTuple):
    """What the L2 has of the lines of a request."""

    hits: int
    misses: int
    fetched: int
    """Misses that nobody else has asked for in this cycle."""
    runs: int
    """Those that follow each other counted once."""


def runs_of(lines: Lines, chosen: NDArray[np.bool_]) -> int:
    """How many runs of *lines* that follow each other there are, of the *chosen* ones."""
    if isinstance(lines, slice):
        return int(np.count_nonzero(chosen[1:] & ~chosen[:-1])) + int(chosen[0])
    apart = np.diff(lines) != 1
    return int(np.count_nonzero(chosen[1:] & (apart | ~chosen[:-1]))) + int(chosen[0])


class Request(NamedTuple):
    """A copy as the memory sees it."""

    is_read: bool
    tensor: str
    lines: Lines
    nbytes: int
    """Bytes as moved."""
    rows: int
    """Pieces of rows that are turned into Nz."""
    gm_port: int
    """Speed of the core's port past the L2, in units."""
    l2_port: int
    copies: int
    """How many cores do this at once."""
    is_cached: bool = True
    """Whether the L2 keeps the bytes."""
    different: int = 1
    """How many of the cores ask for bytes of their own."""
    spread: int = 1
    """In how many slices of the L2 the bytes of one core lie that it asks for at a time."""


class SharedMemory:
    """Takes requests at the present cycle, and calls back when their last byte has moved."""

    def __init__(self, env: simpy.Environment, spec: DeviceSpec, l2: L2) -> None:
        self._env = env
        self._l2 = l2
        clock = spec.clock_hz
        reads = Link(env, spec.gm.read_bytes_per_s / clock)
        writes = Link(env, spec.gm.write_bytes_per_s / clock)
        self._links = {
            ("gm", True): reads,
            ("gm", False): reads if spec.gm.bus == "shared" else writes,
            ("l2", True): Link(env, spec.l2.read_bytes_per_s / clock, spec.l2.slices),
            ("l2", False): Link(env, spec.l2.write_bytes_per_s / clock),
        }
        self._clock_hz = clock
        self._line_bytes = spec.l2.line_bytes
        self._run_bytes = spec.gm.run_bytes
        self._row_ns = {"gm": spec.gm.row_ns, "l2": spec.l2.row_ns}
        self._latency = {
            ("gm", True): round(spec.gm.read_latency_ns * clock / 1e9),
            ("gm", False): round(spec.gm.write_latency_ns * clock / 1e9),
            ("l2", True): round(spec.l2.read_latency_ns * clock / 1e9),
            ("l2", False): round(spec.l2.write_latency_ns * clock / 1e9),
        }

    def start(self, request: Request, done: Callable[[int, int, int], None]) -> None:
        """Move the bytes of *request*; then call `done(latency_cycles, gm_bytes, l2_bytes)`."""
        if request.is_read:
            self._load(request, done)
        else:
            self._store(request, done)
        self._write_back()

    def _load(self, request: Request, done: Callable[[int, int, int], None]) -> None:
        found = self._find(request)
        lines = found.hits + found.misses
        gm_bytes, gm_rows = (
            whole * found.misses // lines for whole in (request.nbytes, request.rows)
        )
        l2_bytes = request.nbytes - gm_bytes
        whole = found.fetched * self._line_bytes if request.is_cached else gm_bytes
        fetched = whole + found.runs * self._run_bytes

        def from_l2(latency: int) -> None:
            rows = request.rows - gm_rows
            port = self._row_port("l2", request.l2_port, l2_bytes, rows)
            copy = Copy(l2_bytes, port, port * request.copies, *_stream(request))
            self._links["l2", True].join(copy, lambda: done(latency, gm_bytes, l2_bytes))

        def from_gm(then: Callable[[], None]) -> None:
            port = self._row_port("gm", request.gm_port, gm_bytes, gm_rows)
            load = port * fetched * request.different // gm_bytes
            self._links["gm", True].join(Copy(gm_bytes, port, load, *_stream(request)), then)

        far, near = self._latency["gm", True], self._latency["l2", True]
        if not gm_bytes:
            from_l2(near)
        elif not l2_bytes:
            from_gm(lambda: done(far, gm_bytes, 0))
        else:
            # The port takes one stream at a time: what was in the L2 follows what was not.
            from_gm(lambda: from_l2(far))

    def _store(self, request: Request, done: Callable[[int, int, int], None]) -> None:
        now, nbytes = int(self._env.now), request.nbytes
        self._l2.store(request.tensor, request.lines, request.different, now)
        copy = Copy(nbytes, request.l2_port, request.l2_port * request.copies, *_stream(request))
        latency = self._latency["l2", False]
        self._links["l2", False].join(copy, lambda: done(latency, 0, nbytes))

    def _write_back(self) -> None:
        """What has to leave the L2 takes the way to the memory; nobody waits for it."""
        nbytes = self._l2.evicted()
        if nbytes:
            link = self._links["gm", False]
            link.join(Copy(nbytes, link.width, link.width, object(), 1), lambda: None)

    def _find(self, request: Request) -> Found:
        """What of it the L2 has; a request that goes past it has each of its lines fetched."""
        lines = request.lines
        if request.is_cached:
            now = int(self._env.now)
            return self._l2.touch(request.tensor, lines, request.different, now)
        if isinstance(lines, slice):
            count, runs = lines.stop - lines.start, 1
        else:
            count, runs = lines.size, int(np.count_nonzero(np.diff(lines) != 1)) + 1
        return Found(0, count, count, runs)

    def _row_port(self, far: str, port: int, nbytes: int, rows: int) -> int:
        """*port*, or slower where it waits for *rows* one after the other."""
        if not rows or not nbytes:
            return port
        cycles = max(1, round(rows * self._row_ns[far] * self._clock_hz / 1e9))
        return max(1, min(port, nbytes * PORT_UNITS // cycles))


def _stream(request: Request) -> tuple[tuple[str, int], int]:
    """What tells copies of other bytes apart, and how many slices of the L2 *request* reads."""
    lines = request.lines
    first = lines.start if isinstance(lines, slice) else int(lines[0])
    return (request.tensor, first), request.different * request.spread


def touched_lines(place: Global, base_bytes: int, line_bytes: int) -> Lines:
    """The lines of its tensor that *place* touches: a run, or the numbers of scattered ones."""
    first = base_bytes + place.offset_bytes
    if place.bursts == 1 or place.stride_bytes - place.burst_bytes < line_bytes:
        end = base_bytes + place.end_bytes
        return slice(first // line_bytes, -(-end // line_bytes))
    starts = first + place.stride_bytes * np.arange(place.bursts)
    lows, highs = starts // line_bytes, (starts + place.burst_bytes - 1) // line_bytes
    runs = lows[:, None] + np.arange(int((highs - lows).max()) + 1)
    return np.unique(runs[runs <= highs[:, None]])
