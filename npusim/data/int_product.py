"""Integer products of the cube, exact through float32 BLAS on blocks of k that cannot round."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import FLOAT32, INT4, INT8, Array, DType, dtype_of

__all__ = ["accumulate_int", "int_product", "product_shape"]

Single = NDArray[np.float32]
Wide = NDArray[np.int32] | NDArray[np.int64]


def product_shape(who: str, a: Array, b: Array, accepted: tuple[DType, ...]) -> tuple[int, ...]:
    """The shape of ``a @ b``; raises TypeError on a dtype, ValueError on shapes that do not fit."""
    for name, operand in (("a", a), ("b", b)):
        if dtype_of(operand) not in accepted:
            names = ", ".join(dtype.name for dtype in accepted)
            raise TypeError(
                f"{who}: {name} must be one of {names}, not {operand.dtype}; convert it first"
            )
    try:
        if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
            raise ValueError
        return (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    except ValueError:
        raise ValueError(
            f"{who}: a and b must be (..., m, k) and (..., k, n), not {a.shape} and {b.shape}; "
            "transpose or cut one of them"
        ) from None


# |a * b| <= 128 * 128 = 2^14, and fp32 holds every integer up to 2^24: in whatever order they are
# added, each partial sum of 1024 products is exact.
_INT_BLOCK = 1024
# The sum of 2^17 - 1 products is at most 2^31 - 2^14, and so is every partial sum: int32 holds it.
_INT32_K = 2**17 - 1
_INT_ROWS = 512


def int_product(a: Array, b: Array) -> Wide:
    """The exact product `(..., m, n)` of *a* `(..., m, k)` and *b* `(..., k, n)`.

    Operands are int8, int4, or float32 with int8 values, which avoids the conversion. The result is
    int32, or int64 for k beyond 131071. Raises TypeError or ValueError on other operands.
    """
    shape = product_shape("product.int_product", a, b, (INT8, INT4, FLOAT32))
    k = a.shape[-1]
    total = np.empty(shape, np.int32 if k <= _INT32_K else np.int64)
    a, b = a.astype(np.float32, copy=False), b.astype(np.float32, copy=False)
    if b.ndim == 2:
        _fill_int_product(a.reshape(math.prod(shape[:-1]), k), b, total.reshape(-1, shape[-1]))
        return total
    a, b = np.broadcast_to(a, (*shape[:-1], k)), np.broadcast_to(b, (*shape[:-2], k, shape[-1]))
    for index in np.ndindex(shape[:-2]):
        _fill_int_product(a[index], b[index], total[index])
    return total


def _fill_int_product(a: Single, b: Single, total: Wide) -> None:
    k = a.shape[1]
    if k <= _INT_BLOCK:
        total[...] = a @ b
        return
    part = np.empty((min(len(a), _INT_ROWS), b.shape[1]), np.float32)
    whole = np.empty(part.shape, total.dtype)
    for row in range(0, len(a), _INT_ROWS):
        rows = slice(row, row + _INT_ROWS)
        out = total[rows]
        out[...] = np.matmul(a[rows, :_INT_BLOCK], b[:_INT_BLOCK], out=part[: len(out)])
        for start in range(_INT_BLOCK, k, _INT_BLOCK):
            ks = slice(start, start + _INT_BLOCK)
            whole[: len(out)] = np.matmul(a[rows, ks], b[ks], out=part[: len(out)])
            out += whole[: len(out)]


def accumulate_int(start: NDArray[np.int32], product: Wide) -> NDArray[np.int32]:
    """*start* plus *product*, saturated to int32 (asc-devkit, Mmad.md: integers only saturate).

    That page does not say whether single products or whole micro-ops saturate; here the sum does.
    """
    total = np.add(start, product, dtype=np.int64)
    return np.clip(total, -(2**31), 2**31 - 1, out=total).astype(np.int32)
