"""The msd templates with scales for groups of k: per_group and msd_group.

ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel/*_msd_split_k.h, *_msd_group.h. With
inner_precise=1 the cube stores fp16 and the digits are combined in fp16.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._products import exact_int
from npusim.ops.npu_weight_quant_batchmatmul.references.digits import (
    Digits,
    absmax,
    lanes_sum,
    split,
)
from npusim.ops.npu_weight_quant_batchmatmul.references.inputs import ReferenceInputs
from npusim.ops.npu_weight_quant_batchmatmul.traits import k_step

__all__ = ["msd_group", "per_group"]

F32 = np.float32
PACK_DEPTH = 1024
"""Groups are added up in packs of this much of k."""


def per_group(inputs: ReferenceInputs) -> Array:
    """`(m, n)` in the type of x: the offsets of a pack's groups first, then their products."""
    y = np.zeros((inputs.traits.m, inputs.traits.n), F32)
    groups = range(inputs.scale.shape[0])
    step = PACK_DEPTH // inputs.traits.group_size
    for first in range(0, len(groups), step):
        pack = groups[first : first + step]
        if inputs.offset is not None:
            for group in pack:
                y = _offset(inputs, group) + y
        for group in pack:
            u = _product(inputs, group) * _row(inputs.scale, group)
            y = u * absmax(_piece(inputs, group)) + y
    if inputs.bias is not None:
        y = y + inputs.bias
    return inputs.round_to_x(y)


def msd_group(inputs: ReferenceInputs) -> Array:
    """`(m, n)` in the type of x: each core adds up its groups, then cores ascending."""
    y = np.zeros((inputs.traits.m, inputs.traits.n), F32)
    groups = range(inputs.scale.shape[0])
    step = k_step(inputs.traits, inputs.aic) // inputs.traits.group_size
    for first in range(0, len(groups), step):
        y = y + _core_sum(inputs, groups[first : first + step])
    if inputs.bias is not None:
        y = y + inputs.bias
    return inputs.round_to_x(y)


def _core_sum(inputs: ReferenceInputs, groups: range) -> Array:
    """What one core adds to the result: offset and product of each group in turn."""
    total: Array | None = None
    for group in groups:
        if inputs.offset is not None:
            offset = _offset(inputs, group)
            total = offset if total is None else offset + total
        u = _product(inputs, group) * _row(inputs.scale, group)
        u = u * absmax(_piece(inputs, group))
        total = u if total is None else total + u
    assert total is not None
    return total


def _piece(inputs: ReferenceInputs, group: int) -> Array:
    size = inputs.traits.group_size
    return np.asarray(inputs.x[:, group * size : (group + 1) * size].astype(F32))


def _row(parameter: Array, group: int) -> Array:
    return np.asarray(parameter[group].astype(F32))


def _offset(inputs: ReferenceInputs, group: int) -> Array:
    """The row sums of x times scale times offset, `(m, n)`."""
    assert inputs.offset is not None
    both = _row(inputs.scale, group) * _row(inputs.offset, group)
    return np.asarray(lanes_sum(_piece(inputs, group)) * both)


def _product(inputs: ReferenceInputs, group: int) -> Array:
    """x over its largest magnitude, times the weight, of one group: `(m, n)` float32."""
    size, digits = inputs.traits.group_size, Digits.of(inputs)
    x = _piece(inputs, group)
    weight = inputs.weight[group * size : (group + 1) * size]
    products = [exact_int(a, weight).astype(F32) for a in split(x, absmax(x), digits)]
    if inputs.inner_precise and inputs.traits.weight == "int4":
        return _in_half(inputs, products) * digits.weights[0]
    total = products[0] * digits.weights[0]
    for product, undo in zip(products[1:], digits.weights[1:], strict=True):
        total = product * undo + total
    return total


def _in_half(inputs: ReferenceInputs, products: list[Array]) -> Array:
    """The digits' products combined in fp16, each step rounded to it; as float32."""
    factors = (1 / 14.98, 1 / 14.98**2)
    first, *rest = (inputs.half(product).astype(F32) for product in products)
    for product, factor in zip(rest, factors, strict=True):
        step = inputs.half(product * F32(np.float16(factor))).astype(F32)
        first = inputs.half(step + first).astype(F32)
    return first
