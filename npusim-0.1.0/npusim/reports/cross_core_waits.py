"""Which core each wait for a flag of other cores hung on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag
from npusim.reports.critical_path import sets_for
from npusim.reports.flags import Flag, numbered
from npusim.trace import LaneTrace, Trace

__all__ = ["Handed", "crossings", "handed"]


class Handed(NamedTuple):
    """A flag that one lane raised last of all whom a wait of another one needs."""

    setter: LaneTrace
    set_index: int
    waiter: LaneTrace
    wait_index: int


def handed(setters: Sequence[LaneTrace], waiters: Sequence[LaneTrace]) -> Iterator[Handed]:
    """Flags of *setters* that *waiters* stood still for, in program order of each.

    The k-th wait takes the k-th set of every core that it waits for, as the critical path does; the
    last of these to rise is reported, by the first core of its lane.
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
    """Flags from *setters* to *waiters*, lanes of *trace*, as :func:`handed` finds them; a wait
    that hung on its own core has none."""
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
