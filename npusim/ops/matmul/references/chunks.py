"""Products whose k is cut: fp32 sums of chunks, added one after the other.

ops-nn@e5c3fa9 matmul/mat_mul_v3/op_kernel: mat_mul_sc_splitk_kernel.h,
mat_mul_deterministic_splitk_kernel.h. Each chunk's sum begins with zero, the first one's with the
bias; each addition is one of fp32, rounded to nearest even.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.product import CubeOrder
from npusim.ops._products import cube_product

__all__ = ["in_chunks", "in_runs"]


def in_chunks(
    a: Array, b: Array, bias: Array | None, order: CubeOrder, chunk_k: int, first_k: int = 0
) -> Array:
    """`a (m, k) @ b (k, n)` in fp32: the chunks of one core, *chunk_k* of k each, in order.

    They are at *first_k* of the whole product, which decides whether the bias is in the first one.
    """
    total = np.zeros((a.shape[-2], b.shape[-1]), np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, a.shape[-1], chunk_k):
            part = slice(start, start + chunk_k)
            begin = bias if first_k + start == 0 else None
            chunk = cube_product(a[..., part], b[..., part, :], begin, order)
            total = total + chunk if start else chunk
    return total


def in_runs(
    a: Array, b: Array, bias: Array | None, order: CubeOrder, chunk_k: int, cores: int
) -> Array:
    """The same, by *cores* that each take a run of chunks, the first ones one more.

    The runs' sums are added in the order of the cores.
    """
    chunks = -(-a.shape[-1] // chunk_k)
    each, more = divmod(chunks, cores)
    total, first = np.zeros((a.shape[-2], b.shape[-1]), np.float32), 0
    for core in range(cores):
        last = first + (each + (core < more)) * chunk_k
        run = in_chunks(a[..., first:last], b[..., first:last, :], bias, order, chunk_k, first)
        with np.errstate(all="ignore"):
            total = total + run if core else run
        first = last
    return total
