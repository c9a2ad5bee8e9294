"""The msd template, one scale for each column: multicore, multicore_hp and split_k.

ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel/*_msd_multicore.h, *_msd_split_k.h.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.integers import align_up, ceil_div
from npusim.ops._products import exact_int
from npusim.ops.npu_weight_quant_batchmatmul.references.digits import (
    Digits,
    absmax,
    away,
    digit,
    halving_sum,
    lanes_sum,
    split,
)
from npusim.ops.npu_weight_quant_batchmatmul.references.inputs import ReferenceInputs

__all__ = ["multicore", "multicore_hp", "multicore_sum", "split_k", "split_k_sum"]

F32 = np.float32
FIRST = F32(127.499)
SECOND = F32(127.499**2 * 2)
"""The product is formed in double, then rounded."""


def multicore(inputs: ReferenceInputs) -> Array:
    """`(m, n)` in the type of x."""
    return inputs.round_to_x(multicore_sum(inputs, precise=False))


def multicore_hp(inputs: ReferenceInputs) -> Array:
    """The same with a row sum of the digits instead of one of x."""
    return inputs.round_to_x(multicore_sum(inputs, precise=True))


def multicore_sum(inputs: ReferenceInputs, precise: bool) -> Array:
    """The float32 result before it is rounded, `(m, n)`."""
    x = inputs.x.astype(F32)
    largest = absmax(x)
    # One row a step, and the scalar unit's reciprocal, once a row fills a whole step.
    q = x / largest if x.shape[1] < 128 else x * (F32(1) / largest)
    first = away(q * FIRST)
    undone = first * (F32(1) / FIRST)
    second = away((q - undone) * SECOND)
    if precise:
        rest = second * (F32(1) / SECOND)
        total = (halving_sum(undone) + halving_sum(rest)) * largest
    else:
        total = _row_sum(x)
    products = [exact_int(digit(a), inputs.weight).astype(F32) for a in (first, second)]
    y = products[0] * (F32(1) / FIRST) + products[1] * (F32(1) / SECOND)
    y = y * largest
    if inputs.offset is not None:
        y = total * inputs.offset.astype(F32) + y
    y = y * inputs.scale.astype(F32)
    return y if inputs.bias is None else y + inputs.bias


def _row_sum(x: Array) -> Array:
    return halving_sum(x) if x.shape[1] >= 4096 else lanes_sum(x)


def split_k(inputs: ReferenceInputs) -> Array:
    """`(m, n)` in the type of x."""
    return inputs.round_to_x(split_k_sum(inputs))


def block_depth(inputs: ReferenceInputs) -> int:
    """How much of k is scaled by one largest magnitude (op_host/op_tiling/*_msd_tiling.cpp)."""
    f = inputs.traits
    unit = 64 if not f.trans_weight else 512 if f.weight == "int8" else 1024
    blocks = 4 if f.k // f.n >= 30 and not f.trans_weight else 1
    while (depth := align_up(ceil_div(f.k, blocks), unit)) > 12288 and blocks < 6:
        blocks += 1
    return depth


def split_k_sum(inputs: ReferenceInputs) -> Array:
    """The float32 result before it is rounded, `(m, n)`."""
    depth, digits = block_depth(inputs), Digits.of(inputs)
    scale = inputs.scale.astype(F32)
    blocks = [
        (_padded(inputs.x[:, start : start + depth].astype(F32), depth), start)
        for start in range(0, inputs.traits.k, depth)
    ]
    y = np.zeros((inputs.traits.m, inputs.traits.n), F32)
    if inputs.offset is not None:
        both = scale * inputs.offset.astype(F32)
        for x, _ in blocks:
            y = halving_sum(x) * both + y
    for x, start in blocks:
        largest = absmax(x)
        weight = inputs.weight[start : start + depth]
        u = np.zeros_like(y)
        for a, undo in zip(split(x, largest, digits), digits.weights, strict=True):
            u = exact_int(a[:, : len(weight)], weight).astype(F32) * undo + u
        y = (u * scale) * largest + y
    return y if inputs.bias is None else y + inputs.bias


def _padded(x: Array, width: int) -> Array:
    return np.pad(x, ((0, 0), (0, width - x.shape[1])))
