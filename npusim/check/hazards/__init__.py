"""Races and deadlocks: whether the order that flags impose makes a program's values certain.

Pipes run at their own speed, so two micro-ops on different pipes are ordered only by a chain of
flags, set and waited for (or a full barrier). :func:`order` walks a program pipe by pipe as the
chip does, untimed, with a vector clock for each pipe: how far each other pipe had come, at least,
when this one continued. Two micro-ops on different pipes that touch the same bytes, at least one of
them writing, race if these clocks do not order them. So do two on the vector pipe, which starts a
micro-op before the results of the last one are available, without a barrier between them
(asc-devkit, PipeBarrier(ISASI).md). On all other pipes a micro-op sees the results of earlier ones.
The unit flag of L0C orders an Mmad and a Fixpipe after a flag that is set directly before the
leading one. A walk that cannot continue is a deadlock. :class:`CrossCoreOrder` does the same for
the flags between the cores of a launch. Two pipes of one core must be ordered within that core: an
order that depends on another core does not count. Nothing here depends on time, so a program that
passes is free of races and deadlocks on every device.
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
