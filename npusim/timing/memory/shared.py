"""Memory shared by all cores: takes requests, and calls back when their bytes have moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import simpy
from simpy.events import EventPriority

from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.timing.memory.l2 import L2, SHARE_UNITS, Found, Lines, Use, line_count, run_starts
from npusim.timing.memory.link import PORT_UNITS, Copy, Link

__all__ = ["Request", "SharedMemory"]

LAST = 9
"""Priority of an event after all others of its cycle; those of SimPy are 0 and 1."""
Done = Callable[[int, int, int], None]
"""Called with `(latency_cycles, gm_bytes, l2_bytes)`."""


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
    """Speed of the core's port for bytes of global memory, in PORT_UNITS."""
    l2_port: int
    """The same for bytes in the L2."""
    copies: int
    """How many equivalent cores make this request at once."""
    is_cached: bool = True
    """Whether the L2 keeps the bytes."""
    different: int = 1
    """How many of the cores ask for bytes of their own."""
    spread: int = 1
    """How many slices of the L2 the bytes are in that one core requests at a time."""


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
        self._run_bytes = spec.gm.run_bytes
        self._row_ns = {"gm": spec.gm.row_ns, "l2": spec.l2.row_ns}
        self._latency = {
            ("gm", True): round(spec.gm.read_latency_ns * clock / 1e9),
            ("l2", True): round(spec.l2.read_latency_ns * clock / 1e9),
            ("l2", False): round(spec.l2.write_latency_ns * clock / 1e9),
        }
        self._asked: list[tuple[Request, Done]] = []
        """The requests of the present cycle."""

    def start(self, request: Request, done: Done) -> None:
        """Move the bytes of *request*; then call `done(latency_cycles, gm_bytes, l2_bytes)`."""
        if not self._asked:
            _EndOfCycle(self._env, self._serve)
        self._asked.append((request, done))

    def _serve(self) -> None:
        """Serve all requests of a cycle together, at its end."""
        asked, self._asked = self._asked, []
        cached = [request for request, _ in asked if request.is_cached or not request.is_read]
        found = iter(self._l2.touch([_use(request) for request in cached]))
        for request, done in asked:
            if not request.is_read:
                next(found)
                self._store(request, done)
            elif request.is_cached:
                self._load(request, next(found), done)
            else:
                self._load(request, self._past(request), done)
        self._write_back()

    def _load(self, request: Request, found: Found, done: Done) -> None:
        lines = found.hits + found.misses
        gm_bytes, gm_rows = (
            whole * found.misses // lines for whole in (request.nbytes, request.rows)
        )
        l2_bytes, l2_rows = request.nbytes - gm_bytes, request.rows - gm_rows

        def from_l2(nbytes: int, rows: int, then: Callable[[], None]) -> None:
            port = self._row_port("l2", request.l2_port, nbytes, rows)
            copy = Copy(nbytes, port, port * request.copies, *_stream(request))
            self._links["l2", True].join(copy, then)

        def from_gm(then: Callable[[], None]) -> None:
            # Lines from global memory pass through their slice of the L2 at the same time.
            both = _Last(then, 2) if request.is_cached else then
            port = self._row_port("gm", request.gm_port, gm_bytes, gm_rows)
            load = port * found.fetched // (gm_bytes * SHARE_UNITS) * request.copies
            self._links["gm", True].join(Copy(gm_bytes, port, load, None), both)
            if request.is_cached:
                from_l2(gm_bytes, gm_rows, both)

        far, near = self._latency["gm", True], self._latency["l2", True]
        if not gm_bytes:
            from_l2(l2_bytes, l2_rows, lambda: done(near, 0, l2_bytes))
        elif not l2_bytes:
            from_gm(lambda: done(far, gm_bytes, 0))
        else:
            # The port takes one stream at a time: what was in the L2 follows what was not.
            rest = lambda: done(far, gm_bytes, l2_bytes)  # noqa: E731
            from_gm(lambda: from_l2(l2_bytes, l2_rows, rest))

    def _store(self, request: Request, done: Done) -> None:
        nbytes = request.nbytes
        copy = Copy(nbytes, request.l2_port, request.l2_port * request.copies, None)
        latency = self._latency["l2", False]
        self._links["l2", False].join(copy, lambda: done(latency, 0, nbytes))

    def _write_back(self) -> None:
        """Write evicted bytes to global memory: they take bandwidth, but no pipe waits for them."""
        nbytes = self._l2.evicted()
        if nbytes:
            link = self._links["gm", False]
            link.join(Copy(nbytes, link.width, link.width, None), lambda: None)

    def _past(self, request: Request) -> Found:
        """What a request reads that bypasses the L2: the bytes of each core, no whole lines."""
        count = line_count(request.lines)
        runs = int(np.count_nonzero(run_starts(request.lines, np.ones(count, np.bool_))))
        return Found(0, count, (request.nbytes + runs * self._run_bytes) * SHARE_UNITS)

    def _row_port(self, far: str, port: int, nbytes: int, rows: int) -> int:
        """*port*, or slower where it waits for *rows* one after the other."""
        if not rows or not nbytes:
            return port
        cycles = max(1, round(rows * self._row_ns[far] * self._clock_hz / 1e9))
        return min(port, ceil_div(nbytes * PORT_UNITS, cycles))


class _Last:
    """Calls *then* when it has been called *times* times itself."""

    def __init__(self, then: Callable[[], None], times: int) -> None:
        self._then, self._left = then, times

    def __call__(self) -> None:
        self._left -= 1
        if not self._left:
            self._then()


class _EndOfCycle(simpy.Event):
    """Calls *action* after all other events of this cycle."""

    def __init__(self, env: simpy.Environment, action: Callable[[], None]) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        self.callbacks.append(lambda _: action())
        env.schedule(self, priority=EventPriority(LAST))


def _use(request: Request) -> Use:
    return Use(request.is_read, request.tensor, request.lines, request.copies, request.different)


def _stream(request: Request) -> tuple[tuple[str, int, int], int]:
    """The stream of *request*, equal for the same bytes, and how many slices of the L2 it reads."""
    lines = request.lines
    first = lines.start if isinstance(lines, slice) else int(lines[0])
    different = request.different * request.spread
    return (request.tensor, first, different), different
