"""Rows that are quantised by their largest magnitude: steps of several kernels, and the oracle's.

.. code-block:: text

    q = 127 / max|z|        of a row z; int4: 7 for 127
    y = fit(rint(z * q))    saturates, and turns NaN into 0
    scale = 1 / q           or max|z| * fp32(1 / 127): as the vendor's kernel computes it

Sources: ops-nn@e5c3fa9 quant/dynamic_quant and norm/add_rms_norm_dynamic_quant, op_kernel.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import INT16, Array
from npusim.data.tensor import Operand, TensorSpec
from npusim.isa import Binary
from npusim.kernel import (
    BLOCK_BYTES,
    FLOAT16,
    FLOATS_PER_BLOCK,
    INT4,
    INT8,
    DType,
    Local,
    Register,
    TileQueue,
    VectorCore,
)
from npusim.ops import _vocabulary as ops

LARGEST = {INT8: 127, INT4: 7}
"""What the largest magnitude of a row becomes."""
INT4_PER_INT32 = 8


def output_of(
    contract: ops.Contract, x: Operand, target: DType, asked: str, remedy: str = "pad it"
) -> TensorSpec:
    """What comes of *x* as *target*: int4, for which *asked* asks, is packed eight to an int32."""
    if target is not INT4:
        return TensorSpec(x.shape, target.name)
    *outer, columns = x.shape
    contract.require(
        columns % INT4_PER_INT32 == 0,
        f"the last dimension of {x.name} must be a multiple of {INT4_PER_INT32} with {asked}, not "
        f"{columns}; {remedy}",
    )
    return TensorSpec((*outer, columns // INT4_PER_INT32), "int32")


# ---- the largest magnitude of a row, and the factor ----


def fold_max(core: VectorCore, row: Local) -> Local:
    """Bring the largest elements of *row* `(width,)` into its first repeat, which is returned."""
    lanes = row.repeat_elements
    repeats, left = divmod(row.count, lanes)
    if repeats == 0:
        return row
    first = row[:lanes]
    if left:
        core.max(row[:left], row[:left], row[repeats * lanes :])
    if repeats > 1:
        core.fold("max", first, row[lanes : repeats * lanes])
    return first


def find_max(core: VectorCore, result: Local, row: Local) -> None:
    """The largest element of *row* `(width,)`, which is overwritten, to *result* `(1,)`."""
    core.whole_reduce("max", result, fold_max(core, row))


def find_absmax(core: VectorCore, result: Local, work: Local, values: Local) -> None:
    """The largest magnitude of *values* `(width,)` to *result* `(1,)`, by way of *work*."""
    core.abs(work, values)
    find_max(core, result, work)


def find_factor(core: VectorCore, absmax: Register, largest: int, scale: Local) -> None:
    """Divide on the scalar unit: `largest / absmax` to register `factor`, its inverse to *scale*.

    *scale* is `(1,)`. The scalar unit must have *absmax*, and the vector pipe must wait for it.
    """
    core.alu("f32_div", "factor", float(largest), absmax)
    core.alu("f32_div", "scale", 1.0, "factor")
    core.set_value(scale, "scale")


def read_quotient(core: VectorCore, factors: TileQueue, largest: Local, absmax: Local) -> Local:
    """`largest / absmax` by the vector pipe, its first element into register `factor`.

    Returns the tile of *factors*, from that pipe to the scalar unit, which the caller frees.
    """
    core.emit(Binary("div", factors.alloc(), largest, absmax))
    factors.enque(factors.only)
    factor = factors.deque()
    core.get_value("factor", factor[:1])
    return factor


def fold_rows(core: VectorCore, plane: Local, rows: int) -> Local:
    """Bring the largest elements of each row of fp32 or fp16 *plane* into its first repeat.

    Returns those, `(rows, lanes)`. *plane* is overwritten.
    """
    columns, lanes = plane.count // rows, plane.repeat_elements
    for row in range(rows):
        fold_max(core, plane[row * columns : (row + 1) * columns])
    pitch = plane.dtype.nbytes(columns) // BLOCK_BYTES
    return Local(plane.buffer, plane.offset_bytes, plane.dtype, rows * lanes, 1, pitch)


# ---- one number for many elements, and rounding ----


def repeat_block(core: VectorCore, dst: Local, block: Local) -> None:
    """Fill the row *dst* `(width,)` with the elements of *block*, again and again.

    The kernels fill all rows with one Copy, whose mask counts the elements of a row; a Copy a row
    in an ``independent()`` block takes as long.
    """
    whole = dst.count // dst.repeat_elements * dst.repeat_elements
    with core.independent():
        for part in (dst[:whole], dst[whole:]):
            if part.count:
                core.copy(part, block.again(part.count))


def repeat_row(core: VectorCore, plane: Local, row: Local) -> None:
    """*row* `(columns,)` to each row of *plane* `(rows, columns)`: one Copy takes as long."""
    with core.independent():
        for first in range(0, plane.count, row.count):
            core.copy(plane[first : first + row.count], row)


def spread_numbers(core: VectorCore, plane: Local, numbers: Local, blocks: Local) -> None:
    """Each of fp32 *numbers* `(rows,)` to its row of *plane* `(rows, columns)`.

    *blocks* has room for eight of each number.
    """
    columns = plane.count // numbers.count
    # (rows,) -> (rows, 8) -> (rows, columns)
    core.brcb(blocks[: numbers.count * FLOATS_PER_BLOCK], numbers)
    with core.independent():
        for row in range(numbers.count):
            block = blocks[row * FLOATS_PER_BLOCK : (row + 1) * FLOATS_PER_BLOCK]
            repeat_block(core, plane[row * columns : (row + 1) * columns], block)


def round_by_int16(core: VectorCore, values: Local, dst: Local | None = None) -> Local:
    """*values* as integers in fp16, ties to even, by way of int16 in their place.

    The result lies where *dst* does, or in the place of *values* too.
    """
    whole = values.as_dtype(INT16, values.count)
    halves = (dst or values).as_dtype(FLOAT16, values.count)
    core.cast(whole, values, "rint")
    core.cast(halves, whole, "round")
    return halves


# ---- the oracle ----


def clamped(values: Array, dtype: DType = INT8) -> Array:
    """fp32 *values* rounded to nearest even to fit *dtype*, int8 or int4; NaN gives 0."""
    whole = np.rint(np.where(np.isnan(values), np.float32(0), values))
    return np.clip(whole, -LARGEST[dtype] - 1, LARGEST[dtype]).astype(np.int8)


def packed(whole: Array) -> Array:
    """int4 elements `(..., columns)`, eight to an int32, the first in the lowest bits."""
    *outer, columns = whole.shape
    nibbles = whole.reshape(*outer, columns // INT4_PER_INT32, INT4_PER_INT32)
    places = np.arange(0, 32, 4, dtype=np.uint32)
    words: Array = ((nibbles.astype(np.uint32) & 0xF) << places).sum(-1, dtype=np.uint32)
    return words.view(np.int32)
