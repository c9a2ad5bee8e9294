"""Flags between cores, with times: when each is set for the cores that wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from npusim.check.cross_core_flags import awaits
from npusim.isa import CrossMode
from npusim.kernel.program import Block

__all__ = ["CrossCoreFlags"]

Raise = Callable[[CrossMode, int], None]
"""Called with the mode and the event of a flag when it is set."""


class CrossCoreFlags:
    """Sets a flag for the cores that may wait for it, once all cores that must set it have."""

    def __init__(self) -> None:
        self._raise: dict[Block, Raise] = {}
        self._sets: Counter[tuple[Block, CrossMode, int]] = Counter()
        """(block, mode, event) -> sets that have arrived."""

    def join(self, block: Block, on_raise: Raise) -> None:
        """Register *block*; *on_raise* is called when a flag is set for it."""
        self._raise[block] = on_raise

    def arrive(self, block: Block, mode: CrossMode, event: int) -> None:
        """Record a set of *block*, which the other cores see from now on."""
        self._sets[block, mode, event] += 1
        count = self._sets[block, mode, event]
        hearers = [other for other in self._raise if awaits(other, mode, block)]
        if not hearers:
            return
        # All cores that wait for this one wait for the same set of cores, so any of them will do.
        setters = [other for other in self._raise if awaits(hearers[0], mode, other)]
        # The flag is set for the n-th time by the last of the n-th sets.
        if all(self._sets[other, mode, event] >= count for other in setters):
            for other in hearers:
                self._raise[other](mode, event)
