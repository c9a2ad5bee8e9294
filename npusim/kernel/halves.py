"""Rows in a buffer whose halves take part one by one, as vectors of a rotary embedding do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npusim.isa import BLOCK_BYTES, REPEAT_BYTES, Copy, Local
from npusim.kernel.builder import Builder
from npusim.kernel.rows import pieces

__all__ = ["columns_of_rows", "exchange", "half_of_rows"]

__kernel_vocabulary__ = True


def columns_of_rows(plane: Local, width: int, columns: range) -> Iterator[Local]:
    """*columns* of all rows of *plane*, `(rows, width)`, as much at a time as a repeat takes.

    A repeat is what one row has of them. Rows and *columns* begin and end at blocks.
    """
    bits = plane.dtype.bits
    rows = plane.count // width
    for column, count in pieces(len(columns), REPEAT_BYTES * 8 // bits):
        yield replace(
            plane,
            offset_bytes=plane.offset_bytes + plane.dtype.nbytes(columns.start + column),
            count=rows * count,
            repeat_stride=plane.dtype.nbytes(width) // BLOCK_BYTES,
            repeat_blocks=plane.dtype.nbytes(count) // BLOCK_BYTES,
        )


def half_of_rows(plane: Local, width: int, side: int) -> Iterator[Local]:
    """The left halves of all rows of *plane*, `(rows, width)`, or with *side* 1 the right ones."""
    half = width // 2
    return columns_of_rows(plane, width, range(side * half, (side + 1) * half))


def exchange(builder: Builder, dst: Local, src: Local, width: int) -> None:
    """*src* `(rows, width)` to *dst*, with the halves of each row in each other's place.

    A barrier follows.
    """
    for side in (0, 1):
        halves = half_of_rows(dst, width, side), half_of_rows(src, width, 1 - side)
        for to, of in zip(*halves, strict=True):
            builder.emit(Copy(to, of))
    builder.barrier("vector")
