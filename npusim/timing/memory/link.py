"""Links: bandwidth that concurrent copies share fairly.

Each copy in progress moves at the speed of its port; if the ports together exceed the bandwidth of
the link, all are slowed by the same factor. This needs one number, the *virtual time* of the link:
it advances by one a cycle at full speed, slower otherwise, and a copy ends when it has advanced by
`bytes / port speed`.

In cycles in which a link is too narrow, stores and other copies share the blame in proportion to
their load: if either were halved, the link would be that much less of a limit to both.

Identical cores are simulated in step, one for all, but on silicon they are some time apart: some
are idle while others load, and the link keeps moving data. So a link that was idle makes up for it:
copies move at the speed of their ports until it has moved the bytes that it missed, or as much as
the cores are apart. A user of the link may declare that its users are in step for a while; idle
time then does not count.

All arithmetic is in integers, so that times are the same on every machine, and equal copies remain
equal in whatever order they came.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from npusim.data.integers import ceil_div

if TYPE_CHECKING:
    import simpy

__all__ = ["PORT_UNITS", "Copy", "Link", "Narrow"]

TICKS = 1 << 40
"""Resolution of virtual time: ticks per cycle."""
BLAME_UNITS = 1 << 20
"""Resolution of the blame for a cycle: enough for a million copies."""
SLACK = 1 << 20
"""About a millionth of a cycle. A copy this close to its end is done: rounding of a speed such as
one third must not move an end from one cycle to the next."""
PORT_UNITS = 1 << 10
"""Port speeds are in 1/1024 byte a cycle."""


class Copy(NamedTuple):
    """A copy over a link, of one core or of several equivalent ones."""

    nbytes: int
    """Bytes per core."""
    port: int
    """Speed of the port of one core, in PORT_UNITS."""
    load: int
    """Bandwidth of all these cores at full speed, in PORT_UNITS."""
    is_store: bool = False
    """Whether it is a store rather than a load."""


class Narrow(NamedTuple):
    """The cycles in which a link was too narrow to move a copy at the speed of its port."""

    cycles: int
    """Total."""
    by_stores: int
    """The part due to stores that used the link, whether the copy is one or not."""


class Link:
    """A link of *bytes_per_cycle*, whose users are *apart_cycles* apart."""

    def __init__(
        self, env: simpy.Environment, bytes_per_cycle: float, apart_cycles: int = 0
    ) -> None:
        self._env = env
        self.width = round(bytes_per_cycle * PORT_UNITS)
        """Bandwidth, in PORT_UNITS."""
        self.most_rested = self.width * apart_cycles
        """The most that it can make up for, in PORT_UNITS x cycles."""
        self._rested = 0
        """Unused capacity not made up for yet, in PORT_UNITS x cycles, up to that limit."""
        self._in_step = 0
        """Number of reasons why its users are in step at present."""
        self._virtual = 0
        self._since = 0
        self._load = 0
        self._narrow = 0
        """Cycles in which the link was too narrow for its copies."""
        self._stores = 0
        """The part of the load that is stores."""
        self._by_stores = 0
        """The stores' part of the narrow cycles, in BLAME_UNITS."""
        self._waiting: list[tuple[int, int, Copy, Callable[[Narrow], None], tuple[int, int]]] = []
        self._count = 0
        self._plan_number = 0
        self._is_planned = True

    def join(self, copy: Copy, done: Callable[[Narrow], None]) -> None:
        """Move the bytes of *copy*, then call *done* with the cycles for which the link was narrow.

        The caller must call :meth:`plan` before the cycle ends.
        """
        self._advance()
        needs = ceil_div(copy.nbytes * PORT_UNITS * TICKS, copy.port)
        # Copies that end together leave in the order in which they joined.
        self._count += 1
        before = self._narrow, self._by_stores
        heapq.heappush(self._waiting, (self._virtual + needs, self._count, copy, done, before))
        self._load += copy.load
        self._stores += copy.load if copy.is_store else 0
        self._is_planned = False

    def begin_in_step(self) -> None:
        """Count no idle time until :meth:`end_in_step` has been called as often."""
        self._advance()
        self._in_step += 1

    def end_in_step(self) -> None:
        """Undo one :meth:`begin_in_step`."""
        self._advance()
        self._in_step -= 1

    def _remove(self, copy: Copy) -> None:
        self._load -= copy.load
        self._stores -= copy.load if copy.is_store else 0

    def _speed(self) -> int:
        if self._rested > 0:
            return TICKS
        return max(1, min(TICKS, self.width * TICKS // max(1, self._load)))

    def _advance(self) -> None:
        now = int(self._env.now)
        passed = now - self._since
        if self._waiting:
            speed = self._speed()
            self._virtual += speed * passed
            if speed < TICKS:
                self._narrow += passed
                self._by_stores += passed * self._stores * BLAME_UNITS // self._load
        unused = (self.width - self._load) * passed
        is_counted = unused < 0 or not self._in_step
        if is_counted and (unused > 0 or self._rested > 0):
            self._rested = min(self.most_rested, self._rested + unused)
        self._since = now

    def plan(self) -> None:
        """Schedule a call for when the first copy ends or the idle time is made up for."""
        if self._is_planned:
            return
        self._is_planned = True
        self._plan_number += 1
        if self._waiting:
            left = self._waiting[0][0] - SLACK - self._virtual
            cycles = max(0, ceil_div(left, self._speed()))
            if self._rested > 0 and self._load > self.width:
                # From then on only its bandwidth counts.
                cycles = min(cycles, ceil_div(self._rested, self._load - self.width))
            plan = self._plan_number
            event = self._env.timeout(cycles)
            event.callbacks.append(lambda _: self._leave(plan))

    def _leave(self, plan: int) -> None:
        # A copy has joined since, which changed the speed: a newer plan is in effect.
        if plan != self._plan_number:
            return
        self._advance()
        left = []
        while self._waiting and self._waiting[0][0] - SLACK <= self._virtual:
            _, _, copy, done, before = heapq.heappop(self._waiting)
            self._remove(copy)
            blamed = (self._by_stores - before[1]) // BLAME_UNITS
            left.append((done, Narrow(self._narrow - before[0], blamed)))
        self._is_planned = False
        self.plan()
        for done, narrow in left:
            done(narrow)
