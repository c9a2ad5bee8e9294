"""int8 by int8: exact sums, then words of the fixpipe or float scales."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._products import exact_int
from npusim.ops.npu_grouped_matmul.references.activations import activated
from npusim.ops.npu_grouped_matmul.references.numbers import Call, Numbers

__all__ = ["rows"]

F32 = np.float32


def rows(x: Array, numbers: Numbers, call: Call) -> Array:
    """*x* `(rows, k)` times the weight `(k, n)`, in the type of the output."""
    acc = exact_int(x, numbers.weight)
    late = None
    if numbers.bias is not None and numbers.bias.dtype == np.int32:
        acc = acc + numbers.bias
    elif numbers.bias is not None:
        late = numbers.bias.astype(F32)
    acc = np.clip(acc, -(2**31), 2**31 - 1).astype(np.int32)
    if numbers.scale is None:
        return acc
    with np.errstate(all="ignore"):
        if call.types.output.name == "int8":
            return _requantised(acc, numbers.scale)
        values = acc.astype(F32) * numbers.scale.astype(F32)
        if numbers.per_token_scale is not None or call.act_type:
            # A zero of either sign becomes a positive one here.
            values = values + F32(0)
        if numbers.per_token_scale is not None:
            values = values * numbers.per_token_scale[:, None]
        if late is not None:
            values = values + late
        return np.asarray(activated(values, call.act_type).astype(call.types.output.numpy))


def _requantised(acc: Array, words: Array) -> Array:
    """int8 of int32 sums by 64-bit *words*: 19 bits of a scale, nine of an offset."""
    bits = words.astype(np.int64)
    factor = (bits & 0xFFFFE000).astype(np.uint32).view(F32)
    point = ((bits << 18) >> 55).astype(np.int32)
    values = acc.astype(F32) * factor
    nine = np.rint(np.clip(np.where(np.isnan(values), 0, values), -256, 255)).astype(np.int32)
    return np.asarray(np.clip(nine + point, -128, 127).astype(np.int8))
