"""What a picture is about: a trace, or a run, which knows its operator and its chip too."""

from __future__ import annotations

from typing import Protocol

from npusim.spec import DeviceSpec, Pipe
from npusim.trace import Trace

__all__ = ["Played", "Subject", "busiest", "elapsed_us", "title_start", "trace_of"]


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


def elapsed_us(trace: Trace) -> float:
    """How long the slowest core takes, in microseconds."""
    return trace.cycles / trace.clock_hz * 1e6


def busiest(trace: Trace) -> tuple[Pipe, float]:
    """The pipe that is busy longest on the slowest core, and its share of the time."""
    counters = trace.slowest.counters()
    # Ties go to the pipe whose name comes first, so a title never depends on program order.
    pipe = max(sorted(counters), key=lambda pipe: counters[pipe].busy_cycles)
    return pipe, counters[pipe].busy_cycles / trace.cycles


def title_start(subject: Subject) -> str:
    """Who did it, as a title begins: `npu_quantize on ascend910b2: `, or nothing for a trace."""
    return "" if isinstance(subject, Trace) else f"{subject.op} on {subject.device.name}: "
