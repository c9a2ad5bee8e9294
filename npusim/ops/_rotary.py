"""Vectors of a rotary embedding in a buffer, whose halves are processed separately."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npusim.isa import BLOCK_BYTES, REPEAT_BYTES, Local
from npusim.kernel import VectorCore, pieces


def columns_of_rows(plane: Local, width: int, columns: range) -> Iterator[Local]:
    """*columns* of all rows of *plane*, `(rows, width)`, at most a repeat's worth at a time.

    A repeat covers the columns of one row. Rows and *columns* begin and end at blocks.
    """
    dtype, rows = plane.dtype, plane.count // width
    for column, count in pieces(len(columns), REPEAT_BYTES * 8 // dtype.bits):
        yield replace(
            plane,
            offset_bytes=plane.offset_bytes + dtype.nbytes(columns.start + column),
            count=rows * count,
            repeat_stride=dtype.nbytes(width) // BLOCK_BYTES,
            repeat_blocks=dtype.nbytes(count) // BLOCK_BYTES,
        )


def half_of_rows(plane: Local, width: int, side: int) -> Iterator[Local]:
    """The left halves of all rows of *plane*, `(rows, width)`; with *side* 1 the right halves."""
    half = width // 2
    return columns_of_rows(plane, width, range(side * half, (side + 1) * half))


def exchange(core: VectorCore, dst: Local, src: Local, width: int) -> None:
    """Copy *src* `(rows, width)` to *dst*, with the halves of each row swapped."""
    with core.independent():
        for side in (0, 1):
            halves = half_of_rows(dst, width, side), half_of_rows(src, width, 1 - side)
            for to, of in zip(*halves, strict=True):
                core.copy(to, of)


def negate_left(core: VectorCore, plane: Local, width: int) -> None:
    """Negate the left halves of *plane*, `(rows, width)`, in place: those of sines."""
    with core.independent():
        for left in half_of_rows(plane, width, 0):
            core.mul(left, left, -1.0)
