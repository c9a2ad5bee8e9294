"""Memory shared by all cores: takes requests, and calls back when their bytes have moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.timing.memory.l2 import (
    L2,
    SHARE_UNITS,
    WHOLE,
    Found,
    Lines,
    Use,
    line_count,
    run_starts,
)
from npusim.timing.memory.link import PORT_UNITS, Copy, Link, Narrow
from npusim.trace.copies import COUNT_UNITS

if TYPE_CHECKING:
    import simpy
    from simpy.events import EventPriority

__all__ = ["Answer", "Moved", "Request", "SharedMemory"]

LAST = 9
"""Priority of an event after all others of its cycle; SimPy's are 0 and 1."""


class Moved(NamedTuple):
    """Statistics of a request whose bytes have moved."""

    latency: int
    """Cycles from the last byte until the result is available."""
    l2_bytes: int
    """Bytes moved from or to the L2, padding included."""
    l2_hit_bytes: int
    """The part of them that hit, or was stored."""
    l2_written_bytes: int
    """The part of them that was stored."""
    gm_narrow: int
    """Cycles in which the link of global memory was too narrow for the ports that used it."""
    l2_read_narrow: int
    """The same for the read link of the L2."""
    l2_write_narrow: int
    """The same for the write link of the L2, which stores share with lines being filled."""
    turning: int
    """Cycles by which the conversion of its rows was slower than the port."""


Done = Callable[[Moved], None]


class Request(NamedTuple):
    """A copy as the memory sees it."""

    is_read: bool
    tensor: str
    lines: Lines
    nbytes: int
    """Bytes moved, padding included."""
    rows: int
    """Row pieces that are converted to Nz."""
    gm_port: int
    """Speed of the core's port for data from global memory, in PORT_UNITS."""
    l2_port: int
    """The same for data in the L2."""
    copies: int
    """Number of equivalent cores that make this request at once."""
    is_cached: bool = True
    """Whether the L2 caches the bytes."""
    different: int = 1
    """Number of distinct places that the cores request."""
    piece_bytes: int = 0
    """Size of its memory requests: a line, or a shorter burst; 0 for stores."""
    unkept: NDArray[np.int64] | None = None
    """Number of bursts that end in each line that the L2 does not retain though *is_cached*, 0 for
    lines that it retains; None if it retains all."""
    is_aliased: bool = False
    """Whether its bursts are so far apart that they map to few parts of the L2, which slows it
    if other cores request the same lines at once."""

    @property
    def is_slowed_by_others(self) -> bool:
        """Whether a load is affected by other requests for the same lines at once."""
        return self.is_aliased or not self.is_cached

    @property
    def traits(self) -> tuple[int, ...]:
        """Everything that affects it, except which lines it requests, and for how many cores."""
        ports = self.gm_port, self.l2_port, self.piece_bytes
        return self.is_read, self.nbytes, self.rows, *ports, self.is_cached

    @property
    def first_line(self) -> tuple[str, int]:
        """Tensor and first line, which are equal for requests of the same bytes."""
        lines = self.lines
        return self.tensor, lines.start if isinstance(lines, slice) else int(lines[0])


class Answer(NamedTuple):
    """What decides the time of a request, apart from its own traits and the load of the links."""

    found: Found
    shared_port: int | None
    """The speed, in PORT_UNITS, of each request for the same lines past the L2 at once; None where
    that slows nothing."""
    is_aliased: bool
    """Whether other cores request the same lines in few parts of the L2."""
    is_in_step: bool
    """Whether other cores request the same lines at once, which matters to the L2."""

    @property
    def traits(self) -> tuple[int | None, ...]:
        """What decides the times of a load; the rest only affects the load of the links."""
        found = self.found
        return found.hits, found.misses, found.arrives, self.shared_port, self.is_aliased


STORED = Answer(Found(0, 0, 0, 0), None, is_aliased=False, is_in_step=False)
"""All stores get the same answer, whatever their lines."""


class Asker(Protocol):
    """The copy of a pipe of a lane, whose cores may request different bytes."""

    def requests(self) -> Sequence[Request]:
        """The requests of its cores, one per place."""

    def answer(self, answers: Sequence[Answer]) -> None:
        """Receive the answer to each of `requests()`."""

    def begin(self, memory: SharedMemory) -> None:
        """Start moving the bytes, after all requests of this cycle have been answered."""


