"""The unified buffer of a vector core of kernel FIA, and the state of its rows.

64 KiB for scores, products and sums on their way in, twice 16 KiB for masks, 32 and 8 KiB on the
way out, 32 KiB in between (ops-transformer@3a280bc attention/common/op_kernel/arch22,
fia_block_vec_nonquant.h). What is where in the last of these is assumed.
"""

from __future__ import annotations

from typing import Literal

from npusim.data.dtypes import FLOAT32
from npusim.isa import Broadcast, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot

__all__ = ["Buffers", "State"]

WIDE_BYTES, MASK_BYTES = 32 * 1024, 16 * 1024
SMALL_BYTES = 8 * 1024
LANES_BYTES = 24 * 1024
MASK_BITS_AT, MASK_BITS_BYTES = 16 * 1024, 2 * 1024
ROW_BYTES = 1024
"""One float32 for each of up to 256 rows."""
BLOCK = 8
"""float32 in a data block."""

StateName = Literal["largest", "total", "faded", "query", "weights"]
NAMES: tuple[StateName, ...] = ("largest", "total", "faded")


class Buffers:
    """All of the unified buffer."""

    def __init__(self, builder: Builder) -> None:
        self.wide_in = builder.queue("ub", WIDE_BYTES, "mte2", "vector", 2)
        self.mask_in = builder.queue("ub", MASK_BYTES, "mte2", "vector")
        self.second_in = builder.queue("ub", MASK_BYTES, "mte2", "vector")
        """Sums of pieces; their maxima come the way of masks."""
        self.wide_out = builder.queue("ub", WIDE_BYTES, "vector", "mte3")
        self.small_out = builder.queue("ub", SMALL_BYTES, "vector", "mte3")
        between = builder.claim("ub", WIDE_BYTES)
        start = between.offset_bytes
        self.lanes = Slot("ub", start, LANES_BYTES, event=-1)
        """Running sums; before them the mask as fp16, and its bits."""
        self.half_mask = Slot("ub", start, MASK_BITS_AT, event=-1)
        self.mask_bits = Slot("ub", start + MASK_BITS_AT, MASK_BITS_BYTES, event=-1)
        self.blocks = Slot("ub", start + LANES_BYTES, WIDE_BYTES - LANES_BYTES, event=-1)
        """A block a row."""
        self.row = builder.claim("ub", ROW_BYTES)

    def hand_out(self) -> None:
        """Raise the flags of buffers that not every tile uses, as if they had been read before.

        So all tiles find them in the same state, and share their programs.
        """
        for queue in (self.mask_in, self.small_out):
            slot = queue.alloc()
            queue.enque(slot)
            queue.free(queue.deque())


class State:
    """Maxima, sums, and factors of what came before, of the rows of two tiles.

    Where there are digits, also the largest magnitudes of *query* and of *weights*.
    """

    def __init__(
        self,
        builder: Builder,
        buffers: Buffers,
        rows: int,
        *,
        is_eightfold: bool,
        names: tuple[StateName, ...] = NAMES,
    ) -> None:
        """Claim room for *rows*: a block each, or a number each; of each of *names*."""
        self._builder, self._buffers, self._copies = builder, buffers, BLOCK if is_eightfold else 1
        nbytes = FLOAT32.nbytes(rows * self._copies)
        self._slots = {
            (name, index): builder.claim("ub", nbytes) for name in names for index in range(2)
        }

    def of(self, name: StateName, tile: int, row: int, rows: int) -> Local:
        """What rows [row, row + rows) of tile number *tile* have, as it is kept."""
        start = FLOAT32.nbytes(row * self._copies)
        return self._slots[name, tile % 2].of(FLOAT32, rows * self._copies, start)

    def kept(self, numbers: Local) -> Local:
        """*numbers* `(rows,)` as they are kept; in `blocks` if each of them is so eight times."""
        return numbers if self._copies == 1 else self._spread(numbers)

    def blocks(self, kept: Local) -> Local:
        """*kept* as a block a row, in `blocks` unless it is that already."""
        return self._spread(kept) if self._copies == 1 else kept

    def _spread(self, numbers: Local) -> Local:
        # (rows,) -> (rows, 8)
        blocks = self._buffers.blocks.of(FLOAT32, numbers.count * BLOCK)
        step(self._builder, Broadcast(blocks, numbers))
        return blocks
