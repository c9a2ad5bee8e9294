"""What a picture is about: a trace, or a run, which also has an operator and a chip."""

from __future__ import annotations

from typing import Protocol

from npusim.devices.schema import DeviceSpec, Pipe
from npusim.trace import LaneTrace, Trace

__all__ = [
    "Played",
    "Subject",
    "Timed",
    "busiest",
    "busiest_lane",
    "device_of",
    "elapsed_us",
    "slowest_lanes",
    "title_start",
    "trace_of",
]


class Played(Protocol):
    """What pictures need of a run."""

    @property
    def op(self) -> str:
        """The operator's name."""

    @property
    def device(self) -> DeviceSpec:
        """The chip it ran on."""

    @property
    def trace(self) -> Trace | None:
        """When each micro-op ran, if that is known."""


class Timed(Played, Protocol):
    """A run with the time of its launch."""

    @property
    def launch_us(self) -> float:
        """What starting and ending the kernel costs around the cores' own time."""

    @property
    def time_us(self) -> float | None:
        """Launch, the slowest core, completion."""


Subject = Trace | Played


def trace_of(subject: Subject) -> Trace:
    """The trace to draw; raises ValueError if there is none, or nothing in it."""
    trace = subject if isinstance(subject, Trace) else subject.trace
    if trace is None or not trace.cycles:
        raise ValueError(
            "reports: a run must have been timed and have had work to do, but it has no trace; "
            "run it with timing=True on tensors that are not empty"
        )
    return trace


def device_of(subject: Subject) -> DeviceSpec | None:
    """The chip of a run; None for a trace."""
    return None if isinstance(subject, Trace) else subject.device


def slowest_lanes(trace: Trace) -> list[LaneTrace]:
    """The slowest cores of each kind, in the order of their first cores."""
    slowest: dict[str, LaneTrace] = {}
    for lane in sorted(trace.lanes, key=lambda lane: lane.cores[0]):
        known = slowest.setdefault(lane.kind, lane)
        if int(lane.end.max(initial=0)) > int(known.end.max(initial=0)):
            slowest[lane.kind] = lane
    return list(slowest.values())


def elapsed_us(trace: Trace) -> float:
    """How long the slowest core takes, in microseconds."""
    return trace.cycles / trace.clock_hz * 1e6


def busiest(trace: Trace) -> tuple[Pipe, float]:
    """The pipe that is busy longest on the slowest core of its kind, and its share of the time."""
    _, pipe, share = busiest_lane(trace)
    return pipe, share


def busiest_lane(trace: Trace) -> tuple[LaneTrace, Pipe, float]:
    """The same with the core."""
    found = [
        (lane, pipe, counter.busy_cycles / trace.cycles)
        for lane in slowest_lanes(trace)
        for pipe, counter in sorted(lane.counters().items())
    ]
    # Ties go to the first kind and to the pipe whose name comes first, so a title never depends on
    # program order.
    return max(found, key=lambda busy: busy[2])


def title_start(subject: Subject) -> str:
    """Who did it, as a title begins: `npu_quantize on ascend910b2: `, or nothing for a trace."""
    return "" if isinstance(subject, Trace) else f"{subject.op} on {subject.device.name}: "
