"""The templates that dequantise the weight and multiply floats: all that are not msd.

ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel: *_custom.h, *_custom_weight_nz.h,
*_custom_mix_splitk.h, *_custom_nz_splitk.h, fixpipe/, *_weight_nz_performance.h.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._products import cube_product
from npusim.ops.npu_weight_quant_batchmatmul.facts import k_step
from npusim.ops.npu_weight_quant_batchmatmul.references.given import Given

__all__ = ["custom", "fixpipe", "nz_splitk", "split_k", "weight_nz"]

F32 = np.float32


def _cube(given: Given, weight: Array, start: int = 0, bias: Array | None = None) -> Array:
    """The columns of x from *start* on times *weight*, float32; *bias* is where sums begin."""
    x = given.x[:, start : start + len(weight)]
    return cube_product(x, weight, bias, given.cube_order)


def _half_chain(given: Given) -> Array:
    """Weight plus offset, times scale, each rounded to fp16."""
    weight = given.weight.astype(F32)
    if given.offset is not None:
        weight = given.half(weight + given.per_row(given.offset).astype(F32)).astype(F32)
    return given.half(weight * given.per_row(given.scale).astype(F32))


def custom(given: Given) -> Array:
    """`(m, n)` in the type of x, or int8 with a quant_scale."""
    if given.x.dtype == np.float16:
        weight = _half_chain(given)
    else:
        wide = given.weight.astype(F32)
        if given.offset is not None:
            wide = wide + given.per_row(given.offset).astype(F32)
        weight = given.to_x(wide * given.per_row(given.scale).astype(F32))
    y = _cube(given, weight, bias=given.bias)
    return given.to_x(y) if given.quant is None else _requantised(y, given.quant)


def _scale_bits(words: Array) -> Array:
    """The scale in packed *words*: the upper 19 bits of a float32."""
    return np.asarray((words & 0xFFFF_E000).astype(np.uint32).view(F32))


def _requantised(y: Array, words: Array) -> Array:
    """What the fixpipe does (QF322B8_PRE): scaled, fitted into nine bits, offset, fitted again.

    asc-devkit, the page on quantisation on the way out (随路量化.md), and its example scripts.
    """
    scaled = y * _scale_bits(words)
    nine = np.rint(np.clip(np.where(np.isnan(scaled), 0, scaled), -256, 255)).astype(np.int64)
    offset = ((words >> 37) & 0x1FF) ^ 0x100
    fitted: Array = np.clip(nine + offset - 0x100, -128, 127)
    return fitted.astype(np.int8)


def fixpipe(given: Given) -> Array:
    """`(m, n)` fp16: the cube itself adds the int32 offset, the fixpipe applies the scale."""
    whole = given.weight.astype(np.int64)
    if given.offset is not None:
        whole = whole + given.offset
    weight = given.half(whole.astype(F32) * _scale_bits(given.scale))
    return given.half(_cube(given, weight, bias=given.bias))


def weight_nz(given: Given) -> Array:
    """`(m, n)` fp16, on 310P."""
    return given.half(_cube(given, _half_chain(given), bias=given.bias))


def split_k(given: Given) -> Array:
    """`(m, n)` bf16: the groups' products are added one after the other, ascending."""
    assert given.offset is not None
    offset = given.half(given.per_row(given.offset).astype(F32)).astype(F32)
    wide = given.half(given.weight.astype(F32) + offset).astype(F32)
    weight = given.to_x(wide * given.per_row(given.scale).astype(F32))
    return given.to_x(_in_steps(given, weight, given.facts.group_size))


def nz_splitk(given: Given) -> Array:
    """`(m, n)` in the type of x: the cores along k add their products, ascending.

    bf16 weights get no scale before the product, it is applied to the sum. The sum of several
    cores, of bf16, or with a bias, is rounded by a vector core with ties away from zero; else the
    fixpipe rounds, ties to even.
    """
    f, is_half = given.facts, given.x.dtype == np.float16
    if is_half:
        weight = _half_chain(given)
    else:
        wide = given.weight.astype(F32)
        if given.offset is not None:
            offset = given.half(given.offset.astype(F32)).astype(F32)
            wide = given.half(wide + offset).astype(F32)
        weight = given.to_x(wide)
    step = k_step(f, given.aic)
    if is_half and step >= f.k and given.bias is None:
        return given.to_x(_cube(given, weight))
    y = _in_steps(given, weight, step)
    if not is_half:
        y = y * given.scale.astype(F32)
    if given.bias is not None:
        y = y + given.bias
    return given.round_to_x(y)


def _in_steps(given: Given, weight: Array, step: int) -> Array:
    """Products of *step* of k each, added to zero in float32, ascending."""
    y = np.zeros((given.facts.m, given.facts.n), F32)
    for start in range(0, given.facts.k, step):
        y = y + _cube(given, weight[start : start + step], start)
    return y
