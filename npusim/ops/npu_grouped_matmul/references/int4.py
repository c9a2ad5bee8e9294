"""Weights of int4 by int4 or int8: groups of k rounded to float16, one after the other."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.tensor import Tensor, is_transposed
from npusim.ops._int4_matmul import digit_sums, scaled_groups, unpacked
from npusim.ops._products import exact_int
from npusim.ops.npu_grouped_matmul import int4
from npusim.ops.npu_grouped_matmul.references.numbers import Call, Numbers

__all__ = ["rows"]

F32 = np.float32


def rows(x: Array, numbers: Numbers, call: Call) -> Array:
    """*x* `(rows, k)` times the weight `(k, n)`, int4 in int32, in the type of the output."""
    weight = unpacked(numbers.weight, is_transposed(call.weights[0]))
    assert numbers.scale is not None
    assert numbers.per_token_scale is not None
    words = numbers.scale.reshape(-1, weight.shape[1])
    with np.errstate(all="ignore"):
        if x.dtype == np.int8 and numbers.offset is None and _is_unpacked(call, words):
            return _unpacked_rows(x, weight, words[0], numbers.per_token_scale, call)
        if x.dtype == np.int8:
            assert numbers.bias is not None
            sums = _digit_sums(x, weight, words, call) + numbers.bias
            if numbers.offset is not None:
                sums = x.sum(axis=1, dtype=F32)[:, None] * numbers.offset + sums
        else:
            sums = scaled_groups(unpacked(x), weight, words).astype(F32)
        y = sums * numbers.per_token_scale[:, None]
        return np.asarray(y.astype(call.types.output.numpy))


def _digit_sums(x: Array, weight: Array, words: Array, call: Call) -> Array:
    """`f32(lo) + f32(hi) * 16`; of two shapes groups of k are scaled and added up in float32."""
    (whole,), rows = call.weights, sum(len(x) for x in call.xs)
    sizes = whole.shape[0], rows, *weight.shape
    is_nz = isinstance(whole, Tensor) and whole.spec.layout == "FRACTAL_NZ"
    is_listed = is_nz and sizes in int4.VECTOR_DEQUANTISED
    if not (is_listed and len(words) * 256 == weight.shape[0] and not call.offset):
        return digit_sums(x, weight, words)
    scale = words.astype(np.uint64).astype(np.uint32).view(F32)
    total: dict[str, Array] = {}
    for name, digit in (("hi", np.floor_divide(x, 16)), ("lo", (x & 15) - 8)):
        for group, factors in enumerate(scale):
            ks = slice(256 * group, 256 * (group + 1))
            # Whole numbers lose bits above 2048.
            half = exact_int(digit[:, ks].astype(np.int8), weight[ks]).astype(np.float16)
            scaled = half.astype(F32) * factors
            total[name] = scaled if group == 0 else scaled + total[name]
    return total["lo"] + total["hi"] * F32(16)


def _is_unpacked(call: Call, words: Array) -> bool:
    """Whether the weight becomes int8: one scale a column, at most four columns a row."""
    experts, rows = len(np.asarray(call.weights[0])), sum(len(x) for x in call.xs)
    return len(words) == 1 and words.shape[1] * experts <= 4 * rows


def _unpacked_rows(x: Array, weight: Array, words: Array, tokens: Array, call: Call) -> Array:
    """Exact sums by scales; those for bfloat16 are rounded down to it."""
    scale = words.astype(np.uint64).astype(np.uint32).view(F32)
    if call.types.output.name == "bfloat16":
        near = scale.astype(call.types.output.numpy).astype(F32)
        bits = near.view(np.int32)
        below = np.where(bits >= 0, bits - 0x10000, bits + 0x10000).view(F32)
        below = np.where(near == 0, F32(-(2.0**-133)), below)
        scale = np.where(near > scale, below, near).astype(F32)
    acc = exact_int(x, weight).astype(F32)
    y = (acc * scale + F32(0)) * tokens[:, None]
    return np.asarray(y.astype(call.types.output.numpy))
