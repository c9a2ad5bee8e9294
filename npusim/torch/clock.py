"""Simulated time: one clock for each process, advanced by the kernels of the card.

The host takes no time by default. If :attr:`Clock.launch_us` is set, each launch takes that much
host time: the host then has a separate clock, and the card idles until the host has launched the
next kernel. When the host waits for the card, for example to read a scalar, it continues once the
card has finished all its work.

Operators of the card take :attr:`npusim.Run.time_us`, one after the other. Operations of torch for
which npusim has no kernel run on the host in zero time. Those that a card would run as a kernel are
counted by name, each as one kernel, although a card may launch several. Every sum of times is
reported together with what is missing from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from npusim.accuracy import Accuracy, Kind, accuracy_of
from npusim.accuracy.kernels import SHORT_US
from npusim.data.text import counted, coverage
from npusim.run.result import Result

__all__ = ["Clock", "Event", "Keeper", "clock", "launched_by"]

MOST_KINDS = 4
"""The number of kinds of kernel whose accuracy a summary lists one by one."""


class Event(NamedTuple):
    """A kernel on the card, or an operation that runs on the host and is not simulated."""

    name: str
    start_us: float
    time_us: float
    """0 if it is not simulated."""
    launch_us: float = 0.0
    """The part of the time that launching and completing the kernel takes."""
    run: Result | None = None
    """The kernel's run; None if it is not simulated."""
    graph: str | None = None
    """The compiled graph that it was part of."""
    operator: str = ""
    """The operation of torch that launched it, by its name in torch's dispatcher."""
    module: str = ""
    """The torch module whose forward launched it, if a recording tracks modules; else empty."""
    stream: int = 0
    """The stream that it was launched on."""
    is_kernel: bool = True
    """Whether a card would run it as a kernel."""
    communicates: str = ""
    """For a collective or a message: type and shape of the data that the cards exchange."""

    @property
    def is_simulated(self) -> bool:
        return self.run is not None or bool(self.communicates)


class Keeper(Protocol):
    """Receives events as they happen, for example a list."""

    def append(self, event: Event, /) -> object:
        """Take *event*."""


