"""The subject of a picture: a trace, or a run, which also has an operator and a chip."""

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
    """The properties of a run that pictures need."""

    @property
    def op(self) -> str:
        """The operator's name."""

    @property
    def template(self) -> str | None:
        """The template that ran, if the operator has several."""

    @property
    def device(self) -> DeviceSpec:
        """The chip it ran on."""

    @property
    def trace(self) -> Trace | None:
        """The times of all micro-ops, if the run was timed."""

    @property
    def launch_us(self) -> float:
        """The launch and completion time of the kernels, outside the time of the cores."""

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The kernels that the call launches, the one of the trace last."""

    @property
    def time_us(self) -> float | None:
        """Launch, the slowest core, completion; of all kernels."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The times of the same programs on chips slightly faster in what may bound them."""


Subject = Trace | Timed


def remembered(function: Callable[[Of], Result]) -> Callable[[Of], Result]:
    """*function* of a trace or a run, computed once even if it is called several times.

    The result is cached for as long as the argument lives, and must not be modified.
    """
    known: WeakKeyDictionary[Of, Result] = WeakKeyDictionary()

    @wraps(function)
    def found(of: Of) -> Result:
        if of not in known:
            known[of] = function(of)
        return known[of]

    return found


def trace_of(subject: Subject) -> Trace:
    """The trace to draw; raises ValueError if there is none, or if it is empty."""
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
    """Launch and completion of the kernel of the trace, outside the core time; 0 for a trace."""
    return 0.0 if isinstance(subject, Trace) else subject.launches[-1].launch_us


def earlier_us(subject: Subject) -> float:
    """The time of the kernels that a call launches before that of the trace."""
    if isinstance(subject, Trace):
        return 0.0
    return sum(launch.time_us or 0.0 for launch in subject.launches[:-1])


def longest_us(runs: Sequence[Timed]) -> float:
    """The time of the slowest core of all *runs*, where an axis for all of them ends."""
    return max(elapsed_us(trace_of(run)) for run in runs)


def busiest(trace: Trace) -> tuple[Pipe, float]:
    """The busiest pipe on the slowest core of its kind, and its share of the time."""
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
    """The operator, with the template in brackets: `npu_quant_matmul (tbe_opt)`."""
    return run.op if run.template is None else f"{run.op} ({run.template})"


def named(run: Timed) -> str:
    """The operator and the chip: `npu_quantize on ascend910b2`."""
    return f"{kernel_named(run)} on {run.device.name}"


def title_start(subject: Subject) -> str:
    """The same as the start of a title: `npu_quantize on ascend910b2: `; empty for a trace."""
    return "" if isinstance(subject, Trace) else f"{named(subject)}: "
