"""The two orders in which the vendor's kernels add up a row of fp32, as micro-ops.

Both end in WholeReduceSum over 64 lanes, a tree of neighbours. ``oracle`` has the same in numpy.

ops-nn@e5c3fa9 norm/rms_norm/op_kernel/rms_norm_base.h and reduce_common.h.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import ceil_div
from npusim.isa import Binary, Duplicate, Fold, Local, WholeReduce
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step

__all__ = [
    "FLOATS_PER_BLOCK",
    "LANES",
    "every_row",
    "halve_into",
    "lanes_into",
    "lanes_of_row",
    "rows_into",
]

FLOATS_PER_BLOCK, LANES = 8, 64
"""fp32 numbers in a block of 32 bytes, and in a repeat."""


def lanes_into(builder: Builder, total: Local, lanes: Local, values: Local) -> None:
    """The sum of *values* `(n,)` to *total* `(1,)`, by way of 64 running sums in *lanes*."""
    lanes_of_row(builder, lanes, values)
    step(builder, WholeReduce("sum", total, lanes))


def lanes_of_row(builder: Builder, lanes: Local, values: Local) -> None:
    """64 running sums of *values* `(n,)` to *lanes*.

    One Add, whose repeats depend on each other; what is left of the row is added to the first
    lanes.
    """
    step(builder, Duplicate(lanes, 0.0))
    whole = values.count // LANES * LANES
    if whole:
        step(builder, Fold("add", lanes, values.at(0, whole)))
    if left := values.count - whole:
        head = lanes.at(0, left)
        step(builder, Binary("add", head, values.at(whole, left), head))


def rows_into(builder: Builder, totals: Local, lanes: Local, plane: Local, columns: int) -> None:
    """The sums of the first *columns* of each row of *plane* to *totals* `(rows,)`.

    *plane* is `(rows, pitch)`, *lanes* `(rows, 64)`. An Add takes 64 columns of all rows, so that
    none of its repeats waits for another; what fills the last block of a row up must be 0.
    """
    rows = totals.count
    pitch = plane.count // rows
    step(builder, Duplicate(lanes, 0.0))
    for start in range(0, columns, LANES):
        width = min(LANES, columns - start)
        sums = every_row(lanes, LANES, 0, width, rows)
        step(builder, Binary("add", sums, every_row(plane, pitch, start, width, rows), sums))
    step(builder, WholeReduce("sum", totals, lanes))


def halve_into(builder: Builder, total: Local, values: Local) -> None:
    """The sum of *values* `(n,)` to *total* `(1,)`; *values* is overwritten.

    What lies behind the largest power of two goes onto the first numbers, then the upper half onto
    the lower one until 64 are left: an Add each, and a barrier behind it.
    """
    if values.count > LANES:
        half = 1 << (values.count.bit_length() - 1)
        if left := values.count - half:
            _onto(builder, values.at(0, left), values.at(half, left))
        while half > LANES:
            half //= 2
            _onto(builder, values.at(0, half), values.at(half, half))
    step(builder, WholeReduce("sum", total, values.at(0, min(values.count, LANES))))


def _onto(builder: Builder, dst: Local, other: Local) -> None:
    step(builder, Binary("add", dst, dst, other))


def every_row(plane: Local, pitch: int, start: int, columns: int, rows: int) -> Local:
    """*columns*, at most 64, from column *start* on, of all *rows* of *plane*: a row a repeat.

    They are filled up to whole blocks. *pitch* is how many numbers a row of *plane* has; 0 reads
    the same row in every repeat.
    """
    offset = plane.offset_bytes + FLOAT32.nbytes(start)
    blocks, stride = ceil_div(columns, FLOATS_PER_BLOCK), pitch // FLOATS_PER_BLOCK
    count = rows * blocks * FLOATS_PER_BLOCK
    return Local(plane.buffer, offset, FLOAT32, count, 1, stride, blocks)
