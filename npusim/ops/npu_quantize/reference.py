"""npu_quantize on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._oracle import Given

__all__ = ["oracle"]


def oracle(given: Given) -> Array:
    """Quantise input on whole arrays.

    input has any shape, scales one element or as many as the scaled dimension; the result has the
    shape of input, with 'quint4x2' one int32 for eight elements of the last dimension.
    """
    tensor, scales, zero_points = given.input, given.scales, given.zero_points
    axis, div_mode, dtype = given.axis, given.div_mode, given.dtype
    if div_mode:
        position = axis % tensor.ndim if scales.size > 1 else 0
    else:
        position = tensor.ndim - 2 if axis == -2 else tensor.ndim - 1
    along = [1] * tensor.ndim
    along[position] = -1
    x, s = tensor.astype(np.float32), scales.astype(np.float32).reshape(along)
    with np.errstate(all="ignore"):
        values = x / s if div_mode else x * s
        if zero_points is not None:
            values = values + zero_points.astype(np.float32).reshape(along)
    low, high, kind = {
        "qint8": (-128, 127, np.int8),
        "quint8": (0, 255, np.uint8),
        "int32": (-(2**31), 2**31 - 1, np.int32),
        "qint32": (-(2**31), 2**31 - 1, np.int32),
        "quint4x2": (-8, 7, np.int8),
    }[dtype]
    # int32 limits are no float32 numbers, so they are applied as float64.
    exact = np.rint(values).astype(np.float64 if kind is np.int32 else np.float32)
    whole = np.clip(np.where(np.isnan(exact), 0, exact), low, high).astype(kind)
    if dtype != "quint4x2":
        return whole
    nibbles = whole.reshape(*whole.shape[:-1], -1, 8).astype(np.uint32) & 0xF
    packed: Array = (nibbles << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    return packed.view(np.int32)
