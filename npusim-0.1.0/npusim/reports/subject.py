"""What a picture is about: a trace, or a run, which also has an operator and a chip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

from npusim.devices.schema import DeviceSpec, Pipe
from npusim.trace import LaneTrace, Launch, Trace, Trial

__all__ = [
    "Subject",
    "Timed",
    "busiest",
    "busiest_lane",
    "device_of",
    "earlier_us",
    "elapsed_us",
    "kernel_named",
    "launch_us",
    "longest_us",
    "named",
    "remembered",
    "slowest_lanes",
    "title_start",
    "trace_of",
]


Of = TypeVar("Of")
Result = TypeVar("Result")


class Timed(Protocol):
    """What pictures need of a run."""

    @property
    def op(self) -> str:
        """The operator's name."""

    @property
    def template(self) -> str | None:
        """Which of the operator's kernels ran, where it has several."""

    @property
    def device(self) -> DeviceSpec:
        """The chip it ran on."""

    @property
    def trace(self) -> Trace | None:
        """When each micro-op ran, if that is known."""

    @property
    def launch_us(self) -> float:
        """What starting and ending the kernels costs around the cores' own time."""

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The kernels that the call launches, the one of the trace last."""

    @property
    def time_us(self) -> float | None:
        """Launch, the slowest core, completion; of all kernels."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The same programs on chips that are a little faster in what may bound them."""


Subject = Trace | Timed


def remembered(function: Callable[[Of], Result]) -> Callable[[Of], Result]:
    """*function* of a trace or a run, which is asked several times, but works it out once.

    What it returns is cached for as long as its argument lives, and must not be written to.
    """
    known: WeakKeyDictionary[Of, Result] = WeakKeyDictionary()

    @wraps(function)
    def found(of: Of) -> Result:
        if of not in known:
            known[of] = function(of)
        return known[of]

    return found


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
    return list(trace.slowest_of_kinds)


def elapsed_us(trace: Trace) -> float:
    """How long the slowest core takes, in microseconds."""
    return trace.cycles / trace.clock_hz * 1e6


def launch_us(subject: Subject) -> float:
    """What lies around the time of the cores, of the kernel of the trace; nothing for a trace."""
    return 0.0 if isinstance(subject, Trace) else subject.launches[-1].launch_us


def earlier_us(subject: Subject) -> float:
    """How long the kernels take that a call launches before that of the trace."""
    if isinstance(subject, Trace):
        return 0.0
    return sum(launch.time_us or 0.0 for launch in subject.launches[:-1])


def longest_us(runs: Sequence[Timed]) -> float:
    """How long the slowest core of all *runs* takes: where an axis ends that is to hold them."""
    return max(elapsed_us(trace_of(run)) for run in runs)


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


def kernel_named(run: Timed) -> str:
    """The operator, and in brackets which of its kernels: `npu_quant_matmul (tbe_opt)`."""
    return run.op if run.template is None else f"{run.op} ({run.template})"


def named(run: Timed) -> str:
    """Who did it: `npu_quantize on ascend910b2`."""
    return f"{kernel_named(run)} on {run.device.name}"


def title_start(subject: Subject) -> str:
    """Who did it, as a title begins: `npu_quantize on ascend910b2: `, or nothing for a trace."""
    return "" if isinstance(subject, Trace) else f"{named(subject)}: "
