"""npu_transpose_batchmatmul on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

from math import lcm

import numpy as np

from npusim import devices
from npusim.data.dtypes import Array
from npusim.data.integers import ceil_div
from npusim.data.tensor import Tensor
from npusim.kernel.tiles import work
from npusim.ops import _vocabulary as ops
from npusim.ops._matmul_oracle import cube_product, fixpipe_int8
from npusim.ops.npu_transpose_batchmatmul.check import PLAIN, SUPPORT, check
from npusim.ops.npu_transpose_batchmatmul.kernel import tiles_of

NAME = "npu_transpose_batchmatmul"
DEFAULT = "ascend910b2"
"""The chip whose cores share the blocks, by default."""


def oracle(given: ops.Given) -> Array:
    """`(M, B, N)` of input and weight, in the type of input; int8 with a scale.

    weight may be a Tensor of any layout. If it is in FRACTAL_NZ, the chip determines where each
    core starts along k.
    """
    # a of (heads, m, k), b of (heads, k, n)
    a = np.transpose(np.asarray(given.input), given.perm_x1 or PLAIN)
    b = np.transpose(np.asarray(given.weight), given.perm_x2 or PLAIN)
    if isinstance(given.weight, Tensor) and given.weight.layout != "ND":
        total = _from_everywhere(given, a, b)
    else:
        total = cube_product(a, b, order=given.cube_order)
    # (heads, m, n) -> (m, heads x n)
    heads, m, n = total.shape
    if given.scale is not None:
        rows = total.transpose(1, 0, 2).reshape(m, 1, heads * n)
        with np.errstate(all="ignore"):
            return fixpipe_int8(rows, given.scale.astype(np.int64))
    y, f = given.rounded(total, a.dtype), given.batch_split_factor
    parts = y.reshape(f, heads // f, m, n).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(parts).reshape((m, heads, n) if f == 1 else (f, m, heads // f * n))


def _from_everywhere(given: ops.Given, a: Array, b: Array) -> Array:
    """The product, with the sums of each block starting where its core does and wrapping around."""
    chip = given.spec or devices.load(DEFAULT)
    p = check(ops.Contract(NAME, chip, arguments=given.arguments, support=SUPPORT))
    pr, cube = p.product, tiles_of(chip, p)
    total = np.zeros((pr.matrices, pr.m, pr.n), np.float32)
    # Whole fractals of k, so that the rotation splits none of them.
    more = -pr.k % 16
    a = np.pad(a, ((0, 0), (0, 0), (0, more)))
    b = np.pad(b, ((0, 0), (0, more), (0, 0)))
    step = cube.base_k * lcm(cube.step_ka, cube.step_kb)
    for core, pieces in enumerate(work(cube, pr)):
        first = core % ceil_div(pr.k, step) * step
        for head, row, column, rows, columns in pieces:
            here = slice(row, row + rows), slice(column, column + columns)
            left = np.roll(a[head, here[0]], -first, axis=1)
            right = np.roll(b[head][:, here[1]], -first, axis=0)
            total[head][here] = cube_product(left, right, order=given.cube_order)
    return total
