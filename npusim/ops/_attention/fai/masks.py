"""The mask of a tile in FAI: a piece of the stencil, added to scores as -3e38 where it is one.

The stencil has ones above its diagonal. A tile takes the piece whose diagonal is its own, from the
last 32 columns that begin before it on.

Sources: see :mod:`npusim.ops._attention.fai` (epilogue/block).
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8
from npusim.data.integers import align_up
from npusim.isa import BinaryScalar, Cast, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.kernel.views import GmView
from npusim.ops._attention.fai.numbers import Rows, combine
from npusim.ops._attention.fai.places import Places
from npusim.ops._attention.fai.tasks import Part, Tile

__all__ = ["HIDDEN", "MaskRows", "first_masked"]

HIDDEN = -3e38
"""What is added to a score that is hidden."""
COLUMN_UNIT = 32
"""Columns of the mask are taken from a multiple of so many on, and as many."""
HALF_BYTES = 16384
"""Of the mask in fp16."""


class MaskRows:
    """Loads the rows of the mask that belong to rows of scores, and adds them."""

    def __init__(self, builder: Builder, places: Places, wide: Slot) -> None:
        """*wide* has room for the mask in fp32; it must be free whenever `add` is called."""
        self._builder, self._places, self._wide = builder, places, wide
        self._queue = builder.queue("ub", HALF_BYTES, "mte2", "vector")

    def view(self, part: Part, tile: Tile) -> GmView:
        """The piece of the stencil for the tokens of *part* in *tile*, `(tokens, columns)`."""
        assert tile.diagonal is not None
        columns = align_up(tile.keys - first_masked(tile), COLUMN_UNIT)
        # The first row sees `diagonal` keys: row i of the stencil has its first one at i + 1.
        shift = tile.diagonal - 1 - first_masked(tile)
        top, left = max(0, shift) + part.token, max(0, -shift)
        return self._places.mask[top : top + part.tokens, left : left + columns]

    def load(self, mask: GmView, row: int, rows: int) -> None:
        """The *mask* of *rows* from *row* on; rows are tokens of one head, then of the next."""
        slot, pitch = self._queue.alloc(), mask.columns
        for first, token, count in _segments(mask.rows, row, rows):
            dst = slot.of(UINT8, count * pitch, HALF_BYTES // 2 + first * pitch)
            self._builder.load(dst, mask[token : token + count, :].operand, pitch)
        self._queue.enque(slot)

    def add(self, plane: Rows, first: int, pitch: int) -> None:
        """Add what `load` has loaded, *pitch* columns, to the scores *plane* from *first* on."""
        builder = self._builder
        slot = self._queue.deque()
        count = plane.rows * pitch
        half, wide = slot.of(FLOAT16, count), self._wide.of(FLOAT32, count)
        # 0 or 1: uint8 -> fp16 -> fp32
        step(builder, Cast(half, slot.of(UINT8, count, HALF_BYTES // 2), "none"))
        # What has been stored from there has left.
        builder.sync("mte3", "vector")
        step(builder, Cast(wide, half, "none"))
        self._queue.free(slot)
        step(builder, BinaryScalar("mul", wide, wide, HIDDEN))
        number = Local(wide.buffer, wide.offset_bytes, FLOAT32, 1)
        combine(
            builder, "add", plane, first, Rows(number, plane.rows, plane.columns - first, pitch)
        )


def first_masked(tile: Tile) -> int:
    """The key of *tile* from which on the mask is added."""
    assert tile.diagonal is not None
    return max(0, tile.diagonal - 1) // COLUMN_UNIT * COLUMN_UNIT


def _segments(tokens: int, row: int, rows: int) -> list[tuple[int, int, int]]:
    """Rows [row, row + rows) by head of so many *tokens*: the first, its token, how many."""
    found = []
    done = 0
    while done < rows:
        token = (row + done) % tokens
        count = min(tokens - token, rows - done)
        found.append((done, token, count))
        done += count
    return found