class SharedMemory:
    """Accepts requests in the current cycle, and calls back when their last byte has moved."""

    def __init__(self, env: simpy.Environment, spec: DeviceSpec, l2: L2) -> None:
        self.env = env
        self._l2 = l2
        clock = spec.clock_hz
        apart_cycles = round(spec.gm.apart_us * clock / 1e6)
        reads = Link(env, spec.gm.read_bytes_per_s / clock, apart_cycles)
        writes = Link(env, spec.gm.write_bytes_per_s / clock)
        self.gm_write_width = writes.width
        """Write bandwidth of global memory when nothing is read, in PORT_UNITS."""
        self.links = {
            ("gm", True): reads,
            ("gm", False): reads if spec.gm.bus == "shared" else writes,
            ("l2", True): Link(env, spec.l2.read_bytes_per_s / clock),
            # Fetched lines pass through it as they arrive, and so do stores. Cores that request the
            # same lines at once wait for the same answers, which keeps them in step.
            ("l2", False): Link(env, spec.l2.write_bytes_per_s / clock, apart_cycles),
        }
        self._clock_hz = clock
        self._run_bytes = spec.gm.run_bytes
        self._row_ns = {"gm": spec.gm.row_ns, "l2": spec.l2.row_ns}
        self._part_row_ns, self._line_bytes = spec.gm.part_row_ns, spec.l2.line_bytes
        self._same_line_ns = spec.l2.same_line_ns
        weight = spec.l2.write_bytes_per_s / spec.gm.read_bytes_per_s
        self.fill_weight = round(weight * PORT_UNITS) if spec.l2.fills == "between" else 0
        """Load of a fetched byte on the link for stores, in 1 / PORT_UNITS of a byte."""
        self.aliased_speed = spec.l2.aliased_speed
        self.latency = {
            ("gm", True): round(spec.gm.read_latency_ns * clock / 1e9),
            ("l2", True): round(spec.l2.read_latency_ns * clock / 1e9),
            ("l2", False): round(spec.l2.write_latency_ns * clock / 1e9),
        }
        self._askers: list[Asker] = []
        """Requests of the current cycle."""
        self.written_bytes = 0
        """Bytes that the L2 has written back to global memory, in whole lines."""

    def ask(self, asker: Asker) -> None:
        """Answer *asker* at the end of this cycle, then let it start."""
        if not self._askers:
            _call_last(self.env, self._serve)
        self._askers.append(asker)

    def _serve(self) -> None:
        """Serve all requests of a cycle together, at its end."""
        askers, self._askers = self._askers, []
        asked = [asker.requests() for asker in askers]
        answers = iter(self._answers([request for requests in asked for request in requests]))
        for asker, requests in zip(askers, asked, strict=True):
            asker.answer([next(answers) for _ in requests])
        for asker in askers:
            asker.begin(self)
        self._write_back()
        for link in self.links.values():
            link.plan()

    def _answers(self, requests: Sequence[Request]) -> list[Answer]:
        """The answer to each of *requests*, all of one cycle."""
        cached = [request for request in requests if request.is_cached or not request.is_read]
        now = int(self.env.now)
        found = iter(self._l2.touch([_use(request) for request in cached], now))
        readers = Counter[tuple[str, int]]()
        minds = self.links["l2", False].most_rested > 0
        if minds or any(request.is_slowed_by_others for request in requests):
            for request in requests:
                if request.is_read:
                    readers[request.first_line] += request.copies // request.different
        answers = []
        for request in requests:
            if not request.is_read:
                next(found)
                answers.append(STORED)
                continue
            lines = next(found) if request.is_cached else self._past(request)
            of_it = readers[request.first_line]
            shared_port = self._shared_port(request, of_it)
            is_aliased = request.is_aliased and of_it > 1
            answers.append(Answer(lines, shared_port, is_aliased, minds and of_it > 1))
        return answers

    def move(self, request: Request, answers: Sequence[tuple[Answer, int]], done: Done) -> None:
        """Move the bytes of *request*; then call `done(moved)`.

        *answers* have the same traits; each comes with the number of cores it is for.
        """
        if request.is_read:
            _Load(self, request, answers, done).begin()
        else:
            self._store(request, sum(cores for _, cores in answers), done)

    def _store(self, request: Request, cores: int, done: Done) -> None:
        nbytes = request.nbytes
        latency = self.latency["l2", False]

        def stored(narrow: Narrow) -> None:
            by_loads = narrow.cycles - narrow.by_stores
            done(Moved(latency, nbytes, nbytes, nbytes, by_loads, 0, narrow.by_stores, 0))

        copy = Copy(nbytes, request.l2_port, request.l2_port * cores, is_store=True)
        self.links["l2", False].join(copy, stored)

    def _write_back(self) -> None:
        """Write evicted bytes to global memory: they use bandwidth, but no pipe waits for them."""
        nbytes = self._l2.evicted()
        if nbytes:
            self.written_bytes += nbytes
            link = self.links["gm", False]
            # On a shared bus, writing takes longer than reading the same number of bytes.
            bytes_read_meanwhile = nbytes * link.width // self.gm_write_width
            link.join(Copy(bytes_read_meanwhile, link.width, link.width), lambda _: None)

    def _past(self, request: Request) -> Found:
        """The reads of a request that bypasses the L2: the bytes of each core, no whole lines."""
        count = line_count(request.lines)
        runs = int(run_starts(request.lines, np.full(count, WHOLE, np.int64)).sum()) // WHOLE
        cost = (request.nbytes + runs * self._run_bytes) * SHARE_UNITS
        read = request.nbytes * COUNT_UNITS
        return Found(0, count * WHOLE, cost, read, self.latency["gm", True])

    def near_port(self, port: int, is_aliased: bool) -> int:
        """The speed at which a core reads from the L2, in PORT_UNITS; *port* is its own speed."""
        return max(1, round(port * self.aliased_speed)) if is_aliased else port

    def is_part(self, rows: int, nbytes: int) -> bool:
        """Whether *rows* of *nbytes* in total fill at most half of a line each."""
        return 2 * nbytes <= rows * self._line_bytes

    def row_cycles(self, far_rows: int, near_rows: int, *, in_part: bool) -> int:
        """Least cycles for rows from global memory and the L2: the round trips of their requests,
        divided by those that a core may have in flight; *in_part* if rows from global memory
        use at most half of their lines.
        """
        far_ns = self._part_row_ns if in_part else self._row_ns["gm"]
        waits_ns = far_rows * far_ns + near_rows * self._row_ns["l2"]
        return round(waits_ns * self._clock_hz / 1e9)

    def _shared_port(self, request: Request, readers: int) -> int | None:
        """The speed, in PORT_UNITS, of each of *readers* that request the same lines past the L2 at
        once, which are answered one after the other; None where that slows nothing. The L2 merges
        requests for lines that it retains.
        """
        if request.is_cached or readers <= 1 or not self._same_line_ns:
            return None
        cycles = readers * self._same_line_ns * self._clock_hz / 1e9
        return max(1, round(request.piece_bytes * PORT_UNITS / cycles))

    def fill_load(self, port: int, read: int, nbytes: int) -> int:
        """Load of fetched lines on the link for stores, in PORT_UNITS.

        *nbytes* arrive at *port* in all, of lines of *read* / COUNT_UNITS bytes.
        """
        return port * read * self.fill_weight // (nbytes * COUNT_UNITS * PORT_UNITS)


