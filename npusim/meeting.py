"""Flags between cores, without times: who has set what, and who may go on."""

from __future__ import annotations

from collections import Counter

from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag
from npusim.program import Block

__all__ = ["Meeting"]

CUBE_KINDS = ("aic",)


class Meeting:
    """Counts the flags between the cores of a launch; cores are numbered as *blocks* are."""

    def __init__(self, blocks: tuple[Block, ...]) -> None:
        self._is_cube = [block.kind in CUBE_KINDS for block in blocks]
        self._groups: dict[int, list[int]] = {}
        for index, block in enumerate(blocks):
            self._groups.setdefault(block.group, []).append(index)
        self._group_of = [block.group for block in blocks]
        self._sets: Counter[tuple[int, str, int]] = Counter()
        """(core, mode, event) -> how often it was set."""
        self._waits: Counter[tuple[int, str, int]] = Counter()

    def senders(self, core: int, mode: str) -> list[int]:
        """The cores that must all have set a flag before *core* can go on."""
        if mode == "all":
            kind = self._is_cube[core]
            return [other for other, is_cube in enumerate(self._is_cube) if is_cube is kind]
        return [
            other
            for other in self._groups[self._group_of[core]]
            if self._is_cube[other] is not self._is_cube[core]
        ]

    def set(self, core: int, op: CrossCoreSetFlag) -> None:
        """*core* has reached *op*."""
        self._sets[core, op.mode, op.event] += 1

    def take(self, core: int, op: CrossCoreWaitFlag) -> bool:
        """Let *core* pass *op* if its flag is up, and lower it."""
        passed = self._waits[core, op.mode, op.event]
        senders = self.senders(core, op.mode)
        if not all(self._sets[other, op.mode, op.event] > passed for other in senders):
            return False
        self._waits[core, op.mode, op.event] += 1
        return True
