"""The mask of a tile in FAI: a piece of the stencil, added to scores as -3e38 where it is one.

The stencil has ones above its diagonal. A tile takes the piece whose diagonal is its own, from the
last 32 columns that begin before it on. Of a band, whose rows do not see the first keys either, the
zeros of another piece hide.

Sources: see :mod:`npusim.ops._attention.fai` (epilogue/block). Assumed: how the zeros come to hide.
"""

from __future__ import annotations

from dataclasses import dataclass

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

__all__ = ["HIDDEN", "MaskRows", "Masked"]

HIDDEN = -3e38
"""What is added to a score that is hidden."""
COLUMN_UNIT = 32
"""Columns of the mask are taken from a multiple of so many on, and as many."""
HALF_BYTES = 16384
"""Of the mask in fp16."""


@dataclass(frozen=True, slots=True)
class Masked:
    """Keys of a tile of which some are hidden, along a diagonal."""

    first: int
    """The mask is added from this key on."""
    view: GmView
    """The piece of the stencil for the tokens of a core, `(tokens, columns)`."""
    keys: int
    """As many of its columns are added."""
    is_start: bool
    """Whether zeros hide, those before a diagonal, and not ones."""


class MaskRows:
    """Loads the rows of the mask that belong to rows of scores, and adds them."""

    def __init__(self, builder: Builder, places: Places, wide: Slot) -> None:
        """*wide* has room for the mask in fp32; it must be free whenever `add` is called."""
        self._builder, self._places, self._wide = builder, places, wide
        self._queue = builder.queue("ub", HALF_BYTES, "mte2", "vector")

    def of_tile(self, part: Part, tile: Tile) -> list[Masked]:
        """What is hidden of *tile* from the tokens of *part*: at its end, and at its start."""
        found = []
        if tile.diagonal is not None:
            first = max(0, tile.diagonal - 1) // COLUMN_UNIT * COLUMN_UNIT
            view = self._view(part, tile.diagonal, first, tile.keys - first)
            found.append(Masked(first, view, tile.keys - first, is_start=False))
        if tile.start_diagonal is not None:
            keys = min(tile.keys, tile.start_diagonal + part.token + part.tokens - 1)
            if keys > 0:
                view = self._view(part, tile.start_diagonal, 0, keys)
                found.append(Masked(0, view, keys, is_start=True))
        return found

    def _view(self, part: Part, diagonal: int, first: int, keys: int) -> GmView:
        """The piece whose first row has zeros before key *diagonal*; it begins at key *first*."""
        # Row i of the stencil has its first one at i + 1.
        shift = diagonal - 1 - first
        top, left = max(0, shift) + part.token, max(0, -shift)
        columns = align_up(keys, COLUMN_UNIT)
        return self._places.mask[top : top + part.tokens, left : left + columns]

    def load(self, mask: GmView, row: int, rows: int) -> None:
        """The *mask* of *rows* from *row* on; rows are tokens of one head, then of the next."""
        slot, pitch = self._queue.alloc(), mask.columns
        for first, token, count in _segments(mask.rows, row, rows):
            dst = slot.of(UINT8, count * pitch, HALF_BYTES // 2 + first * pitch)
            self._builder.data_copy(dst, mask[token : token + count, :].operand, pitch)
        self._queue.enque(slot)

    def add(self, plane: Rows, mask: Masked) -> None:
        """Add what `load` has loaded of *mask* to the scores *plane*."""
        builder, pitch = self._builder, mask.view.columns
        slot = self._queue.deque()
        count = plane.rows * pitch
        half, wide = slot.of(FLOAT16, count), self._wide.of(FLOAT32, count)
        # 0 or 1: uint8 -> fp16 -> fp32
        step(builder, Cast(half, slot.of(UINT8, count, HALF_BYTES // 2), "none"))
        # What has been stored from there has left.
        builder.sync("mte3", "vector")
        step(builder, Cast(wide, half, "none"))
        self._queue.free(slot)
        if mask.is_start:
            # 1 where the stencil has 0
            step(builder, BinaryScalar("mul", wide, wide, -1.0))
            step(builder, BinaryScalar("add", wide, wide, 1.0))
        step(builder, BinaryScalar("mul", wide, wide, HIDDEN))
        number = Local(wide.buffer, wide.offset_bytes, FLOAT32, 1)
        rows = Rows(number, plane.rows, mask.keys, pitch)
        combine(builder, "add", plane, mask.first, rows)


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
