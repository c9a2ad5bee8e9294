"""The core that each wait for flags of other cores waited for last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag
from npusim.reports.critical_path import sets_for
from npusim.reports.flags import Flag, numbered
from npusim.trace import LaneTrace, Trace

__all__ = ["Handed", "crossings", "handed"]


class Handed(NamedTuple):
    """The last flag that a wait of another lane needs, and the lane that set it."""

    setter: LaneTrace
    set_index: int
    waiter: LaneTrace
    wait_index: int


def handed(setters: Sequence[LaneTrace], waiters: Sequence[LaneTrace]) -> Iterator[Handed]:
    """Flags of *setters* for which *waiters* stalled, in program order of each.

    The k-th wait takes the k-th set of every core that it waits for, as on the critical path; the
    last of these sets is reported, with the first core of its lane.
    """
    sets = [(lane, numbered(lane, CrossCoreSetFlag)) for lane in setters]
    for own in waiters:
        for key, waits in numbered(own, CrossCoreWaitFlag).items():
            others = [
                (lane, found[key])
                for lane, found in sets
                if key in found and sets_for(lane, own, key[0])
            ]
            for turn, wait in enumerate(waits):
                risen = [
                    (int(lane.end[found[turn]]), -place, found[turn])
                    for place, (lane, found) in enumerate(others)
                    if turn < len(found)
                    and own.start[wait] < lane.end[found[turn]] <= own.free[wait]
                ]
                if risen:
                    _, place, index = max(risen)
                    yield Handed(others[-place][0], index, own, wait)


def crossings(
    trace: Trace, setters: Sequence[LaneTrace], waiters: Sequence[LaneTrace]
) -> list[Flag]:
    """The flags that :func:`handed` finds from *setters* to *waiters*, both lanes of *trace*; none
    for a wait whose last flag came from its own core."""
    us = 1e6 / trace.clock_hz
    found = []
    for setter, raised, waiter, taken in handed(setters, waiters):
        if setter is waiter:
            continue
        wait = waiter.ops[taken]
        assert isinstance(wait, CrossCoreWaitFlag)
        place = setter.cores[0], setter.ops[raised].pipe, waiter.cores[0], wait.pipe, wait.event
        times = setter.end[raised] * us, waiter.start[taken] * us, waiter.free[taken] * us
        found.append(Flag(*place, *times, f"word from {setter.kind}"))
    return found
