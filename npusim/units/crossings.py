"""Flags on their way from core to core."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from npusim.isa import CrossMode

__all__ = ["Crossings"]

Raise = Callable[[CrossMode, int], None]
"""Hears of the mode and the event of a flag that has risen."""


class _Core(NamedTuple):
    kind: str
    group: int
    hear: Raise


class Crossings:
    """Raises a flag for whoever may await it, once all who must set it have done so.

    Mode "all": the cores of one kind, for each other. Mode "group": the cores of one kind in a
    group, for those of the other kind in it (asc-devkit, CrossCoreSetFlag(ISASI).md: modes 0, 2).
    """

    def __init__(self) -> None:
        self._cores: dict[int, _Core] = {}
        self._sets: Counter[tuple[int, CrossMode, int]] = Counter()
        """(core, mode, event) -> sets that have arrived."""

    def join(self, core: int, kind: str, group: int, hear: Raise) -> None:
        """Let *core* take part; *hear* is called when a flag has risen for it."""
        self._cores[core] = _Core(kind, group, hear)

    def arrive(self, core: int, mode: CrossMode, event: int) -> None:
        """A set of *core* has come to where the others see it."""
        self._sets[core, mode, event] += 1
        count = self._sets[core, mode, event]
        setter = self._cores[core]
        near = {
            number: other
            for number, other in self._cores.items()
            if mode == "all" or other.group == setter.group
        }
        setters = [number for number, other in near.items() if other.kind == setter.kind]
        # The last of those who set it for the n-th time raises it for the n-th time.
        if all(self._sets[number, mode, event] >= count for number in setters):
            for other in near.values():
                if (other.kind == setter.kind) == (mode == "all"):
                    other.hear(mode, event)
