"""Broadcast a row, or one value per row, to all rows of a plane in the unified buffer (BroadCast).

Sources: asc-devkit@82b89a1, DK impl/adv_api/detail/pad/broadcast, broadcast_common_utils.h for a
row, broadcast_v220_impl.h for one value per row.
"""

from __future__ import annotations

from npusim.data.dtypes import INT16
from npusim.data.integers import align_up
from npusim.isa import BLOCK_BYTES, FLOATS_PER_BLOCK, Local
from npusim.kernel.rows import pieces
from npusim.kernel.vector_core import VectorCore

__all__ = ["broadcast_numbers", "broadcast_row", "repeat_block", "repeat_row", "spread_numbers"]

__kernel_vocabulary__ = True

ROWS_OF_AN_OR, MAX_STRIDE_BLOCKS = 8, 255
"""An Or fills up to 8 rows, fewer if they exceed a stride (broadcast_common_utils.h:129)."""


def broadcast_row(core: VectorCore, plane: Local, row: Local, zeros: Local) -> None:
    """Copy fp32 *row* to each row of *plane*; *row* may be its first row, *zeros* has one block.

    An Or with zeros copies 16-bit words. A repeat is one block of up to eight rows, with the pitch
    of the rows as its stride, or a long row. The vendor's code also writes the first row over
    itself, with the same bytes that the next Or may be reading; here the first row is not written.
    """
    row_blocks, zero = row.nbytes // BLOCK_BYTES, zeros.as_dtype(INT16)[: BLOCK_BYTES // 2]
    first = int(row.offset_bytes == plane.offset_bytes)
    core.duplicate(zero, 0)
    together = ROWS_OF_AN_OR if row_blocks < MAX_STRIDE_BLOCKS else 1
    with core.independent():
        for start, rows in pieces(plane.count // row.count - first, together):
            offset_bytes = plane.offset_bytes + (first + start) * row.nbytes
            words = rows * row.nbytes // 2
            if together == 1:
                to = Local(plane.buffer, offset_bytes, INT16, words)
                core.bitwise("or", to, row.as_dtype(INT16), zero.again(words))
                continue
            to, here, nothing = (
                Local(tile.buffer, offset, INT16, words, block_stride, repeat_stride, rows)
                for tile, offset, block_stride, repeat_stride in (
                    (plane, offset_bytes, row_blocks, 1),
                    (row, row.offset_bytes, 0, 1),
                    (zero, zero.offset_bytes, 0, 0),
                )
            )
            core.bitwise("or", to, here, nothing)


def broadcast_numbers(core: VectorCore, plane: Local, numbers: Local, blocks: Local) -> None:
    """Copy each of fp32 *numbers* `(rows,)` to its row of *plane*; a single one by the scalar unit.

    *blocks* has room for eight copies of each value, the rows rounded up to a multiple of eight.
    """
    if numbers.count > 1:
        spread_numbers(core, plane, numbers, blocks)
        return
    core.sync("vector", "scalar")
    core.get_value("number", numbers)
    core.sync("scalar", "vector")
    core.duplicate(plane, "number")


def spread_numbers(core: VectorCore, plane: Local, numbers: Local, blocks: Local) -> None:
    """Copy each of fp32 *numbers* `(rows,)` to its row of *plane* `(rows, columns)`.

    *blocks* has room for eight copies of each value; Brcb reads eight at a time, past the end.
    """
    rows, columns = numbers.count, plane.count // numbers.count
    eights = align_up(rows, FLOATS_PER_BLOCK)
    # (rows,) -> (rows, 8) -> (rows, columns)
    spread = blocks.as_dtype(blocks.dtype, eights * FLOATS_PER_BLOCK)
    core.brcb(spread, numbers.as_dtype(numbers.dtype, eights))
    with core.independent():
        for row in range(rows):
            block = blocks[row * FLOATS_PER_BLOCK : (row + 1) * FLOATS_PER_BLOCK]
            repeat_block(core, plane[row * columns : (row + 1) * columns], block)


def repeat_block(core: VectorCore, dst: Local, block: Local) -> None:
    """Fill the row *dst* `(width,)` with repetitions of *block*.

    The kernels fill all rows with one Copy, whose mask counts the elements of a row; one Copy per
    row in an ``independent()`` block takes as long.
    """
    whole = dst.count // dst.repeat_elements * dst.repeat_elements
    with core.independent():
        for part in (dst[:whole], dst[whole:]):
            if part.count:
                core.copy(part, block.again(part.count))


def repeat_row(core: VectorCore, plane: Local, row: Local) -> None:
    """Copy *row* `(columns,)` to each row of *plane* `(rows, columns)`: one Copy takes as long."""
    with core.independent():
        for first in range(0, plane.count, row.count):
            core.copy(plane[first : first + row.count], row)
