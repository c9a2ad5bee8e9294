"""Products of whole matrices in plain numpy (stand-in)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from npusim.dtypes import Array

__all__ = ["cube_product", "exact_int"]


def exact_int(a: Array, b: Array) -> Array:
    """`(..., m, k) @ (..., k, n)` of integers, exact, int64."""
    return np.asarray(a.astype(np.int64) @ b.astype(np.int64))


def cube_product(
    a: Array,
    b: Array,
    bias: Array | None = None,
    order: Literal["k16", "k8", "k4", "k1"] = "k16",
) -> Array:
    """`(..., m, k) @ (..., k, n)` of fp16 or bf16, float32."""
    width = int(order[1:])
    x, y = a.astype(np.float64), b.astype(np.float64)
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    total = np.zeros(shape, np.float32)
    if bias is not None:
        total = total + bias.astype(np.float32)
    with np.errstate(all="ignore"):
        for first in range(0, a.shape[-1], width):
            part = slice(first, first + width)
            total = (total + x[..., part] @ y[..., part, :]).astype(np.float32)
    return np.asarray(total)
