"""The bars of a timeline as data: which cores, which pipe, which micro-ops, from when to when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from npusim.devices.schema import Pipe
from npusim.reports.style import PIPES
from npusim.reports.subject import elapsed_us, slowest_lanes
from npusim.trace import ORDERING, LaneTrace, Trace

__all__ = ["STEPS", "WIDE_STEPS", "Bar", "alike", "rows", "window"]

STEPS = 2000
"""A gap shorter than one STEPS-th of the time shown is narrower than a pixel."""
NO_BAR = "none"
"""Stands for no pipe: flags and barriers are not drawn."""
WIDE_STEPS = 20
"""A bar of this many steps is not joined with the next, so that a long run keeps its shape."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A micro-op, or several of one pipe that are too short to be visible at this scale."""

    cores: tuple[int, ...]
    """The cores that ran this at the same time."""
    kind: str
    pipe: Pipe
    names: tuple[str, ...]
    """The mnemonics of the micro-ops, each once."""
    start_us: float
    free_us: float
    """The pipe can take its next micro-op."""
    end_us: float
    """The last result is available."""
    held_us: float
    """How long micro-ops occupied the pipe from start to free, without gaps between them."""
    micro_ops: int = 1

    @property
    def width_us(self) -> float:
        """From the start until the pipe is free."""
        return self.free_us - self.start_us

    @property
    def share(self) -> float:
        """The share of its width for which the pipe was occupied."""
        return self.held_us / self.width_us if self.micro_ops > 1 else 1.0


def rows(
    trace: Trace,
    cores: Sequence[int] | None = None,
    *,
    start_us: float | None = None,
    end_us: float | None = None,
) -> list[Bar]:
    """The bars between *start_us* and *end_us*, core by core and pipe by pipe.

    Without *cores*, the slowest core of each kind is shown, as in other pictures. Raises ValueError
    for cores that were not active and for an empty time window.
    """
    start, end = window(trace, start_us, end_us)
    found: list[Bar] = []
    for lane, alike in _chosen(trace, cores):
        ops, numbers = lane.program.distinct()
        pipes = np.array([NO_BAR if isinstance(op, ORDERING) else op.pipe for op in ops])[numbers]
        names = [str(op).partition(" ")[0] for op in ops]
        for pipe in PIPES:
            index = np.flatnonzero(pipes == pipe)
            us = 1e6 / trace.clock_hz
            starts, frees, ends = (x[index] * us for x in (lane.start, lane.free, lane.end))
            seen = (ends >= start) & (starts <= end)
            times = (x[seen].tolist() for x in (numbers[index], starts, frees, ends))
            bars = (
                Bar(alike, lane.kind, pipe, (names[number],), first, free, last, free - first)
                for number, first, free, last in zip(*times, strict=True)
            )
            found += _merged(bars, (end - start) / STEPS)
    return found


def window(trace: Trace, start_us: float | None, end_us: float | None) -> tuple[float, float]:
    """Start and end of the time window: by default all of the cores' time."""
    start = 0.0 if start_us is None else start_us
    end = elapsed_us(trace) if end_us is None else end_us
    if not start < end:
        raise ValueError(
            f"reports: start_us must be less than end_us = {end:g}, not {start:g}; "
            f"the cores take {elapsed_us(trace):g} us"
        )
    return start, end


def _chosen(trace: Trace, cores: Sequence[int] | None) -> list[tuple[LaneTrace, tuple[int, ...]]]:
    """Lanes to show, each with all the cores that share its timeline."""
    if cores is None:
        cores = [lane.cores[0] for lane in slowest_lanes(trace)]
    for core in cores:
        trace.kind(core)  # raises for a core that was not active
    return [(lane, found) for lane, found in alike(trace) if set(found) & set(cores)]


def alike(trace: Trace) -> list[tuple[LaneTrace, tuple[int, ...]]]:
    """A lane for all the cores with the same timeline, with their numbers."""
    groups: list[tuple[LaneTrace, tuple[int, ...]]] = []
    for lane in trace.lanes:
        for place, (other, cores) in enumerate(groups):
            if _are_alike(lane, other):
                groups[place] = other, (*cores, *lane.cores)
                break
        else:
            groups.append((lane, lane.cores))
    return [(lane, tuple(sorted(cores))) for lane, cores in groups]


def _are_alike(a: LaneTrace, b: LaneTrace) -> bool:
    # Most end at different times, which is a quick check.
    if (a.kind, a.last_end, len(a.program)) != (b.kind, b.last_end, len(b.program)):
        return False
    names = ("start", "free", "end")
    same_times = (np.array_equal(getattr(a, name), getattr(b, name)) for name in names)
    return a.program.is_like(b.program) and all(same_times)


def _merged(bars: Iterator[Bar], least_gap: float) -> list[Bar]:
    """Join narrow bars with less than *least_gap* between them."""
    merged: list[Bar] = []
    row: list[Bar] = []
    """Micro-ops that become one bar."""
    width = free = 0.0
    for bar in bars:
        is_wide = max(width, bar.width_us) >= WIDE_STEPS * least_gap
        if row and (is_wide or bar.start_us - free >= least_gap):
            merged.append(_joined(row))
            row = []
        row.append(bar)
        free = bar.free_us
        width = free - row[0].start_us
    return [*merged, _joined(row)] if row else merged


def _joined(row: list[Bar]) -> Bar:
    """The consecutive bars of *row*, joined into one."""
    if len(row) == 1:
        return row[0]
    return replace(
        row[0],
        names=tuple(dict.fromkeys(name for bar in row for name in bar.names)),
        free_us=row[-1].free_us,
        end_us=max(bar.end_us for bar in row),
        held_us=sum(bar.held_us for bar in row),
        micro_ops=sum(bar.micro_ops for bar in row),
    )
