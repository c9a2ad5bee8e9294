"""Flags between the cores of a launch: which cores wait for which, and when a wait ends.

Mode "all": every core of a kind waits for all of its kind, including itself. Mode "group": the
cores of one kind in a group wait for those of the other kind in it. Mode "pair": the cores of a
kind in a group wait for each other, and each for itself (asc-devkit, CrossCoreSetFlag(ISASI).md:
modes 0, 2 and 1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from npusim.isa import CrossCoreSetFlag, CrossCoreWaitFlag, CrossMode
from npusim.kernel.program import Block

__all__ = ["CrossCoreFlagCounts", "awaits"]


def awaits(block: Block, mode: CrossMode, other: Block) -> bool:
    """Whether *block* cannot pass a flag of *mode* before *other* has set it."""
    if mode == "all":
        return other.kind == block.kind
    return other.group == block.group and (other.kind == block.kind) is (mode == "pair")


class CrossCoreFlagCounts:
    """Counts flags without times; the k-th wait for a flag consumes the k-th set of each core."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._blocks = tuple(blocks)
        self._senders: dict[tuple[Block, CrossMode], list[Block]] = {}
        self._sets: Counter[tuple[Block, CrossMode, int]] = Counter()
        """(block, mode, event) -> number of sets."""
        self._waits: Counter[tuple[Block, CrossMode, int]] = Counter()
        self._up: dict[tuple[Block, CrossMode, int], int] = {}
        """(block, mode, event) -> how many of its senders, in order, have set the flag: once they
        have, they need not be asked again until the block passes."""

    def set(self, block: Block, op: CrossCoreSetFlag) -> None:
        """Record that *block* has reached *op*."""
        self._sets[block, op.mode, op.event] += 1

    def take(self, block: Block, op: CrossCoreWaitFlag) -> bool:
        """Let *block* pass *op* if its flag is set, and clear it; return whether it was."""
        if not self.is_up(block, op):
            return False
        self.lower(block, op)
        return True

    def lower(self, block: Block, op: CrossCoreWaitFlag) -> None:
        """Let *block* pass *op*, whose flag is set, and clear it."""
        flag = block, op.mode, op.event
        self._waits[flag] += 1
        self._up.pop(flag, None)

    def is_up(self, block: Block, op: CrossCoreWaitFlag) -> bool:
        """Whether *block* may pass *op*."""
        flag = block, op.mode, op.event
        senders, passed = self._senders_to(block, op.mode), self._waits[flag]
        up = self._up.get(flag, 0)
        while up < len(senders) and self._sets[senders[up], op.mode, op.event] > passed:
            up += 1
        self._up[flag] = up
        return up == len(senders)

    def _senders_to(self, block: Block, mode: CrossMode) -> list[Block]:
        if (block, mode) not in self._senders:
            found = [other for other in self._blocks if awaits(block, mode, other)]
            self._senders[block, mode] = found
        return self._senders[block, mode]
