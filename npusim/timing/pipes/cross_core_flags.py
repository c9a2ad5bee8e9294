"""Flags on their way from core to core."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from npusim.check.cross_core_flags import awaits
from npusim.isa import CrossMode
from npusim.kernel.program import Block

__all__ = ["CrossCoreFlags"]

Raise = Callable[[CrossMode, int], None]
"""Hears of the mode and the event of a flag that has risen."""


class CrossCoreFlags:
    """Raises a flag for whoever may await it, once all who must set it have done so."""

    def __init__(self) -> None:
        self._hear: dict[Block, Raise] = {}
        self._sets: Counter[tuple[Block, CrossMode, int]] = Counter()
        """(block, mode, event) -> sets that have arrived."""

    def join(self, block: Block, hear: Raise) -> None:
        """Let *block* take part; *hear* is called when a flag has risen for it."""
        self._hear[block] = hear

    def arrive(self, block: Block, mode: CrossMode, event: int) -> None:
        """A set of *block* has come to where the others see it."""
        self._sets[block, mode, event] += 1
        count = self._sets[block, mode, event]
        hearers = [other for other in self._hear if awaits(other, mode, block)]
        if not hearers:
            return
        # Whoever awaits this core awaits the same ones beside it.
        setters = [other for other in self._hear if awaits(hearers[0], mode, other)]
        # The last of those who set it for the n-th time raises it for the n-th time.
        if all(self._sets[other, mode, event] >= count for other in setters):
            for other in hearers:
                self._hear[other](mode, event)
