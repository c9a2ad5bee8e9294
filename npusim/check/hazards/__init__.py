"""Races and deadlocks: does the order that the flags impose make a program's values certain?

Pipes run at their own speed, so two micro-ops on different pipes are ordered only by a chain of set
and awaited flags (or a full barrier). :func:`order` walks a program pipe by pipe as the chip does,
untimed, and keeps a vector clock for each pipe: how far each other pipe had come, at least, when
this one went on. Two micro-ops on different pipes that touch the same bytes, one of them writing,
with neither before the other by these clocks, are a race. So are two on the vector pipe, which
starts a micro-op before the last one's results are there, with no barrier between them
(asc-devkit, PipeBarrier(ISASI).md). On all other pipes a micro-op sees the results of those before
it. The unit flag of L0C orders an Mmad and a Fixpipe behind a flag that is set directly before the
one that goes ahead. A walk that cannot go on is a deadlock. :class:`CrossCoreOrder` does the same
for the flags between the cores of a launch. What two pipes of one core do must be ordered within
it: an order that goes by way of another core alone does not count. None of it depends on how long
anything takes, so a program that passes is free of races and deadlocks on every device.
"""

from __future__ import annotations

from npusim.check.hazards.cross_core import CrossCoreOrder, Moment
from npusim.check.hazards.errors import (
    DeadlockError,
    FlagError,
    HazardError,
    RaceError,
    complain,
    deadlock,
    forgiving,
)
from npusim.check.hazards.exchange import NO_PHASE, Exchange, Members, Touch, Visible
from npusim.check.hazards.record import Followed, Recorder
from npusim.check.hazards.rounds import Orders, order

__all__ = [
    "NO_PHASE",
    "CrossCoreOrder",
    "DeadlockError",
    "Exchange",
    "FlagError",
    "Followed",
    "HazardError",
    "Members",
    "Moment",
    "Orders",
    "RaceError",
    "Recorder",
    "Touch",
    "Visible",
    "complain",
    "deadlock",
    "forgiving",
    "order",
]
