"""The msd templates with scales for groups of k: per_group and msd_group.

ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel/*_msd_split_k.h, *_msd_group.h. With
inner_precise=1 the cube hands fp16 over and the digits are put together in fp16.
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._products import exact_int
from npusim.ops.npu_weight_quant_batchmatmul.facts import k_step
from npusim.ops.npu_weight_quant_batchmatmul.references.digits import (
    Digits,
    lanes_sum,
    largest,
    split,
)
from npusim.ops.npu_weight_quant_batchmatmul.references.given import Given

__all__ = ["msd_group", "per_group"]

F32 = np.float32
PACK_DEPTH = 1024
"""Groups are added up in packs of this much of k."""


def per_group(given: Given) -> Array:
    """`(m, n)` in the type of x: the offsets of a pack's groups first, then their products."""
    y = np.zeros((given.facts.m, given.facts.n), F32)
    groups = range(given.scale.shape[0])
    step = PACK_DEPTH // given.facts.group_size
    for first in range(0, len(groups), step):
        pack = groups[first : first + step]
        if given.offset is not None:
            for group in pack:
                y = _offset(given, group) + y
        for group in pack:
            u = _product(given, group) * _row(given.scale, group)
            y = u * largest(_piece(given, group)) + y
    if given.bias is not None:
        y = y + given.bias
    return given.round_to_x(y)


def msd_group(given: Given) -> Array:
    """`(m, n)` in the type of x: each core adds up its groups, then cores ascending."""
    y = np.zeros((given.facts.m, given.facts.n), F32)
    groups = range(given.scale.shape[0])
    step = k_step(given.facts, given.aic) // given.facts.group_size
    for first in range(0, len(groups), step):
        y = y + _core_sum(given, groups[first : first + step])
    if given.bias is not None:
        y = y + given.bias
    return given.round_to_x(y)


def _core_sum(given: Given, groups: range) -> Array:
    """What one core adds to the result: offset and product of each group in turn."""
    total: Array | None = None
    for group in groups:
        if given.offset is not None:
            offset = _offset(given, group)
            total = offset if total is None else offset + total
        u = _product(given, group) * _row(given.scale, group)
        u = u * largest(_piece(given, group))
        total = u if total is None else total + u
    assert total is not None
    return total


def _piece(given: Given, group: int) -> Array:
    size = given.facts.group_size
    return np.asarray(given.x[:, group * size : (group + 1) * size].astype(F32))


def _row(parameter: Array, group: int) -> Array:
    return np.asarray(parameter[group].astype(F32))


def _offset(given: Given, group: int) -> Array:
    """The row sums of x times scale times offset, `(m, n)`."""
    assert given.offset is not None
    both = _row(given.scale, group) * _row(given.offset, group)
    return np.asarray(lanes_sum(_piece(given, group)) * both)


def _product(given: Given, group: int) -> Array:
    """x over its largest magnitude, times the weight, of one group: `(m, n)` float32."""
    size, digits = given.facts.group_size, Digits.of(given)
    x = _piece(given, group)
    weight = given.weight[group * size : (group + 1) * size]
    products = [exact_int(a, weight).astype(F32) for a in split(x, largest(x), digits)]
    if given.inner_precise and given.facts.weight == "int4":
        return _in_half(given, products) * digits.weights[0]
    total = products[0] * digits.weights[0]
    for product, undo in zip(products[1:], digits.weights[1:], strict=True):
        total = product * undo + total
    return total


def _in_half(given: Given, products: list[Array]) -> Array:
    """The digits' products put together in fp16, each step rounded to it; as float32."""
    factors = (1 / 14.98, 1 / 14.98**2)
    first, *rest = (given.half(product).astype(F32) for product in products)
    for product, factor in zip(rest, factors, strict=True):
        step = given.half(product * F32(np.float16(factor))).astype(F32)
        first = given.half(step + first).astype(F32)
    return first
