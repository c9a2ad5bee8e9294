"""Matrices of one type of floats: the cube's sums, rounded once."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._products import cube_product
from npusim.ops.npu_grouped_matmul.references.numbers import Call, Numbers

__all__ = ["rows"]


def rows(x: Array, numbers: Numbers, call: Call) -> Array:
    """*x* `(rows, k)` times the weight `(k, n)` plus the bias `(n,)`, in the type of the output."""
    total = cube_product(x, numbers.weight, numbers.bias, call.order)
    if call.spec is not None and call.spec.half_overflow == "saturate":
        largest = np.finfo(np.float16).max
        total = np.clip(np.where(np.isnan(total), 0, total), -largest, largest)
    with np.errstate(over="ignore"):
        return np.asarray(total.astype(call.types.output.numpy))
