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
from npusim.ops._attention.fai.numbers import Rows, combine
from npusim.ops._attention.fai.places import Places
from npusim.ops._attention.fai.tasks import Part

__all__ = ["HIDDEN", "MaskRows"]

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

    @staticmethod
    def columns(diagonal: int, columns: int) -> int:
        """Columns of the mask for a tile of so many, see :class:`~.tasks.Tile`."""
        return align_up(columns - _first(diagonal), COLUMN_UNIT)

    def load(self, part: Part, row: int, rows: int, diagonal: int, columns: int) -> None:
        """The mask of *rows* from *row* of *part* on, for a tile of so many *columns*."""
        slot = self._queue.alloc()
        pitch = self.columns(diagonal, columns)
        # The first row sees `diagonal` keys: row i of the stencil has its first one at i + 1.
        shift = diagonal - 1 - _first(diagonal)
        top, left = max(0, shift), max(0, -shift)
        for first, token, count in _segments(part, row, rows):
            here = top + part.token + token
            view = self._places.mask[here : here + count, left : left + pitch]
            dst = slot.of(UINT8, count * pitch, HALF_BYTES // 2 + first * pitch)
            self._builder.load(dst, view.operand, pitch)
        self._queue.enque(slot)

    def add(self, plane: Rows, diagonal: int) -> None:
        """Add what `load` has loaded to the scores *plane*."""
        builder = self._builder
        first, pitch = _first(diagonal), self.columns(diagonal, plane.columns)
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


def _first(diagonal: int) -> int:
    """The column of the tile from which on the mask is added."""
    return max(0, diagonal - 1) // COLUMN_UNIT * COLUMN_UNIT


def _segments(part: Part, row: int, rows: int) -> list[tuple[int, int, int]]:
    """Rows [row, row + rows) of *part* by head: the first, its token, how many."""
    found = []
    done = 0
    while done < rows:
        token = (row + done) % part.tokens
        count = min(part.tokens - token, rows - done)
        found.append((done, token, count))
        done += count
    return found
