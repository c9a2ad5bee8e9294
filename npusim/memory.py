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
    """A way that copies share, *bytes_per_cycle* wide."""

    def __init__(self, env: simpy.Environment, bytes_per_cycle: float) -> None:
        self._env = env
        self._width = round(bytes_per_cycle * PORT_UNITS)
        self._virtual = 0
        self._since = 0
        self._load = 0
        self._waiting: list[tuple[int, int, int, Callable[[], None]]] = []
        self._count = 0
        self._plan_number = 0

    def join(self, nbytes: int, port: int, copies: int, done: Callable[[], None]) -> None:
        """Move *nbytes* through a port of *port* units, *copies* times over; then call *done*."""
        self._advance()
        needs = -(-nbytes * PORT_UNITS * TICKS // port)
        self._count += 1
        heapq.heappush(self._waiting, (self._virtual + needs, self._count, port * copies, done))
        self._load += port * copies
        self._plan()

    def _speed(self) -> int:
        return min(TICKS, self._width * TICKS // self._load)

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
            _, _, load, done = heapq.heappop(self._waiting)
            self._load -= load
            left.append(done)
        self._plan()
        for done in left:
            done()


Lines = slice | NDArray[np.int64]
"""Which lines of a tensor a copy touches: a run of them, or their numbers."""


class L2:
    """Which lines of the tensors lie in the L2.

    Least recently used, told by volume: a line is still there if no more bytes than fit have been
    brought in since it was touched, by that request and all later ones. Requests of one and the
    same cycle do not see each other, whatever their order: cores that ask for the same lines at
    once all pay the way past the L2. On silicon that is slower still, 560 GB/s for 48 cores that
    read the same 6.3 MB (asc-devkit, 05_best_practices, data_copy, same address).
    """

    def __init__(self, spec: DeviceSpec, tensors: list[GlobalTensor], warm: bool) -> None:
        self._line_bytes = spec.l2.line_bytes
        self._capacity = spec.l2.capacity_bytes
        self._volume = 0
        """Bytes brought in before the present cycle."""
        self._pending = 0
        """Bytes brought in by the present cycle."""
        self._recent: list[tuple[str, Lines]] = []
        """What the present cycle touched."""
        self._now = 0
        self._touched: dict[str, NDArray[np.int64]] = {}
        """Tensor -> volume when each line was last touched; far below zero for never."""
        for tensor in tensors:
            count = -(-allocated_bytes(tensor.nbytes) // self._line_bytes)
            if warm:
                first = self._volume
                self._volume += count * self._line_bytes
                self._touched[tensor.name] = np.arange(first, self._volume, self._line_bytes)
            else:
                self._touched[tensor.name] = np.full(count, -(2**62))

    def touch(self, tensor: str, lines: Lines, copies: int, now: int) -> tuple[int, int]:
        """Use *lines* at cycle *now*; returns how many were there, and how many were not."""
        if now != self._now:
            for name, recent in self._recent:
                self._touched[name][recent] = self._volume
            self._recent.clear()
            self._volume += self._pending
            self._pending, self._now = 0, now
        age = self._volume - self._touched[tensor][lines]
        hits = int(np.count_nonzero(age <= self._capacity))
        misses = age.size - hits
        self._recent.append((tensor, lines))
        self._pending += misses * copies * self._line_bytes
        return hits, misses


class Request(NamedTuple):
    """A copy as the memory sees it."""

    is_read: bool
    tensor: str
    lines: Lines
    nbytes: int
    """Bytes as moved."""
    gm_port: int
    """Speed of the core's port past the L2, in units."""
    l2_port: int
    copies: int
    """How many cores do this at once."""


class SharedMemory:
    """Takes requests at the present cycle, and calls back when their last byte has moved."""

    def __init__(
        self, env: simpy.Environment, spec: DeviceSpec, tensors: list[GlobalTensor], warm: bool
    ) -> None:
        self._env = env
        self._l2 = L2(spec, tensors, warm)
        clock = spec.clock_hz
        reads = Link(env, spec.gm.read_bytes_per_s / clock)
        writes = Link(env, spec.gm.write_bytes_per_s / clock)
        self._links = {
            ("gm", True): reads,
            ("gm", False): reads if spec.gm.bus == "shared" else writes,
            ("l2", True): Link(env, spec.l2.read_bytes_per_s / clock),
            ("l2", False): Link(env, spec.l2.write_bytes_per_s / clock),
        }
        self._latency = {
            ("gm", True): round(spec.gm.read_latency_ns * clock / 1e9),
            ("gm", False): round(spec.gm.write_latency_ns * clock / 1e9),
            ("l2", True): round(spec.l2.read_latency_ns * clock / 1e9),
            ("l2", False): round(spec.l2.write_latency_ns * clock / 1e9),
        }

    def start(self, request: Request, done: Callable[[int, int, int], None]) -> None:
        """Move the bytes of *request*; then call `done(latency_cycles, gm_bytes, l2_bytes)`."""
        hits, misses = self._l2.touch(
            request.tensor, request.lines, request.copies, int(self._env.now)
        )
        gm_bytes = request.nbytes * misses // (hits + misses)
        l2_bytes = request.nbytes - gm_bytes
        far = self._latency["gm", request.is_read]
        near = self._latency["l2", request.is_read]
        gm, l2 = self._links["gm", request.is_read], self._links["l2", request.is_read]
        copies = request.copies

        def from_l2() -> None:
            l2.join(l2_bytes, request.l2_port, copies, lambda: done(near, 0, l2_bytes))

        def after_misses() -> None:
            # The port takes one stream at a time: what was in the L2 follows what was not.
            l2.join(l2_bytes, request.l2_port, copies, lambda: done(far, gm_bytes, l2_bytes))

        if not gm_bytes:
            from_l2()
        elif not l2_bytes:
            gm.join(gm_bytes, request.gm_port, copies, lambda: done(far, gm_bytes, 0))
        else:
            gm.join(gm_bytes, request.gm_port, copies, after_misses)


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
