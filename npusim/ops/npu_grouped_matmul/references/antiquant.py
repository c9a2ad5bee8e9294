"""Weights of int8 or int4 by floats: dequantised, then multiplied."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.tensor import is_transposed
from npusim.ops._int4_matmul import unpacked
from npusim.ops._products import cube_product
from npusim.ops.npu_grouped_matmul.msd import takes_msd
from npusim.ops.npu_grouped_matmul.references import msd
from npusim.ops.npu_grouped_matmul.references.numbers import Call, Numbers

__all__ = ["rows"]

F32, F16 = np.float32, np.float16


def rows(x: Array, numbers: Numbers, call: Call) -> Array:
    """*x* `(rows, k)` times the weight `(k, n)` plus the bias `(n,)`, in the type of x."""
    if _takes_msd(call):
        return msd.rows(x, numbers, call)
    weight = numbers.weight
    if weight.dtype == np.int32:
        weight = unpacked(weight, is_transposed(call.weights[0]))
    k, n = weight.shape
    assert numbers.antiquant_scale is not None
    assert numbers.antiquant_offset is not None
    scale, offset = (
        np.repeat(each.reshape(-1, n), k // each.reshape(-1, n).shape[0], axis=0)
        for each in (numbers.antiquant_scale, numbers.antiquant_offset)
    )
    with np.errstate(all="ignore"):
        if x.dtype == F16:
            floats = (weight.astype(F16) + offset) * scale
        else:
            wide = (weight.astype(F32) + offset.astype(F32)) * scale.astype(F32)
            floats = wide.astype(x.dtype)
        total = cube_product(x, floats, numbers.bias, call.order)
        return np.asarray(total.astype(x.dtype))


def _takes_msd(call: Call) -> bool:
    if call.template is not None:
        return call.template == "msd"
    x, weight = call.xs[0], call.weights[0]
    if call.counts is None or len(weight.shape) != 3:
        return False
    experts, k, n = weight.shape
    is_int8 = np.asarray(weight).dtype == np.int8
    return takes_msd(experts, len(x), k, n, int8=is_int8, single=len(call.xs) == 1, of_rows=True)
