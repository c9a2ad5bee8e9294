"""The record of a profile: steps, the operations called in them, and their kernels."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from npusim.exports.kernel_names import kernel_name
from npusim.exports.profile import cores_of
from npusim.run.result import Result
from npusim.torch.calls import Call
from npusim.torch.clock import Event
from npusim.torch.profiler.aclnn import api

__all__ = ["TICK_US", "Kernel", "Recorded", "Step"]

TICK_US = 0.001
"""Time between operations that start at the same time, so that they can be distinguished."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a script, in simulated time."""

    number: int
    start_us: float
    end_us: float
    first_call: int = 0
    """The number of operations called before it."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that ran."""

    event: Event
    run: Result
    call: int | None
    """The number of the operation that launched it."""
    step: int
    """The number of the step in which it began."""
    name: str
    """Its name in the vendor's profiler."""

    @property
    def cores(self) -> str:
        """The profiler's name for the kind of cores that it ran on."""
        return cores_of(self.run)

    @property
    def end_us(self) -> float:
        return self.event.start_us + self.event.time_us


@dataclass(frozen=True)
class Recorded:
    """The recorded part of a script."""

    steps: tuple[Step, ...]
    calls: tuple[Call, ...]
    events: tuple[Event, ...]

    @cached_property
    def calls_of_events(self) -> list[int | None]:
        """For each event, the number of the operation that it belongs to."""
        found: list[int | None] = [None] * len(self.events)
        for number, call in enumerate(self.calls):
            found[call.first : call.after] = [number] * (call.after - call.first)
        return found

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that ran on the card; operators without a kernel are left out."""
        found = []
        for event, call in zip(self.events, self.calls_of_events, strict=True):
            if event.run is None or event.run.plan is None:
                continue
            operator = event.operator if call is None else self.calls[call].operator
            name = kernel_name(event.run, api(event.run, operator))
            found.append(Kernel(event, event.run, call, self.step_of(event), name))
        return tuple(found)

    @cached_property
    def exchanges(self) -> tuple[Event, ...]:
        """Collectives, messages, and kernels that communicate with other cards."""
        return tuple(event for event in self.events if event.communicates)

    def step_of(self, event: Event) -> int:
        """The step in which *event* began: the last one that had started by then."""
        place = bisect_right(self.steps, event.start_us, key=lambda step: step.start_us)
        return self.steps[place - 1].number if place else 0

    @cached_property
    def host_us(self) -> tuple[list[float], list[float]]:
        """The start times of steps and of operations on the host, which takes no simulated time.

        Those that start at the same time are spaced one nanosecond apart, the last of them at that
        time, so the host is ahead of the card by these nanoseconds.
        """
        order = [(False, call.began_us) for call in self.calls]
        for step in reversed(self.steps):
            order.insert(step.first_call, (True, step.start_us))
        steps, calls = list[float](), list[float]()
        at_us = float("inf")
        for is_step, began_us in reversed(order):
            at_us = min(at_us - TICK_US, began_us)
            (steps if is_step else calls).append(at_us)
        return steps[::-1], calls[::-1]

    @cached_property
    def lead_us(self) -> float:
        """The offset added to all times so that none is negative: the nanoseconds by which the host
        is ahead of a clock that starts at 0."""
        return max(0.0, -min((us for starts in self.host_us for us in starts), default=0.0))
