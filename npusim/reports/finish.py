"""When the cores of each kind finished, and how many were idle in the last wave.

Work that does not divide evenly by the cores ends in a wave in which only some of them are active:
it lasts from the time the first core of a kind finishes until the last one does.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from npusim.reports.subject import Subject, device_of, trace_of

__all__ = ["Finish", "finishes"]


@dataclass(frozen=True, slots=True)
class Finish:
    """The active cores of one kind."""

    kind: str
    done_us: dict[int, float]
    """Core -> time of its last result, from the start of the cores."""
    left_out: int | None
    """Unused cores of this kind on the chip; None without a chip."""

    @property
    def first_us(self) -> float:
        """When the first one finishes."""
        return min(self.done_us.values())

    @property
    def median_us(self) -> float:
        """When half of them have finished."""
        return median(self.done_us.values())

    @property
    def last_us(self) -> float:
        """When all have finished."""
        return max(self.done_us.values())

    @property
    def idle(self) -> int:
        """Cores that are idle in the middle of the last wave."""
        middle = (self.first_us + self.last_us) / 2
        return sum(done < middle for done in self.done_us.values())


def finishes(subject: Subject) -> list[Finish]:
    """By kind of core, in the order of their first cores.

    Raises ValueError for a run that was not timed or had nothing to do.
    """
    trace, device = trace_of(subject), device_of(subject)
    us = 1e6 / trace.clock_hz
    done: dict[str, dict[int, float]] = {}
    for lane in sorted(trace.lanes, key=lambda lane: lane.cores[0]):
        for core in lane.cores:
            done.setdefault(lane.kind, {})[core] = lane.last_end * us
    return [
        Finish(
            kind,
            dict(sorted(found.items())),
            None if device is None else device.cores[kind].count - len(found),
        )
        for kind, found in done.items()
    ]
