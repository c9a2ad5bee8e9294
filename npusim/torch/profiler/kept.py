"""What a profile has kept: steps, the operations called in them, and their kernels."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

from npusim.exports.kernel_names import kernel_name
from npusim.exports.profile import cores_of
from npusim.run.result import Run
from npusim.torch.calls import Call
from npusim.torch.clock import Event
from npusim.torch.profiler.aclnn import api

__all__ = ["Kept", "Kernel", "Step"]

TICK_US = 0.001
"""Between operations that begin at one time, so that they can be told apart."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a script, in simulated time."""

    number: int
    start_us: float
    end_us: float
    first_call: int = 0
    """How many operations had been called before."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that ran."""

    event: Event
    run: Run
    call: int | None
    """The number of the operation that launched it, the innermost one."""
    step: int
    """The number of the step in which it began."""
    name: str
    """As the vendor's profiler calls it."""

    @property
    def cores(self) -> str:
        """The profiler's word for the cores that took part."""
        return cores_of(self.run)

    @property
    def end_us(self) -> float:
        return self.event.start_us + self.event.time_us


@dataclass(frozen=True)
class Kept:
    """A stretch of a script."""

    steps: tuple[Step, ...]
    calls: tuple[Call, ...]
    events: tuple[Event, ...]

    @cached_property
    def calls_of_events(self) -> list[int | None]:
        """For each event the number of the innermost operation in which it happened."""
        found: list[int | None] = [None] * len(self.events)
        for number, call in enumerate(self.calls):
            # Operations within it come later.
            found[call.first : call.after] = [number] * (call.after - call.first)
        return found

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """What ran on the card; operators without a kernel did not."""
        found = []
        for event, call in zip(self.events, self.calls_of_events, strict=True):
            if event.run is None or event.run.plan is None:
                continue
            operator = event.operator if call is None else self.calls[call].operator
            name = kernel_name(event.run, api(event.run, operator))
            found.append(Kernel(event, event.run, call, self._step_of(event), name))
        return tuple(found)

    def _step_of(self, event: Event) -> int:
        """The step in which *event* began: the last that had begun, since kernels take time."""
        place = bisect_right(self.steps, event.start_us, key=lambda step: step.start_us)
        return self.steps[place - 1].number if place else 0

    @cached_property
    def host_us(self) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
        """When steps, and operations, begin and end on the host, which takes no simulated time.

        Those that begin at one time stand a nanosecond after each other, the last of them at that
        time: the host runs that far ahead. An operation ends as the last within it begins.
        """
        order = self._in_order()
        starts, at_us = [0.0] * len(order), float("inf")
        for place in reversed(range(len(order))):
            at_us = min(at_us - TICK_US, order[place][1])
            starts[place] = at_us
        ends, open_places = list(starts), list[int]()
        for place, (depth, _) in enumerate(order):
            while open_places and order[open_places[-1]][0] >= depth:
                ended = open_places.pop()
                is_step = order[ended][0] == 0
                ends[ended] = starts[place] - TICK_US if is_step else starts[place - 1]
            open_places.append(place)
        for place in open_places:
            ends[place] = starts[-1] if order[place][0] else self.steps[-1].end_us
        steps, calls = list[tuple[float, float]](), list[tuple[float, float]]()
        for (depth, _), span in zip(order, zip(starts, ends, strict=True), strict=True):
            (calls if depth else steps).append(span)
        return steps, calls

    def _in_order(self) -> list[tuple[int, float]]:
        """Depth, 0 of steps, and beginning in simulated time of all that the host did."""
        found = [(call.depth + 1, call.began_us) for call in self.calls]
        for step in reversed(self.steps):
            found.insert(step.first_call, (0, step.start_us))
        return found

    @cached_property
    def lead_us(self) -> float:
        """How much later than simulated time everything is written, for nothing to begin before 0:
        the nanoseconds by which the host is ahead of a clock that has just been set to 0."""
        first = min((start for spans in self.host_us for start, _ in spans), default=0.0)
        return max(0.0, -first)
