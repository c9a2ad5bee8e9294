"""The templates that dequantise the weight and multiply floats: all that are not msd.

ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel: *_custom.h, *_custom_weight_nz.h,
*_custom_mix_splitk.h, *_custom_nz_splitk.h, fixpipe/, *_weight_nz_performance.h.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._products import cube_product, fixpipe_int8, scale_of_words
from npusim.ops.npu_weight_quant_batchmatmul.references.inputs import ReferenceInputs
from npusim.ops.npu_weight_quant_batchmatmul.traits import k_step

__all__ = ["custom", "fixpipe", "nz_splitk", "split_k", "weight_nz"]

F32 = np.float32


def _cube(
    inputs: ReferenceInputs, weight: Array, start: int = 0, bias: Array | None = None
) -> Array:
    """The columns of x from *start* on times *weight*, float32; *bias* is where sums begin."""
    x = inputs.x[:, start : start + len(weight)]
    return cube_product(x, weight, bias, inputs.cube_order)


def _half_chain(inputs: ReferenceInputs) -> Array:
    """Weight plus offset, times scale, each rounded to fp16."""
    weight = inputs.weight.astype(F32)
    if inputs.offset is not None:
        weight = inputs.half(weight + inputs.per_row(inputs.offset).astype(F32)).astype(F32)
    return inputs.half(weight * inputs.per_row(inputs.scale).astype(F32))


def custom(inputs: ReferenceInputs) -> Array:
    """`(m, n)` in the type of x, or int8 with a quant_scale."""
    if inputs.x.dtype == np.float16:
        weight = _half_chain(inputs)
    else:
        value = inputs.weight.astype(F32)
        if inputs.offset is not None:
            value = value + inputs.per_row(inputs.offset).astype(F32)
        weight = inputs.to_x(value * inputs.per_row(inputs.scale).astype(F32))
    y = _cube(inputs, weight, bias=inputs.bias)
    return inputs.to_x(y) if inputs.quant is None else fixpipe_int8(y, inputs.quant)


def fixpipe(inputs: ReferenceInputs) -> Array:
    """`(m, n)` fp16: the cube itself adds the int32 offset, the fixpipe applies the scale."""
    whole = inputs.weight.astype(np.int64)
    if inputs.offset is not None:
        whole = whole + inputs.offset
    weight = inputs.half(whole.astype(F32) * scale_of_words(inputs.scale))
    return inputs.half(_cube(inputs, weight, bias=inputs.bias))


def weight_nz(inputs: ReferenceInputs) -> Array:
    """`(m, n)` fp16, on 310P."""
    return inputs.half(_cube(inputs, _half_chain(inputs), bias=inputs.bias))


def split_k(inputs: ReferenceInputs) -> Array:
    """`(m, n)` bf16: the groups' products are added one after the other, ascending."""
    assert inputs.offset is not None
    offset = inputs.half(inputs.per_row(inputs.offset).astype(F32)).astype(F32)
    value = inputs.half(inputs.weight.astype(F32) + offset).astype(F32)
    weight = inputs.to_x(value * inputs.per_row(inputs.scale).astype(F32))
    return inputs.to_x(_in_steps(inputs, weight, inputs.traits.group_size))


def nz_splitk(inputs: ReferenceInputs) -> Array:
    """`(m, n)` in the type of x: the cores along k add their products, ascending.

    bf16 weights get no scale before the product, it is applied to the sum. The sum of several
    cores, of bf16, or with a bias, is rounded by a vector core with ties away from zero; else the
    fixpipe rounds, ties to even.
    """
    f, is_half = inputs.traits, inputs.x.dtype == np.float16
    if is_half:
        weight = _half_chain(inputs)
    else:
        value = inputs.weight.astype(F32)
        if inputs.offset is not None:
            offset = inputs.half(inputs.offset.astype(F32)).astype(F32)
            value = inputs.half(value + offset).astype(F32)
        weight = inputs.to_x(value)
    step = k_step(f, inputs.aic)
    if is_half and step >= f.k and inputs.bias is None:
        return inputs.to_x(_cube(inputs, weight))
    y = _in_steps(inputs, weight, step)
    if not is_half:
        y = y * inputs.scale.astype(F32)
    if inputs.bias is not None:
        y = y + inputs.bias
    return inputs.round_to_x(y)


def _in_steps(inputs: ReferenceInputs, weight: Array, step: int) -> Array:
    """Products of *step* of k each, added to zero in float32, ascending."""
    y = np.zeros((inputs.traits.m, inputs.traits.n), F32)
    for start in range(0, inputs.traits.k, step):
        y = y + _cube(inputs, weight[start : start + step], start)
    return y
