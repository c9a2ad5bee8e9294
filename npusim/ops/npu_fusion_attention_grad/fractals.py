"""Matrices in the unified buffer as rows or fractals, and the copies that convert between them.

A fractal here is 16 columns of all rows; there is a gap of a block of 32 bytes between fractals, so
that those of a row do not meet in one bank.

Source: ops-transformer@c29bc10 attention/flash_attention_score_grad/op_kernel,
flash_attention_score_grad_s1s2_bn2gs1s2_sab.h (NZCopyIn, NZ2ND, ND2NZ).
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.data.dtypes import FLOAT16
from npusim.data.integers import ceil_div
from npusim.isa import Local
from npusim.kernel.vector_core import VectorCore

COLUMNS = 16
"""Columns of a fractal."""
REPEAT_BLOCKS = 8
BLOCK, HALF_BLOCK = 8, 16
"""float32, and elements of 16 bits, in a block."""


def wide_pitch(rows: int) -> int:
    """float32 from one fractal to the next, with this many *rows*."""
    return rows * COLUMNS + BLOCK


def half_pitch(rows: int) -> int:
    """Elements of 16 bits from one fractal to the next."""
    return (rows + 1) * COLUMNS


def to_rows(
    core: VectorCore, tile: Local, scratch: Local, rows: int, columns: int, pitch: int
) -> None:
    """Convert float32 of *tile* from fractals to rows *pitch* apart, using *scratch*."""
    count = ceil_div(columns, COLUMNS) * wide_pitch(rows)
    core.copy(scratch[:count], tile[:count])
    with core.independent():
        for block in range(COLUMNS // BLOCK):
            for first, blocks in _fractals(columns):
                size = rows * blocks * BLOCK
                place = first * COLUMNS + block * BLOCK
                dst = _strided(tile, place, size, (2, pitch // BLOCK, blocks))
                place = first * wide_pitch(rows) + block * BLOCK
                src = _strided(scratch, place, size, (2 * rows + 1, 2, blocks))
                core.copy(dst, src)


def to_fractals(
    core: VectorCore, tile: Local, scratch: Local, rows: int, columns: int, pitch: int
) -> None:
    """Convert 16 bits of *tile* from rows *pitch* apart to fractals, using *scratch*."""
    own, other = (x.as_dtype(FLOAT16, x.nbytes // 2) for x in (tile, scratch))
    core.copy(other[: rows * pitch], own[: rows * pitch])
    with core.independent():
        for first, blocks in _fractals(columns):
            size = rows * blocks * HALF_BLOCK
            dst = _strided(own, first * half_pitch(rows), size, (rows + 1, 1, blocks))
            strides = 1, pitch // HALF_BLOCK, blocks
            core.copy(dst, _strided(other, first * COLUMNS, size, strides))


def _fractals(columns: int) -> Iterator[tuple[int, int]]:
    """First fractal and fractal count of each instruction, a block of each in a repeat."""
    count = ceil_div(columns, COLUMNS)
    for first in range(0, count, REPEAT_BLOCKS):
        yield first, min(REPEAT_BLOCKS, count - first)


def _strided(tile: Local, first: int, count: int, strides: tuple[int, int, int]) -> Local:
    """*count* elements of *tile* from *first* on: strides of blocks, of repeats, and blocks."""
    offset = tile.offset_bytes + tile.dtype.nbytes(first)
    return Local(tile.buffer, offset, tile.dtype, count, *strides)
