"""Planes whose rows are multiplied by a number each, out of global memory."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up
from npusim.isa import Binary, Local
from npusim.kernel.builder import Builder
from npusim.kernel.plane import Plane, by_column, spread_rows
from npusim.kernel.views import GmView, load

__all__ = ["RowNumbers"]


class RowNumbers:
    """Buffers for the float32 numbers of up to *rows* rows."""

    def __init__(self, builder: Builder, rows: int) -> None:
        padded = align_up(rows, 8)
        self._builder = builder
        self._loaded = builder.queue("ub", FLOAT32.nbytes(padded), "mte2", "vector")
        self._blocks = builder.claim("ub", FLOAT32.nbytes(8 * padded))

    def multiply(self, plane: Plane, numbers: GmView) -> None:
        """`plane = plane * number of the row`, *numbers* `(rows,)`."""
        by_column(self._builder, "mul", plane, self._spread(numbers))

    def product(self, plane: Plane, numbers: GmView, vector: Local) -> None:
        """`plane = number of the row * vector`, `(rows,)` by `(columns,)`."""
        blocks = self._spread(numbers)
        for index in plane.pieces:
            along = plane.vector_piece(vector, index)
            beside = plane.blocks_piece(blocks, index, 1)
            self._builder.emit(Binary("mul", plane.piece(index), along, beside))
        self._builder.barrier("vector")

    def _spread(self, numbers: GmView) -> Local:
        """*numbers* `(rows,)`, a block of eight copies for each row."""
        builder, count = self._builder, align_up(numbers.columns, 8)
        slot = load(builder, self._loaded, numbers)
        # (rows,) -> (rows, 8)
        blocks = self._blocks.of(FLOAT32, 8 * count)
        spread_rows(builder, blocks, slot.of(FLOAT32, count))
        self._loaded.free(slot)
        return blocks
