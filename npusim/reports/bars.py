"""The bars of a timeline as data: which cores, which pipe, which micro-ops, from when to when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from npusim.devices.schema import Pipe
from npusim.reports.style import PIPES
from npusim.reports.subject import elapsed_us
from npusim.trace import ORDERING, LaneTrace, Trace

__all__ = ["STEPS", "WIDE_STEPS", "Bar", "alike", "rows", "window"]

STEPS = 2000
"""A gap of less than one STEPS-th of what is shown falls between two pixels."""
WIDE_STEPS = 20
"""A bar of this many steps is not joined with the next, so that a long run keeps its shape."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A micro-op, or several of one pipe that are too short to be seen at this scale."""

    cores: tuple[int, ...]
    """The cores that did this at the same time."""
    kind: str
    pipe: Pipe
    names: tuple[str, ...]
    """The mnemonics of the micro-ops, each once."""
    start_us: float
    free_us: float
    """The pipe can take its next micro-op."""
    end_us: float
    """The last result is there."""
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

    Without *cores*, the first core of each kind and the slowest one are taken. Raises ValueError
    for cores that did not take part and for an empty stretch of time.
    """
    start, end = window(trace, start_us, end_us)
    found: list[Bar] = []
    for lane, alike in _chosen(trace, cores):
        for pipe in PIPES:
            bars = _bars(lane, alike, pipe, 1e6 / trace.clock_hz)
            seen = (bar for bar in bars if bar.end_us >= start and bar.start_us <= end)
            found += _merged(seen, (end - start) / STEPS)
    return found


def window(trace: Trace, start_us: float | None, end_us: float | None) -> tuple[float, float]:
    """From when to when is shown: all of the cores' time, unless said otherwise."""
    start = 0.0 if start_us is None else start_us
    end = elapsed_us(trace) if end_us is None else end_us
    if not start < end:
        raise ValueError(
            f"reports: start_us must be less than end_us = {end:g}, not {start:g}; "
            f"the cores take {elapsed_us(trace):g} us"
        )
    return start, end


def _chosen(trace: Trace, cores: Sequence[int] | None) -> list[tuple[LaneTrace, tuple[int, ...]]]:
    """Lanes to show, each with all the cores that ran alike."""
    if cores is None:
        first = {trace.kind(core): core for core in reversed(trace.cores)}
        cores = [*first.values(), trace.slowest.cores[0]]
    for core in cores:
        trace.kind(core)  # raises for a core that did not take part
    return [(lane, found) for lane, found in alike(trace) if set(found) & set(cores)]


def alike(trace: Trace) -> list[tuple[LaneTrace, tuple[int, ...]]]:
    """A lane for all the cores that ran alike, with their numbers."""
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
    same_times = (
        np.array_equal(mine, its)
        for mine, its in ((a.start, b.start), (a.free, b.free), (a.end, b.end))
    )
    return a.kind == b.kind and all(same_times) and a.ops == b.ops


def _bars(lane: LaneTrace, cores: tuple[int, ...], pipe: Pipe, cycle_us: float) -> Iterator[Bar]:
    for index, op in enumerate(lane.ops):
        if op.pipe == pipe and not isinstance(op, ORDERING):
            mnemonic = str(op).partition(" ")[0]
            times = (lane.start[index], lane.free[index], lane.end[index])
            start, free, end = (int(time) * cycle_us for time in times)
            yield Bar(cores, lane.kind, pipe, (mnemonic,), start, free, end, free - start)


def _merged(bars: Iterator[Bar], least_gap: float) -> list[Bar]:
    """Join narrow bars with less than *least_gap* between them."""
    merged: list[Bar] = []
    for bar in bars:
        last = merged[-1] if merged else bar
        is_wide = max(last.width_us, bar.width_us) >= WIDE_STEPS * least_gap
        if last is bar or is_wide or bar.start_us - last.free_us >= least_gap:
            merged.append(bar)
            continue
        new = tuple(name for name in bar.names if name not in last.names)
        merged[-1] = replace(
            last,
            names=last.names + new,
            free_us=bar.free_us,
            end_us=max(last.end_us, bar.end_us),
            held_us=last.held_us + bar.held_us,
            micro_ops=last.micro_ops + bar.micro_ops,
        )
    return merged
