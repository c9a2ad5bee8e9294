"""Real numbers as digits of int8: what the cube multiplies in place of them.

.. code-block:: text

    x in [-1, 1];  d1 = away(127 x);  d2 = away((127 x - d1) * 254)
    x is about (d1 + d2 / 254) / 127

away() rounds to whole numbers, ties away from zero (ops-transformer@3a280bc
attention/incre_flash_attention/op_kernel/arch22, incre_flash_attention_preload.h).
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT8, INT32
from npusim.data.integers import align_up
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    BinaryOp,
    BinaryScalar,
    Broadcast,
    Cast,
    Copy,
    Duplicate,
    Local,
    Unary,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.kernel.views import GmView, load
from npusim.kernel.wide_plane import LANES, WidePlane, by_rows, reduce_rows
from npusim.ops._attention.fia.buffers import Buffers, State, StateName
from npusim.ops._attention.fia.places import joined

__all__ = ["COUNT", "FIRST", "NEXT", "Digits", "by_columns"]

COUNT = 2
"""Digits of a number."""
FIRST, NEXT = 127.0, 254.0
"""What a number is multiplied by before its first digit, and what is left before the next one."""
UNDO_FIRST, UNDO_NEXT = (float(np.float32(1) / np.float32(x)) for x in (FIRST, NEXT))
"""One over these, in fp32."""
BLOCK = 8
"""float32 in a data block."""
RAW_BYTES = 4096
"""Of the room for a mask: scales as they come; behind them as fp32."""


class Digits:
    """Writes what vector cores do with digits."""

    def __init__(self, builder: Builder, buffers: Buffers, state: State) -> None:
        """*state* keeps the largest magnitudes of rows."""
        self._builder, self._buffers, self._state = builder, buffers, state

    def scratch(self) -> Slot:
        """A slot for a plane between loads; free it."""
        queue = self._buffers.wide_in
        queue.enque(queue.alloc())
        return queue.deque()

    def stretch(
        self, plane: WidePlane, scratch: Slot, name: StateName, tile: int, row: int
    ) -> None:
        """Rows of *plane* to [-127, 127], each by its largest magnitude.

        That is kept in the state *name* of tile number *tile*, rows from *row* on.
        """
        builder, buffers, state = self._builder, self._buffers, self._state
        magnitudes = WidePlane(scratch, plane.rows, plane.columns, plane.pitch)
        step(builder, Unary("abs", magnitudes.whole, plane.whole))
        found = buffers.row.of(FLOAT32, plane.rows)
        reduce_rows(builder, "max", found, magnitudes, buffers.lanes)
        kept = state.kept(found)
        step(builder, Copy(state.of(name, tile, row, plane.rows), kept))
        # (rows, 8): 127 / largest
        blocks = state.blocks(kept)
        firsts = buffers.lanes.of(FLOAT32, blocks.count)
        step(builder, Duplicate(firsts, FIRST))
        step(builder, Binary("div", blocks, firsts, blocks))
        by_rows(builder, "mul", plane, blocks)

    def shrink(self, plane: WidePlane, name: StateName, tile: int, row: int) -> None:
        """`plane = plane x largest magnitude of the row`, see :meth:`stretch`."""
        kept = self._state.of(name, tile, row, plane.rows)
        by_rows(self._builder, "mul", plane, self._state.blocks(kept))

    def split(self, plane: WidePlane, scratch: Slot, view: GmView, digit_bytes: int) -> None:
        """Store the digits of *plane*, in [-127, 127], to *view* and *digit_bytes* behind it."""
        builder, buffers, whole = self._builder, self._buffers, plane.whole
        rounded = scratch.of(FLOAT32, whole.count)
        half = buffers.half_mask.of(FLOAT16, whole.count)
        out = buffers.wide_out.alloc()
        size = align_up(INT8.nbytes(whole.count), BLOCK_BYTES)
        for digit in range(COUNT):
            if digit:
                step(builder, Binary("sub", whole, whole, rounded))
                step(builder, BinaryScalar("mul", whole, whole, NEXT))
            step(builder, Cast(rounded, whole, "round"))
            # There is no cast from fp32 to int8: by way of fp16, exact for digits.
            step(builder, Cast(half, rounded, "none"))
            step(builder, Cast(out.of(INT8, whole.count, digit * size), half, "none"))
        buffers.wide_out.enque(out)
        out = buffers.wide_out.deque()
        for digit in range(COUNT):
            here = joined(view.shifted_to(view.offset_bytes + digit * digit_bytes))
            count = here.extent_bytes(plane.pitch)
            src = out.of(INT8, count, digit * size)
            builder.data_copy(here.operand, src, plane.pitch if here.rows > 1 else 0)
        buffers.wide_out.free(out)

    def combined(self, view: GmView, digit_bytes: int, pitch: int) -> WidePlane:
        """Products of digits `(rows, columns)`, the first at *view*, as those of real numbers.

        Rows of the plane are *pitch* apart; free its slot.
        """
        builder, queue = self._builder, self._buffers.wide_in
        found: WidePlane | None = None
        for digit in range(COUNT):
            here = joined(view.shifted_to(view.offset_bytes + digit * digit_bytes))
            slot = load(builder, queue, here, pitch=pitch)
            plane = WidePlane(slot, view.rows, view.columns, pitch)
            step(builder, Cast(plane.whole, slot.of(INT32, plane.whole.count), "none"))
            if found is None:
                found = plane
                continue
            step(builder, BinaryScalar("mul", plane.whole, plane.whole, UNDO_NEXT))
            step(builder, Binary("add", found.whole, found.whole, plane.whole))
            queue.free(slot)
        assert found is not None
        step(builder, BinaryScalar("mul", found.whole, found.whole, UNDO_FIRST))
        return found

    def scale(self, plane: WidePlane, view: GmView) -> None:
        """Multiply the columns of *plane* by *view*: a number for each, or one for all."""
        builder, queue = self._builder, self._buffers.mask_in
        is_wide = view.row_bytes > RAW_BYTES
        queue = self._buffers.wide_in if is_wide else queue
        slot = load(builder, queue, view)
        numbers = slot.of(view.dtype, view.columns)
        if view.dtype is not FLOAT32:
            numbers = slot.of(FLOAT32, view.columns, RAW_BYTES)
            step(builder, Cast(numbers, slot.of(view.dtype, view.columns), "none"))
        if view.columns == 1:
            self._scale_all(plane, numbers)
        else:
            by_columns(builder, "mul", plane, numbers)
        queue.free(slot)

    def _scale_all(self, plane: WidePlane, number: Local) -> None:
        # (1,) -> (8,), a block that all read
        block = self._buffers.blocks.of(FLOAT32, BLOCK)
        step(self._builder, Broadcast(block, number))
        count = plane.whole.count
        main = count // LANES * LANES
        for first, size in ((0, main), (main, count - main)):
            if size:
                same = Local(block.buffer, block.offset_bytes, FLOAT32, size, 0, 0)
                here = plane.row(0, first, size)
                self._builder.emit(Binary("mul", here, here, same))
        self._builder.barrier("vector")


def by_columns(builder: Builder, op: BinaryOp, plane: WidePlane, numbers: Local) -> None:
    """`plane = plane op number of the column`; *numbers* `(columns,)`."""
    if plane.by_row or plane.columns % LANES:
        for row in range(plane.rows):
            here = plane.row(row, 0, plane.columns)
            builder.emit(Binary(op, here, here, numbers))
    else:
        for first in range(0, plane.columns, LANES):
            here = plane.block(first, LANES)
            offset = numbers.offset_bytes + FLOAT32.nbytes(first)
            same = Local(numbers.buffer, offset, FLOAT32, plane.rows * LANES, 1, 0)
            builder.emit(Binary(op, here, here, same))
    builder.barrier("vector")
