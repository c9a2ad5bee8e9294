"""Rows quantised by their largest magnitude: steps of several kernels, and the oracle's.

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
"""The quantised value of the largest magnitude of a row."""
INT4_PER_INT32 = 8


def output_of(
    contract: ops.Contract, x: Operand, target: DType, asked: str, remedy: str = "pad it"
) -> TensorSpec:
    """The output of *x* as *target*: int4, if *asked* says so, is packed eight to an int32."""
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


def fold_max(core: VectorCore, row: Local, *, rest_last: bool = False) -> Local:
    """Fold the largest elements of *row* `(width,)` into its first repeat, which is returned.

    The remainder after the last full repeat is folded first, or last with *rest_last*.
    """
    lanes = row.repeat_elements
    repeats, left = divmod(row.count, lanes)
    if repeats == 0:
        return row
    first = row[:lanes]
    for is_rest in (False, True) if rest_last else (True, False):
        if is_rest and left:
            core.max(row[:left], row[:left], row[repeats * lanes :])
        elif not is_rest and repeats > 1:
            core.fold("max", first, row[lanes : repeats * lanes])
    return first


def find_max(core: VectorCore, result: Local, row: Local) -> None:
    """Write the largest element of *row* `(width,)`, which is overwritten, to *result* `(1,)`.

    Like ReduceMaxInplace of the kernels (dynamic_quant_base.h:200-248).
    """
    core.whole_reduce("max", result, fold_max(core, row, rest_last=True))


def find_absmax(core: VectorCore, result: Local, work: Local, values: Local) -> None:
    """Write the largest magnitude of *values* `(width,)` to *result* `(1,)`, using *work*."""
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
    """Compute `largest / absmax` on the vector pipe, its first element into register `factor`.

    Returns the tile of *factors*, from the vector pipe to the scalar unit, which the caller frees.
    """
    core.emit(Binary("div", factors.alloc(), largest, absmax))
    factors.enque(factors.only)
    factor = factors.deque()
    core.get_value("factor", factor[:1])
    return factor


def fold_rows(core: VectorCore, plane: Local, rows: int) -> Local:
    """Fold the largest elements of each row of fp32 or fp16 *plane* into its first repeat.

    Returns those, `(rows, lanes)`. *plane* is overwritten.
    """
    columns, lanes = plane.count // rows, plane.repeat_elements
    for row in range(rows):
        fold_max(core, plane[row * columns : (row + 1) * columns])
    pitch = plane.dtype.nbytes(columns) // BLOCK_BYTES
    return Local(plane.buffer, plane.offset_bytes, plane.dtype, rows * lanes, 1, pitch)


# ---- rounding ----


def round_by_int16(core: VectorCore, values: Local, dst: Local | None = None) -> Local:
    """*values* as integers in fp16, ties to even, through int16 in place.

    The result is at the address of *dst*, or of *values* itself.
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
