"""Links, which copies share fairly.

Each copy under way gets its own port's speed, or the same fraction of it as everybody else when the
ports together exceed the link. One number says all of that, the link's *virtual time*: it advances
by one each cycle while everybody has full speed, slower otherwise, and a copy is done when it has
advanced by `bytes / port speed`. Arithmetic is in integers, so that times are the same on every
machine, and equal copies stay equal whatever the order in which they came.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

import simpy

from npusim.data.integers import ceil_div

__all__ = ["PORT_UNITS", "Copy", "Link"]

TICKS = 1 << 40
"""How finely virtual time is counted: ticks a cycle."""
SLACK = 1 << 20
"""About a millionth of a cycle. What is so near its end is done, lest the rounding of a speed such
as one third let a copy that ends with a cycle end with the next."""
PORT_UNITS = 1 << 10
"""Port speeds are counted in 1/1024 byte a cycle."""


class Copy(NamedTuple):
    """What moves over a link."""

    nbytes: int
    """What one core gets."""
    port: int
    """The speed at which it can take them, in units."""
    load: int
    """What the link would move then for all cores that do this, in units."""
    stream: object
    """Copies of the same bytes have the same one, and the same number of slices."""
    different: int = 1
    """How many slices they keep busy, as far as there are so many."""


class Link:
    """A way that copies share, *bytes_per_cycle* wide.

    Of a link of several *slices* each copy keeps one busy, all those that ask for the same bytes
    the same one; which, is left to chance. So d different copies get the share
    `1 - (1 - 1 / slices) ** d` of it.
    """

    def __init__(self, env: simpy.Environment, bytes_per_cycle: float, slices: int = 1) -> None:
        self._env = env
        self._full = bytes_per_cycle * PORT_UNITS
        self._slices = slices
        self._widths = [0, round(self._full / slices)]
        self._virtual = 0
        self._since = 0
        self._load = 0
        self._waiting: list[tuple[int, int, Copy, Callable[[], None]]] = []
        self._streams: dict[object, int] = {}
        self._different = 0
        self._count = 0
        self._plan_number = 0

    @property
    def width(self) -> int:
        """What it moves at most, in units."""
        return round(self._full)

    def join(self, copy: Copy, done: Callable[[], None]) -> None:
        """Move the bytes of *copy*; then call *done*."""
        self._advance()
        needs = ceil_div(copy.nbytes * PORT_UNITS * TICKS, copy.port)
        self._count += 1
        heapq.heappush(self._waiting, (self._virtual + needs, self._count, copy, done))
        self._load += copy.load
        before = self._streams.get(copy.stream, 0)
        self._streams[copy.stream] = before + 1
        self._different += copy.different if not before else 0
        self._plan()

    def _remove(self, copy: Copy) -> None:
        self._load -= copy.load
        left = self._streams[copy.stream] - 1
        self._streams[copy.stream] = left
        if not left:
            del self._streams[copy.stream]
            self._different -= copy.different

    def _speed(self) -> int:
        return min(TICKS, self._width() * TICKS // max(1, self._load))

    def _width(self) -> int:
        widths = self._widths
        while len(widths) <= self._different:
            idle = (1 - 1 / self._slices) ** len(widths)
            widths.append(round(self._full * (1 - idle)))
        return widths[self._different]

    def _advance(self) -> None:
        now = int(self._env.now)
        if self._waiting:
            self._virtual += self._speed() * (now - self._since)
        self._since = now

    def _plan(self) -> None:
        """Arrange to be called when the first copy ends, if nothing changes before."""
        self._plan_number += 1
        if self._waiting:
            left = self._waiting[0][0] - SLACK - self._virtual
            plan = self._plan_number
            event = self._env.timeout(max(0, ceil_div(left, self._speed())))
            event.callbacks.append(lambda _: self._leave(plan))

    def _leave(self, plan: int) -> None:
        if plan != self._plan_number:
            return
        self._advance()
        left = []
        while self._waiting and self._waiting[0][0] - SLACK <= self._virtual:
            _, _, copy, done = heapq.heappop(self._waiting)
            self._remove(copy)
            left.append(done)
        self._plan()
        for done in left:
            done()
