"""npu_transpose_batchmatmul on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npusim import devices
from npusim.data.dtypes import Array
from npusim.data.integers import ceil_div
from npusim.data.product import CubeOrder
from npusim.data.tensor import Tensor
from npusim.devices.schema import DeviceSpec
from npusim.ops._products import cube_product, fixpipe_int8
from npusim.ops.npu_transpose_batchmatmul.contract import Problem, check
from npusim.ops.npu_transpose_batchmatmul.tiling import shares, tiles

__all__ = ["reference"]

DEFAULT = "ascend910b2"
"""Whose cores share the blocks, where nobody says otherwise."""


def reference(
    input: Array,
    weight: Array | Tensor,
    *,
    bias: None = None,  # noqa: ARG001 (the kernel takes none)
    scale: Array | None = None,
    perm_x1: Sequence[int] | None = None,
    perm_x2: Sequence[int] | None = None,
    perm_y: Sequence[int] | None = None,  # noqa: ARG001 (always (1, 0, 2))
    batch_split_factor: int = 1,
    cube_order: CubeOrder = "k16",
    spec: DeviceSpec | None = None,
) -> Array:
    """`(M, B, N)` of *input* and *weight*, in the type of *input*; int8 with a *scale*.

    *weight* may be a Tensor of any layout. *spec* says which cores begin where in k, if it is in
    FRACTAL_NZ; without it that is an Atlas A2.
    """
    # a of (heads, m, k), b of (heads, k, n)
    a = np.transpose(np.asarray(input), perm_x1 or (0, 1, 2))
    b = np.transpose(np.asarray(weight), perm_x2 or (0, 1, 2))
    if isinstance(weight, Tensor) and weight.layout != "ND":
        chip = spec or devices.load(DEFAULT)
        p = check(chip, input, weight, scale=scale, perm_x1=perm_x1)
        total = _from_everywhere(chip, p, a, b, cube_order)
    else:
        total = cube_product(a, b, order=cube_order)
    # (heads, m, n) -> (m, heads x n)
    heads, m, n = total.shape
    if scale is not None:
        rows = total.transpose(1, 0, 2).reshape(m, 1, heads * n)
        with np.errstate(all="ignore"):
            return fixpipe_int8(rows, scale.astype(np.int64))
    with np.errstate(over="ignore"):
        y = total.astype(a.dtype)
    f = batch_split_factor
    parts = y.reshape(f, heads // f, m, n).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(parts).reshape((m, heads, n) if f == 1 else (f, m, heads // f * n))


def _from_everywhere(chip: DeviceSpec, p: Problem, a: Array, b: Array, order: CubeOrder) -> Array:
    """The product, with sums of each block from where its core begins, round to that again."""
    pr = p.product
    cube = tiles(chip, pr, p.scale is not None)
    total = np.zeros((pr.matrices, pr.m, pr.n), np.float32)
    # Whole fractals of k, so that turning it round cuts none of them.
    more = -pr.k % 16
    a = np.pad(a, ((0, 0), (0, 0), (0, more)))
    b = np.pad(b, ((0, 0), (0, more), (0, 0)))
    step = cube.base_k * np.lcm(cube.step_ka, cube.step_kb)
    for core, pieces in enumerate(shares(cube, pr)):
        first = core % ceil_div(pr.k, int(step)) * int(step)
        for head, row, column, rows, columns in pieces:
            here = slice(row, row + rows), slice(column, column + columns)
            left = np.roll(a[head, here[0]], -first, axis=1)
            right = np.roll(b[head][:, here[1]], -first, axis=0)
            total[head][here] = cube_product(left, right, order=order)
    return total
