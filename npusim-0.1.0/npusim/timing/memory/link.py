"""Links: bandwidth that the copies under way share fairly.

Each copy under way moves at the speed of its port; when the ports together exceed the bandwidth of
the link, all are slowed by the same factor. One number is enough for that, the *virtual time* of
the link: it advances by one a cycle at full speed, slower otherwise, and a copy is done when it has
advanced by `bytes / port speed`.

Of the cycles in which a link is too narrow, stores and other copies share the blame as they share
the link: were either half as much, the link would be that much less in the way of both.

Cores that do the same are simulated in step, one for all, where silicon has them some way apart:
there some rest while others load, and the link moves on. So a link that has rested makes up for it:
copies go at the speed of their ports until it has moved what it left, or as much as the cores are
apart. Who uses a link may say that its users are in step for a while: then its rest does not count.

Arithmetic is in integers, so that times are the same on every machine, and equal copies stay equal
whatever the order in which they came.
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
"""Resolution of virtual time: ticks a cycle."""
BLAME_UNITS = 1 << 20
"""Parts of a cycle in which the blame for one is divided: fine enough for a million of them."""
SLACK = 1 << 20
"""About a millionth of a cycle. A copy this near its end is done: rounding of a speed such as one
third must not move an end from one cycle to the next."""
PORT_UNITS = 1 << 10
"""Port speeds are counted in 1/1024 byte a cycle."""


class Copy(NamedTuple):
    """A copy over a link, of one core or of several equivalent ones."""

    nbytes: int
    """Bytes of one core."""
    port: int
    """Speed of the port of one core, in PORT_UNITS."""
    load: int
    """Bandwidth that all these cores take at full speed, in PORT_UNITS."""
    is_store: bool = False
    """Whether it stores what the cores have, and does not bring in what they ask for."""


class Narrow(NamedTuple):
    """For how many cycles a link was too narrow to move a copy at the speed of its port."""

    cycles: int
    """In all."""
    by_stores: int
    """The share in these of the stores that used it, of their copy's own kind or not."""


class Link:
    """A link of *bytes_per_cycle*, whose users are *apart_cycles* apart."""

    def __init__(
        self, env: simpy.Environment, bytes_per_cycle: float, apart_cycles: int = 0
    ) -> None:
        self._env = env
        self.width = round(bytes_per_cycle * PORT_UNITS)
        """Bandwidth, in PORT_UNITS."""
        self.most_rested = self.width * apart_cycles
        """The most that it makes up for, in PORT_UNITS x cycles."""
        self._rested = 0
        """What it could have moved and has not made up for, in PORT_UNITS x cycles, up to that."""
        self._in_step = 0
        """Reasons for which its users are in step at present."""
        self._virtual = 0
        self._since = 0
        self._load = 0
        self._narrow = 0
        """Cycles in which the link was too narrow for its copies."""
        self._stores = 0
        """What stores take of the load."""
        self._by_stores = 0
        """Their share of the narrow cycles, in BLAME_UNITS."""
        self._waiting: list[tuple[int, int, Copy, Callable[[Narrow], None], tuple[int, int]]] = []
        self._count = 0
        self._plan_number = 0
        self._is_planned = True

    def join(self, copy: Copy, done: Callable[[Narrow], None]) -> None:
        """Move the bytes of *copy*; then call *done* with for how long the link was too narrow.

        Who joins copies has to :meth:`plan` before the cycle ends.
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
        """Count no rest from now on until :meth:`end_in_step` has been called as often."""
        self._advance()
        self._in_step += 1

    def end_in_step(self) -> None:
        """Take back one :meth:`begin_in_step`."""
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
        """Arrange to be called when the first copy ends or the rest is made up for."""
        if self._is_planned:
            return
        self._is_planned = True
        self._plan_number += 1
        if self._waiting:
            left = self._waiting[0][0] - SLACK - self._virtual
            cycles = max(0, ceil_div(left, self._speed()))
            if self._rested > 0 and self._load > self.width:
                # From then on it is as wide as it is.
                cycles = min(cycles, ceil_div(self._rested, self._load - self.width))
            plan = self._plan_number
            event = self._env.timeout(cycles)
            event.callbacks.append(lambda _: self._leave(plan))

    def _leave(self, plan: int) -> None:
        # A copy has joined since: the speed is another one, and a newer plan is under way.
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
