"""Simulated time: one clock a process, which kernels of the card move.

The host takes no time, or :attr:`Clock.launch_us` for each launch: then it has a clock of its own,
and the card stands still where the host has not launched the next kernel yet. A host that waits for
the card, as for a number in a tensor, goes on when the card has done all.

Operators of the card take the time of :attr:`npusim.Run.time_us`, one after the other. Operations
of torch for which npusim has no kernel run on the host in no time. Those that a card would run as a
kernel are counted by name, each as one, though a card may launch several: no sum of times is given
without what is missing from it.
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
"""Of so many kinds of kernel a summary says how far to trust their times."""


class Event(NamedTuple):
    """A kernel on the card, or a host operation that is not simulated."""

    name: str
    start_us: float
    time_us: float
    """0 for what is not simulated."""
    launch_us: float = 0.0
    """How much of it is the cost of starting and ending the kernel."""
    run: Result | None = None
    """The kernel's run; None for what is not simulated."""
    graph: str | None = None
    """The compiled graph that it was part of."""
    operator: str = ""
    """The operation of torch that launched it, as torch's dispatcher calls it."""
    module: str = ""
    """The module of torch in whose forward it was, while a recording says so; else nothing."""
    stream: int = 0
    """The stream that it was launched on."""
    is_kernel: bool = True
    """Whether a card would run it as a kernel."""
    communicates: str = ""
    """What cards exchange, if that is what it does: type and shape."""

    @property
    def is_simulated(self) -> bool:
        return self.run is not None or bool(self.communicates)


class Keeper(Protocol):
    """Whoever is given events as they happen, such as a list."""

    def append(self, event: Event, /) -> object:
        """Take *event*."""


@dataclass(eq=False)
class Clock:
    """What the card has done so far, and when.

    Events are stored only while somebody records, so that a long script does not grow.
    """

    now_us: float = 0.0
    launch_us: float = 0.0
    """The host's time for a launch; 0 of a host that is always ahead of the card."""
    host_us: float = 0.0
    """When the host will have launched all that it has launched so far."""
    launches: int = 0
    """Kernels launched; a compiled graph counts once."""
    kernels: int = 0
    """Kernels run."""
    not_timed: Counter[str] = field(default_factory=Counter)
    """Operation that a card would run as a kernel -> how often it ran on the host."""
    _times_us: dict[tuple[Kind, bool], float] = field(default_factory=dict)
    """Kind of kernel, and whether its kernels are short -> the time of all, launches included."""
    operator: str = ""
    """The operation of torch that is at work; nothing outside all."""
    module: str = ""
    """The module of torch that is at work, as the recording says."""
    stream: int = 0
    """The number of the current stream."""
    _recordings: list[Keeper] = field(default_factory=list)
    _graph: str | None = None
    _paid_us: float | None = None
    is_paused: bool = False
    """Whether what runs counts for nothing, as while a graph is captured."""

    @property
    def is_in_graph(self) -> bool:
        """Whether a compiled graph is running."""
        return self._graph is not None

    @property
    def is_recorded(self) -> bool:
        """Whether somebody listens to events."""
        return bool(self._recordings)

    def kernel(self, run: Result, name: str | None = None) -> None:
        """Move on by the time of *run*, kernel by kernel; *name* is that of the run's own kernel.

        In a graph the launch is paid once: a later kernel pays only what its own costs more.
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
        """A collective or a message; who needs its result waits until it has ended."""
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
        """Nothing is launched before *end_us*."""
        if not self.is_paused:
            self.now_us = max(self.now_us, end_us)

    def _launch(self) -> None:
        """The host launches something, before which the card cannot begin it."""
        if self.launch_us:
            self.host_us += self.launch_us
            self.now_us = max(self.now_us, self.host_us)

    def wait(self) -> None:
        """The host waits until the card has done all."""
        self.host_us = max(self.host_us, self.now_us)

    @contextmanager
    def apart(self) -> Iterator[list[Event]]:
        """Kernels that are part of another one: the list has their events, and no time passes."""
        state, events = {**vars(self)}, list[Event]()
        self._recordings, self.not_timed = [events], Counter()
        self._times_us, self._graph, self._paid_us, self.launch_us = {}, None, None, 0.0
        try:
            yield events
        finally:
            vars(self).update(state)

    def host(self, name: str, is_kernel: bool = True) -> None:
        """A host operation, whose own time is not simulated; *is_kernel* says of a card's, which is
        launched.
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
        """Run what is inside as one launch; a graph within a graph belongs to the outer one."""
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
        """What has passed, and how much of it is timed, in one line."""
        launches = counted(self.launches, "launch", "launches")
        covered = coverage(self.kernels, self.not_timed)
        return f"{self.now_us:.2f} us simulated in {launches}; {covered}"

    def _trust(self, kind: Kind, time_us: float) -> None:
        key = kind, time_us < SHORT_US
        self._times_us[key] = self._times_us.get(key, 0.0) + time_us

    def accuracy(self) -> list[str]:
        """How far to trust the times: a line for each of the kinds of kernel that took most time.

        The kernels of a kind that take 10 us and more are counted apart from shorter ones. Where
        there are more kinds than MOST_KINDS, a last line sums up the others, and says what share
        of the time is in kinds of which some kernel was measured.
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
        """Start to keep events; they appear in the list until it is given to :meth:`stop`."""
        kept: list[Event] = []
        self.tell(kept)
        return kept

    def tell(self, keeper: Keeper) -> None:
        """Give events to *keeper* as they happen, until :meth:`stop`."""
        self._recordings.append(keeper)

    def stop(self, kept: Keeper) -> None:
        """Give no more events to *kept*."""
        self._recordings = [other for other in self._recordings if other is not kept]


clock = Clock()
"""The clock of this process."""


def launched_by(operator: str, call: Callable[..., object]) -> Callable[..., object]:
    """*call*, whose kernels are those of *operator* of torch, also where it calls others."""

    def run(*args: object, **kwargs: object) -> object:
        outer = clock.operator
        clock.operator = outer or operator
        try:
            return call(*args, **kwargs)
        finally:
            clock.operator = outer

    return run


def _known(kind: Kind, is_short: bool) -> Accuracy:
    """What is known of kernels of *kind*: of those below SHORT_US, or of those above."""
    return accuracy_of(kind, 0.0 if is_short else SHORT_US)