@dataclass(eq=False)
class Clock:
    """The current simulated time, and counts of the work done so far.

    Events are stored only while a recording is active, so a long script does not use more and more
    memory.
    """

    now_us: float = 0.0
    launch_us: float = 0.0
    """The host's time for a launch; 0 for a host that is always ahead of the card."""
    host_us: float = 0.0
    """The time of the host's clock: when it has finished its launches so far."""
    launches: int = 0
    """Kernels launched; a compiled graph counts once."""
    kernels: int = 0
    """Kernels run."""
    not_timed: Counter[str] = field(default_factory=Counter)
    """Operation that a card would run as a kernel -> how many times it ran on the host."""
    _times_us: dict[tuple[Kind, bool], float] = field(default_factory=dict)
    """Kind of kernel, and whether its kernels are short -> their total time, launches included."""
    operator: str = ""
    """The operation of torch that is running; empty outside of operations."""
    module: str = ""
    """The torch module whose forward is running, according to the recording."""
    stream: int = 0
    """The number of the current stream."""
    _recordings: list[Keeper] = field(default_factory=list)
    _graph: str | None = None
    _paid_us: float | None = None
    is_paused: bool = False
    """Whether work is ignored, for example while a graph is captured."""

    @property
    def is_in_graph(self) -> bool:
        """Whether a compiled graph is running."""
        return self._graph is not None

    @property
    def is_recorded(self) -> bool:
        """Whether a recording is active."""
        return bool(self._recordings)

    def kernel(self, run: Result, name: str | None = None) -> None:
        """Advance by the time of *run*, kernel by kernel; *name* is the name of its main kernel.

        A graph pays for one launch: a later kernel adds launch time only if its launch costs more
        than what the graph has paid so far, and then only the difference.
        """
        if self.is_paused:
            return
        for earlier in run.earlier:
            self.kernel(earlier)
        launch_us = own_us = 0.0
        if launches := run.launches:
            launch_us, own_us = launches[-1].launch_us, launches[-1].time_us or 0.0
        time_us = own_us
        if self._paid_us is not None:
            owed_us = max(0.0, launch_us - self._paid_us)
            time_us, launch_us = time_us - launch_us + owed_us, owed_us
            self._paid_us += owed_us
        if run.plan is not None:
            if self._graph is None:
                self._launch()
            self.kernels += 1
            self.launches += self._graph is None
            if run.kind is not None:
                self._trust(run.kind, own_us)
        start_us = self.now_us
        self.now_us += time_us
        if self._recordings:
            own, graph = name or run.op, self._graph
            operator, module = self.operator or run.op, self.module
            event = Event(
                own, start_us, time_us, launch_us, run, graph, operator, module, self.stream
            )
            for kept in self._recordings:
                kept.append(event)

    def communicate(self, name: str, start_us: float, time_us: float, what: str) -> None:
        """Record a collective or a message. Whoever needs its result waits until its end."""
        if self.is_paused:
            return
        self.kernels += 1
        self.launches += self._graph is None
        event = Event(
            *(name, start_us, time_us, 0.0, None, self._graph, self.operator or name),
            *(self.module, self.stream, True, what or "nothing"),
        )
        for kept in self._recordings:
            kept.append(event)

    def wait_until(self, end_us: float) -> None:
        """Launch nothing before *end_us*."""
        if not self.is_paused:
            self.now_us = max(self.now_us, end_us)

    def _launch(self) -> None:
        """Advance the host by one launch; the card cannot start the kernel before that."""
        if self.launch_us:
            self.host_us += self.launch_us
            self.now_us = max(self.now_us, self.host_us)

    def wait(self) -> None:
        """Let the host wait until the card has finished all its work."""
        self.host_us = max(self.host_us, self.now_us)

    @contextmanager
    def apart(self) -> Iterator[list[Event]]:
        """Collect the events of kernels that are part of another one. The clock does not move."""
        state, events = {**vars(self)}, list[Event]()
        self._recordings, self.not_timed = [events], Counter()
        self._times_us, self._graph, self._paid_us, self.launch_us = {}, None, None, 0.0
        try:
            yield events
        finally:
            vars(self).update(state)

    def host(self, name: str, is_kernel: bool = True) -> None:
        """Record an operation that runs on the host, whose time is not simulated.

        *is_kernel*: a card would run it as a kernel, so the host launches it.
        """
        if self.is_paused:
            return
        if is_kernel:
            self.not_timed[name] += 1
            if self._graph is None:
                self._launch()
        event = Event(
            *(name, self.now_us, 0.0, 0.0, None, self._graph),
            *(name, self.module, self.stream, is_kernel),
        )
        for kept in self._recordings:
            kept.append(event)

    @contextmanager
    def graph(self, name: str) -> Iterator[None]:
        """Count the work inside as one launch; an inner graph is part of the outer one."""
        if self._graph is not None:
            yield
            return
        before = self.kernels
        if not self.is_paused:
            self._launch()
        self._graph, self._paid_us = name, 0.0
        try:
            yield
        finally:
            self.launches += self.kernels > before
            self._graph = self._paid_us = None

    def summary(self) -> str:
        """One line: simulated time, number of launches, and the share of the kernels timed."""
        launches = counted(self.launches, "launch", "launches")
        covered = coverage(self.kernels, self.not_timed)
        return f"{self.now_us:.2f} us simulated in {launches}; {covered}"

    def _trust(self, kind: Kind, time_us: float) -> None:
        key = kind, time_us < SHORT_US
        self._times_us[key] = self._times_us.get(key, 0.0) + time_us

    def accuracy(self) -> list[str]:
        """The expected error of the times: one line for each kind of kernel that took most time.

        Kernels of a kind that take 10 us or more are counted separately from shorter ones. If there
        are more than MOST_KINDS kinds, a last line gives the time of the others, and the share of
        all time that is in kinds with measured kernels.
        """
        ranked = sorted(self._times_us.items(), key=lambda item: (-item[1], item[0]))
        known = {key: _known(*key) for key in self._times_us}
        lines = [f"{time_us:.2f} us {key[0]}: {known[key]}" for key, time_us in ranked[:MOST_KINDS]]
        others = ranked[MOST_KINDS:]
        if others:
            total_us = sum(self._times_us.values())
            measured_us = sum(time_us for key, time_us in ranked if known[key].rows)
            kinds = counted(len(others), "more kind of kernel", "more kinds of kernel")
            lines.append(
                f"{sum(time_us for _, time_us in others):.2f} us {kinds}; validated: "
                f"{100 * measured_us / total_us:.0f} % of the time is in kinds with measured "
                "kernels"
            )
        return lines

    def record(self) -> list[Event]:
        """Record events: they are appended to the list until it is passed to :meth:`stop`."""
        kept: list[Event] = []
        self.tell(kept)
        return kept

    def tell(self, keeper: Keeper) -> None:
        """Append events to *keeper* as they happen, until :meth:`stop`."""
        self._recordings.append(keeper)

    def stop(self, kept: Keeper) -> None:
        """Append no more events to *kept*."""
        self._recordings = [other for other in self._recordings if other is not kept]


clock = Clock()
"""The clock of this process."""


def launched_by(operator: str, call: Callable[..., object]) -> Callable[..., object]:
    """Wrap *call*: its kernels are attributed to torch's *operator*, even if it calls others."""

    def run(*args: object, **kwargs: object) -> object:
        outer = clock.operator
        clock.operator = outer or operator
        try:
            return call(*args, **kwargs)
        finally:
            clock.operator = outer

    return run


def _known(kind: Kind, is_short: bool) -> Accuracy:
    """The accuracy of kernels of *kind*: of those shorter than SHORT_US, or of the others."""
    return accuracy_of(kind, 0.0 if is_short else SHORT_US)
