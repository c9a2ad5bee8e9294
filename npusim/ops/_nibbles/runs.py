"""Products of groups of k, one after the other, several out of one load of both operands."""

from __future__ import annotations

from collections.abc import Iterator

from npusim.data.dtypes import INT32
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.kernel.builder import Builder
from npusim.kernel.cube import GmFeed, GmMatrix, L0Pair, L1Operand, l1_bytes
from npusim.kernel.queues import Slot

__all__ = ["GroupRuns"]


class GroupRuns:
    """Buffers of a cube core: two loads in L1, two groups in L0, the sums of one in L0C."""

    def __init__(
        self,
        builder: Builder,
        block: tuple[int, int],
        operands: tuple[GmMatrix, GmMatrix],
        group_k: int,
        groups: int,
    ) -> None:
        """Blocks of so many rows and columns; *groups* of *group_k* a load."""
        self._builder, self._group_k, self._groups = builder, group_k, groups
        (m, n), (a, b) = block, operands
        k = groups * group_k
        sides = (GmFeed(builder, a), m), (GmFeed(builder, b), n)
        self._sides = tuple(
            (feed, builder.queue("l1", _bytes(feed, extent, k), "mte2", "mte1", 2))
            for feed, extent in sides
        )
        self._l0 = L0Pair(builder, a.dtype, m, n, group_k)
        nbytes = INT32.nbytes(align_up(m, FRACTAL_ROWS) * align_up(n, FRACTAL_ROWS))
        self._l0c = builder.queue("l0c", nbytes, "cube", "fixpipe")

    def run(self, m: int, n: int) -> Iterator[Slot]:
        """The int32 sums of (m, k) times (k, n), a group after the other, in L0C.

        The operands are those where their names of global memory begin. Give each slot back with
        `free` when the fixpipe has read it.
        """
        k = self._groups * self._group_k
        slots = []
        for (feed, queue), extent in zip(self._sides, (m, n), strict=True):
            slot = queue.alloc()
            feed.load(slot, 0, k, extent)
            queue.enque(slot)
            slots.append(L1Operand(queue.deque(), feed, extent, k))
        a, b = slots
        for start in range(0, k, self._group_k):
            total = self._l0c.alloc()
            dst = total.of(INT32, align_up(m, FRACTAL_ROWS) * align_up(n, FRACTAL_ROWS))
            # (m, group_k) @ (group_k, n) -> (m, n)
            self._l0.multiply(dst, a.at_k(start), b.at_k(start), (m, n, self._group_k))
            self._l0c.enque(total)
            yield self._l0c.deque()
        for (_, queue), operand in zip(self._sides, slots, strict=True):
            queue.free(operand.slot)

    def free(self, total: Slot) -> None:
        """L0C has been read."""
        self._l0c.free(total)


def _bytes(feed: GmFeed, extent: int, k: int) -> int:
    return l1_bytes(feed.dtype, extent, k, feed.k_is_first)
