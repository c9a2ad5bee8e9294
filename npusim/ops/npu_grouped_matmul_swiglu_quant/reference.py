"""npu_grouped_matmul_swiglu_quant on whole arrays in plain numpy: the oracle for tiled runs."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._int4_matmul import digit_sums, unpacked
from npusim.ops._oracle import Given
from npusim.ops._products import exact_int

__all__ = ["oracle"]

F32 = np.float32


def oracle(given: Given) -> tuple[Array, Array, Array]:
    """int8 `(m, n / 2)`, scales `(m,)` and an offset that no kernel makes, `()`.

    weight `(e, k, n)` is in any layout; int32 holds eight int4. Rows that no group has, and the
    offset, are zero.
    """
    x, bias, weight_scale = given.x, given.bias, given.weight_scale
    whole = np.asarray(given.weight)
    if whole.dtype == np.int32:
        whole = unpacked(whole)
    y = np.zeros((x.shape[0], whole.shape[2] // 2), np.int8)
    scales, start = np.zeros(x.shape[0], F32), 0
    for expert, end in enumerate(given.group_list.tolist()):
        rows = slice(start, end)
        if end > start:
            tokens = given.x_scale[rows, None]
            with np.errstate(all="ignore"):
                if bias is None:
                    acc = exact_int(x[rows], whole[expert]).astype(F32)
                    values = (acc * tokens) * weight_scale[expert].astype(F32)
                else:
                    sums = digit_sums(x[rows], whole[expert], weight_scale[expert])
                    values = (sums + bias[expert]) * tokens
                y[rows], scales[rows] = _quantised(values)
        start = end
    return y, scales, np.zeros((), F32)


def _quantised(values: Array) -> tuple[Array, Array]:
    """Rows of fp32 as int8 of half as many columns, and their scales."""
    with np.errstate(all="ignore"):
        a, b = np.split(values, 2, axis=1)
        below = np.exp((a * F32(-1)).astype(np.float64)).astype(F32) + F32(1)
        s = b * (a / below)
        scale = np.abs(s).max(axis=1) / F32(127)
        half = (s * (F32(1) / scale)[:, None]).astype(np.float16)
        whole = np.rint(np.where(np.isnan(half), 0, half).astype(F32))
        return np.clip(whole, -128, 127).astype(np.int8), scale
