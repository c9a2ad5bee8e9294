"""npu_rms_norm on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.data.dtypes import Array, dtype_of
from npusim.ops._oracle import Given
from npusim.ops._rms_norm.oracle import (
    halving_sum,
    lanes_sum,
    rounded,
    scaled_root,
    sum_of_parts,
)
from npusim.ops._rms_norm.rows import Machine
from npusim.ops.npu_rms_norm.choice import choose, piece_columns

__all__ = ["oracle"]


def oracle(given: Given) -> tuple[Array, Array]:
    """`x * r * gamma` in the type of x, and `r = 1 / sqrt(mean(x * x) + epsilon)` in fp32.

    gamma has the shape of the last dimensions of x, over which the mean is; r has 1 for each of
    them. template names the kernel; without it the chip decides.
    """
    x, gamma, spec = given.x, given.gamma, given.spec
    columns, is_mixed = gamma.size, gamma.dtype != x.dtype
    rows = x.reshape(-1, columns)
    element = dtype_of(x)
    assert element is not None
    choice = choose(len(rows), columns, element, Machine.of(spec), is_mixed=is_mixed)
    taken = given.template or choice.template
    with np.errstate(all="ignore"):
        values = rows.astype(np.float32)
        squares = values * values
        if taken == "merge_n":
            total = lanes_sum(squares)
        elif taken == "split_d":
            part = piece_columns(columns, element, is_mixed=is_mixed)
            total = sum_of_parts(halving_sum, squares, part)
        else:
            total = halving_sum(squares)
        mean = np.float32(1) / np.float32(columns)
        root = scaled_root(total * mean, given.epsilon)
        scaled = values * root[:, None] * gamma.astype(np.float32).reshape(-1)
        output = rounded(scaled, x.dtype, spec).reshape(x.shape)
    outer = x.shape[: x.ndim - gamma.ndim]
    assert prod(outer) == len(rows)
    return output, root.reshape(*outer, *(1,) * gamma.ndim)