class _Load:
    """A load in progress, partly from global memory and partly from the L2.

    A core's port takes one after the other: with far bytes at speed f and near ones at speed n it
    needs far / f + near / n, or as long as converting the rows takes, if that is longer. Both parts
    are in progress all that time, mixed as their lines are, so that a link that is too narrow for
    one part delays the load no more than necessary.
    """

    __slots__ = (
        *("_answers", "_done", "_far_bytes", "_found", "_is_in_step", "_is_queued", "_latest"),
        "_memory",
        *("_request", "_since", "_under_way", "_is_turned"),
        *("gm_narrow", "l2_read_narrow", "l2_write_narrow", "turning"),
    )

    def __init__(
        self,
        memory: SharedMemory,
        request: Request,
        answers: Sequence[tuple[Answer, int]],
        done: Done,
    ) -> None:
        """*answers* have the same traits; each comes with its number of cores."""
        self._memory, self._request, self._done = memory, request, done
        self._answers = answers
        self._found = answers[0][0].found
        lines = self._found.hits + self._found.misses
        self._far_bytes = request.nbytes * self._found.misses // lines
        self._under_way = 0
        """Links that have not finished yet."""
        self._latest = -1, 0, False, 0
        """When the latest link finished, for how many cycles it was too narrow, whether that is the
        link of global memory, and how many of these cycles were due to stores, negated."""
        self._is_queued = False
        """Whether other requests for the same lines slow it."""
        self._is_in_step = any(answer.is_in_step for answer, _ in answers)
        """Whether some of its cores wait together with others."""
        self._is_turned = False
        """Whether converting its rows takes longer than moving their bytes through the port."""
        self.gm_narrow = self.l2_read_narrow = self.l2_write_narrow = self.turning = 0

    def begin(self) -> None:
        """Request all bytes."""
        memory, request, found = self._memory, self._request, self._found
        _, shared_port, is_aliased, _ = self._answers[0][0]
        if self._is_in_step:
            memory.links["l2", False].begin_in_step()
        nbytes, far_bytes = request.nbytes, self._far_bytes
        near_bytes = nbytes - far_bytes
        self._since = int(memory.env.now)
        far_rows = request.rows * found.misses // (found.hits + found.misses)
        near_rows = request.rows - far_rows
        in_part = False
        if request.is_cached:
            # Rows in one line wait for it once.
            far_lines = ceil_div(found.misses, WHOLE)
            in_part = far_rows <= far_lines and memory.is_part(far_rows, far_bytes)
            far_rows = min(far_rows, far_lines)
        far_port, near_port = request.gm_port, memory.near_port(request.l2_port, is_aliased)
        # Cycles as a fraction of integers: far / far_port + near / near_port, or the rows'.
        took = (far_bytes * near_port + near_bytes * far_port) * PORT_UNITS, far_port * near_port
        row_cycles = memory.row_cycles(far_rows, near_rows, in_part=in_part)
        self._is_turned = row_cycles * took[1] > took[0]
        if self._is_turned:
            took = row_cycles, 1
        if far_bytes:
            port = _speed(far_bytes, took)
            if shared_port is not None:
                self._is_queued = shared_port < port
                port = min(port, shared_port)
            load, units = 0, far_bytes * SHARE_UNITS
            for each, cores in self._answers:
                load += port * each.found.fetched // units * cores
            self._join("gm", True, Copy(far_bytes, port, load), is_far=True)
            if request.is_cached:
                # Fetched lines are stored in the L2 together with the cores' stores. They load that
                # link as much as they load global memory, and wait there in the same way.
                load = 0
                for each, cores in self._answers:
                    load += memory.fill_load(port, each.found.read, far_bytes) * cores
                self._join("l2", False, Copy(far_bytes, port, load), is_far=True)
        if request.is_cached:
            # All bytes for the core pass through the L2.
            port = _speed(nbytes, took)
            cores = sum(cores for _, cores in self._answers)
            self._join("l2", True, Copy(nbytes, port, port * cores), is_far=False)

    def _join(self, memory: str, is_read: bool, copy: Copy, is_far: bool) -> None:
        self._under_way += 1
        self._memory.links[memory, is_read].join(copy, lambda narrow: self._arrived(narrow, is_far))

    def _arrived(self, narrow: Narrow, is_far: bool) -> None:
        """Record that all bytes passed one of the links, which was too narrow for some cycles."""
        now = int(self._memory.env.now)
        # The load waited for the latest link; of several that end together, for the narrowest, then
        # global memory, then the one with least stores.
        self._latest = max(self._latest, (now, narrow.cycles, is_far, -narrow.by_stores))
        self._under_way -= 1
        if self._under_way:
            return
        if self._is_in_step:
            self._memory.links["l2", False].end_in_step()
        _, cycles, is_far, not_for_stores = self._latest
        if is_far:
            self.gm_narrow, self.l2_write_narrow = cycles + not_for_stores, -not_for_stores
        else:
            self.l2_read_narrow = cycles
        if self._is_queued:
            # Waiting for other requests to be answered counts as waiting for the memory.
            self.gm_narrow = now - self._since
        elif self._is_turned:
            self.turning = now - self._since - cycles
        request = self._request
        latency = self._memory.latency["l2", True]
        if self._far_bytes:
            latency = max(latency, self._found.arrives)
        through = request.nbytes if request.is_cached else 0
        hit = request.nbytes - self._far_bytes
        held_up = self.gm_narrow, self.l2_read_narrow, self.l2_write_narrow, self.turning
        self._done(Moved(latency, through, hit, 0, *held_up))


def _speed(nbytes: int, took: tuple[int, int]) -> int:
    """The speed at which *nbytes* take a fraction of cycles, in PORT_UNITS."""
    cycles, parts = took
    return ceil_div(nbytes * PORT_UNITS * parts, cycles)


def _call_last(env: simpy.Environment, action: Callable[[], None]) -> None:
    """Call *action* after all other events of this cycle."""
    event = env.event()
    event._ok, event._value = True, None
    event.callbacks.append(lambda _: action())
    env.schedule(event, priority=cast("EventPriority", LAST))


def _use(request: Request) -> Use:
    return Use(
        request.is_read,
        request.tensor,
        request.lines,
        request.copies,
        request.different,
        request.unkept,
    )
