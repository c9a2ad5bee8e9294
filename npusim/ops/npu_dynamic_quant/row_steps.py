"""What the kernels of npu_dynamic_quant have in common: their buffers, and steps that rows take."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT16, INT16
from npusim.isa import (
    REPEAT_BYTES,
    Binary,
    Cast,
    Copy,
    Fold,
    Global,
    Local,
    Unary,
    WholeReduce,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.kernel.views import GmView

__all__ = [
    "FLOATS_PER_BLOCK",
    "FLOAT_LANES",
    "burst",
    "everywhere",
    "find_absmax",
    "float_bits",
    "fold",
    "lanes_of",
    "repeat_block",
    "round_by_int16",
]

FLOATS_PER_BLOCK, FLOAT_LANES = 8, 64
"""fp32 numbers in a block of 32 bytes, and in a repeat."""


def lanes_of(local: Local) -> int:
    """Elements of *local* in a repeat."""
    return REPEAT_BYTES * 8 // local.dtype.bits


def float_bits(number: float) -> int:
    """The bits of *number* in fp32, as the scalar unit reads it."""
    return int(np.float32(number).view(np.uint32))


def burst(view: GmView) -> Global:
    """All of *view*, whose rows follow each other in global memory, as one burst."""
    return Global(view.name, view.offset_bytes, view.nbytes)


def everywhere(block: Local, count: int) -> Local:
    """The numbers of *block*, 32 bytes, again and again: *count* elements in whole repeats."""
    return Local(block.buffer, block.offset_bytes, block.dtype, count, 0, 0)


# ---- the largest number of a row ----


def fold(builder: Builder, row: Local) -> Local:
    """Bring the largest numbers of *row* `(width,)` into its first repeat, which is returned."""
    lanes = lanes_of(row)
    repeats, left = divmod(row.count, lanes)
    if repeats == 0:
        return row
    first = row.at(0, lanes)
    if left:
        head, tail = row.at(0, left), row.at(repeats * lanes, left)
        step(builder, Binary("max", head, head, tail))
    if repeats > 1:
        step(builder, Fold("max", first, row.at(lanes, (repeats - 1) * lanes)))
    return first


def find_absmax(builder: Builder, result: Local, work: Local, values: Local) -> None:
    """The largest magnitude of *values* `(width,)` to *result* `(1,)`, by way of *work*."""
    step(builder, Unary("abs", work, values))
    step(builder, WholeReduce("max", result, fold(builder, work)))


# ---- one number for many elements ----


def repeat_block(builder: Builder, dst: Local, block: Local) -> None:
    """Fill the row *dst* `(width,)` with the numbers of *block*, again and again.

    The kernels fill all rows with one Copy, whose mask counts the elements of a row; a Copy a row
    without a barrier between them takes as long.
    """
    lanes = lanes_of(dst)
    whole = dst.count // lanes * lanes
    for part in (dst.at(0, whole), dst.at(whole, dst.count - whole)):
        if part.count:
            builder.emit(Copy(part, everywhere(block, part.count)))


# ---- fp32 to integers ----


def round_by_int16(builder: Builder, values: Local, where: Slot | None = None) -> Local:
    """*values* as integers in fp16, ties to even, by way of int16 in their place.

    The result lies in *where*, or in the place of *values* too.
    """
    count, start = values.count, where or values
    whole = Local(values.buffer, values.offset_bytes, INT16, count)
    halves = Local(start.buffer, start.offset_bytes, FLOAT16, count)
    step(builder, Cast(whole, values, "rint"))
    step(builder, Cast(halves, whole, "round"))
    return halves
