"""npu_grouped_matmul on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim import devices
from npusim.data.dtypes import BFLOAT16, INT4, INT8, Array
from npusim.data.few_rows import FEW_ROWS, few_rows_product
from npusim.data.product import float_product
from npusim.data.tensor import is_transposed
from npusim.ops._contract import Contract
from npusim.ops._digits import away, fitted, pair_sum
from npusim.ops._int4_matmul import digit_sums, scaled_groups, unpacked
from npusim.ops._matmul_oracle import cube_product, exact_int, fixpipe_int8
from npusim.ops._oracle import Given
from npusim.ops._protocol import Plan
from npusim.ops._swish import exp_plus_1_of
from npusim.ops.npu_grouped_matmul import choice, support
from npusim.ops.npu_grouped_matmul.check import check
from npusim.ops.npu_grouped_matmul.problem import Problem

F32, F16 = np.float32, np.float16
OF_EXPERTS = "bias", "scale", "offset", "antiquant_scale", "antiquant_offset"
DEFAULT = "ascend910b2"
"""The chip whose choice of kernel applies by default: an Atlas A2 with 24 cube cores."""


def oracle(given: Given) -> Array | tuple[Array, ...]:
    """Multiply each group of x by its weight; returns one output, or a tuple of several.

    Rows without a group are zero, as the allocator leaves them. template names the kernel; results
    may depend on the chip and the order in which the cube adds.
    """
    spec = given.spec or devices.load(DEFAULT)
    contract = Contract(
        "npu_grouped_matmul", spec, arguments=given.arguments, support=support.SUPPORT
    )
    p = check(contract)
    return _multiplied(given, p, spec.cores[spec.cube_kind].count, ROWS[p.types.template])


MOST_AT_ONCE = 2**24
"""Products of numbers that are summed up in few calls of numpy. To write micro-ops for groups of
other rows takes longer than to compute so many (measured)."""


def at_once(given: Given, p: Problem, _: Plan) -> Array | tuple[Array, ...] | None:
    """The same for a small number of floats."""
    columns = p.weight[0].shape[-1]
    is_small = sum(int(each) for each in p.groups.m * p.groups.k) * columns <= MOST_AT_ONCE
    if not is_small or ROWS[p.types.template] is not _plain:
        return None
    return _multiplied(given, p, 0, _plain_at_once)


def _multiplied(
    given: Given, p: Problem, cores: int, rows: Callable[[_Group], Array]
) -> Array | tuple[Array, ...]:
    """Apply *rows* to each group; returns one output, or a tuple of several."""
    groups = p.groups
    outputs = [np.zeros(x.shape, p.types.output.numpy) for x in p.outputs.values()]
    for number in range(groups.m.size):
        group = _Group.of(given, p, number, cores)
        if group.x.size:
            top = int(groups.output_row[number])
            flat = outputs[groups.output[number]].reshape(-1, group.weight.shape[1])
            flat[top : top + len(group.x)] = rows(group)
    return tuple(outputs) if len(outputs) > 1 else outputs[0]


@dataclass(frozen=True, slots=True)
class _Group:
    """The operands of a group from each list: by expert or by row."""

    given: Given
    p: Problem
    number: int
    cores: int
    """Cube cores of the chip."""
    x: Array
    """`(rows, k)`."""
    weight: Array
    """`(k, n)`; int4 as int8."""
    bias: Array | None
    """`(n,)`."""
    scale: Any
    """`(n,)`, `(1,)`, or `(groups of k, n)`."""
    offset: Array | None
    """`(1, n)`."""
    per_token_scale: Any
    """`(rows,)`."""
    antiquant_scale: Any
    antiquant_offset: Any

    @staticmethod
    def of(given: Given, p: Problem, number: int, cores: int) -> _Group:
        """The operands of group index *number*."""
        groups = p.groups
        m, k, place, row, first, weight, matrix, weight_k = (
            int(each[number])
            for each in (
                *(groups.m, groups.k, groups.x, groups.x_row, groups.x_k),
                *(groups.weight, groups.matrix, groups.weight_k),
            )
        )

        def own(name: str) -> Any:
            """The expert's tensor in a list, or its part of the only tensor."""
            found = _several(given.arguments[name])
            if not found:
                return None
            whole = np.asarray(found[weight])
            return np.atleast_1d(whole[matrix]) if len(p.weight[0].shape) == 3 else whole

        x, of_expert = np.asarray(_several(given.x)[place]), own("weight")
        x = x.reshape(-1, x.shape[-1])[row : row + m]
        if p.types.weight is INT4:
            x = unpacked(x) if p.types.x is INT4 else x
            of_expert = unpacked(of_expert, is_transposed(_several(given.weight)[weight]))
        tokens = _several(given.per_token_scale)
        return _Group(
            *(given, p, number, cores),
            x=x[:, first : first + k],
            weight=of_expert[weight_k : weight_k + k],
            per_token_scale=np.asarray(tokens[place])[row : row + m] if tokens else None,
            **{name: own(name) for name in OF_EXPERTS},
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the output."""
        return self.p.types.output.numpy


def _several(value: Any) -> tuple[Any, ...]:
    """The arrays of a list, also if the list is a single array."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


# ---- rows `(rows, k)` of a group, for each kernel ----


def _plain(group: _Group) -> Array:
    """x `(rows, k)` times the weight `(k, n)` plus the bias `(n,)`, in the type of the output."""
    total = cube_product(group.x, group.weight, group.bias, group.given.cube_order)
    return group.given.rounded(total, group.dtype)


def _plain_at_once(group: _Group) -> Array:
    """The same."""
    x, weight, order = group.x, group.weight, group.given.cube_order
    if len(x) <= FEW_ROWS:
        total = few_rows_product(x, weight, group.bias, order)
    else:
        start = np.zeros(1, F32) if group.bias is None else group.bias.astype(F32)
        total = float_product(x, weight, start, order)
    return group.given.rounded(total, group.dtype)


def _a8w8(group: _Group) -> Array:
    """x `(rows, k)` times the weight `(k, n)`, in the type of the output."""
    acc = exact_int(group.x, group.weight)
    late = None
    if group.bias is not None and group.bias.dtype == np.int32:
        acc = acc + group.bias
    elif group.bias is not None:
        late = group.bias.astype(F32)
    acc = np.clip(acc, -(2**31), 2**31 - 1).astype(np.int32)
    if group.scale is None:
        return acc
    with np.errstate(all="ignore"):
        if group.p.types.output is INT8:
            return fixpipe_int8(acc, group.scale.astype(np.int64))
        values = acc.astype(F32) * group.scale.astype(F32)
        if group.per_token_scale is not None or group.p.act_type:
            # A zero of either sign becomes positive here.
            values = values + F32(0)
        if group.per_token_scale is not None:
            values = values * group.per_token_scale[:, None]
        if late is not None:
            values = values + late
        return np.asarray(_activated(values, group.p.act_type).astype(group.dtype))


def _activated(x: Array, act_type: int) -> Array:
    """*x*, fp32, or its activation; rounded after each operation."""
    match act_type:
        case support.RELU:
            return np.where(x <= 0, F32(0), x)
        case support.GELU_TANH:
            y = (x + (x * (x * x)) * F32(0.044715)) * F32(1.5957691)
            return (x / exp_plus_1_of(np.abs(y))) * _exp(np.minimum(y, F32(0)))
        case support.FAST_GELU:
            return x / (_exp(x * F32(-1.702)) + F32(1))
        case support.SILU:
            return x / exp_plus_1_of(x)
    return x


def _exp(x: Array) -> Array:
    """The exponential, rounded once."""
    return np.asarray(np.exp(x.astype(np.float64)).astype(F32))


# ---- int8 or int4 weights with float rows ----


def _antiquant(group: _Group) -> Array:
    """x `(rows, k)` times the weight `(k, n)` plus the bias `(n,)`, in the type of x."""
    if choice.in_digits(group.p):
        return _msd(group)
    x, weight, (k, n) = group.x, group.weight, group.weight.shape
    scale, offset = (
        np.repeat(each.reshape(-1, n), k // each.reshape(-1, n).shape[0], axis=0)
        for each in (group.antiquant_scale, group.antiquant_offset)
    )
    with np.errstate(all="ignore"):
        if x.dtype == F16:
            floats = (weight.astype(F16) + offset) * scale
        else:
            wide = (weight.astype(F32) + offset.astype(F32)) * scale.astype(F32)
            floats = wide.astype(x.dtype)
        return cube_product(x, floats, group.bias, group.given.cube_order).astype(x.dtype)


def _msd(group: _Group) -> Array:
    """x `(rows, k)` times the weight `(k, n)`, in the type of x."""
    piece_k = choice.splits(group.p, group.cores)[group.number].piece_k
    wide = group.x.astype(F32)
    with np.errstate(all="ignore"):
        most = np.abs(wide).max(axis=1, keepdims=True)
        scaled = wide * (F32(127) / most)
        first = away(scaled)
        second = away((scaled - first) * F32(254))
        c1, c2 = (exact_int(fitted(d), group.weight).astype(F32) for d in (first, second))
        c = (c1 + c2 * F32(1 / 254)) * (most / F32(127))
        c = c + group.antiquant_offset.astype(F32) * _sums(wide, piece_k)[:, None]
        c = c * group.antiquant_scale.astype(F32)
        if group.bias is not None:
            c = c + group.bias.astype(F32)
        return np.asarray(c.astype(group.dtype))


def _sums(values: Array, piece_k: int) -> Array:
    """The sum of each row: over each part, then over the parts."""
    parts = [_tree(values[:, k : k + piece_k]) for k in range(0, values.shape[1], piece_k)]
    return _tree(np.stack(parts, axis=1))


def _tree(values: Array) -> Array:
    """The sum of each row: 64 elements pairwise as a tree, and the results likewise."""
    while True:
        more = -values.shape[1] % 64
        lanes = np.pad(values, ((0, 0), (0, more))).reshape(len(values), -1, 64)
        values = pair_sum(lanes)[:, :, 0]
        if values.shape[1] == 1:
            return np.asarray(values[:, 0])


# ---- int4 weights with integer rows ----


def _int4(group: _Group) -> Array:
    """x `(rows, k)` times the weight `(k, n)`, in the type of the output."""
    p, x, weight = group.p, group.x, group.weight
    words = group.scale.reshape(-1, weight.shape[1])
    with np.errstate(all="ignore"):
        if p.types.x is INT4:
            sums = scaled_groups(x, weight, words).astype(F32)
        elif choice.is_unpacked(p):
            sums = exact_int(x, weight).astype(F32) * _unpacked_scale(group, words[0]) + F32(0)
        else:
            of_digits = _scaled_digits if choice.is_vector(p) else digit_sums
            sums = of_digits(x, weight, words) + group.bias
            if group.offset is not None:
                sums = x.sum(axis=1, dtype=F32)[:, None] * group.offset + sums
        return np.asarray((sums * group.per_token_scale[:, None]).astype(group.dtype))


def _scaled_digits(x: Array, weight: Array, words: Array) -> Array:
    """`f32(lo) + f32(hi) * 16`: groups of k are scaled and added up in float32."""
    scale = words.astype(np.uint64).astype(np.uint32).view(F32)
    low, high = (
        _scaled_groups(digit.astype(np.int8), weight, scale)
        for digit in ((x & 15) - 8, np.floor_divide(x, 16))
    )
    return low + high * F32(16)


def _scaled_groups(digit: Array, weight: Array, scale: Array) -> Array:
    total: Any = None
    for group, factors in enumerate(scale):
        ks = slice(choice.GROUP_K * group, choice.GROUP_K * (group + 1))
        # Integers lose bits above 2048.
        scaled = exact_int(digit[:, ks], weight[ks]).astype(F16).astype(F32) * factors
        total = scaled if group == 0 else scaled + total
    return np.asarray(total)


def _unpacked_scale(group: _Group, words: Array) -> Array:
    """The scales of the columns; for bfloat16 rounded down to it."""
    scale = words.astype(np.uint64).astype(np.uint32).view(F32)
    if group.p.types.output is not BFLOAT16:
        return scale
    near = scale.astype(group.dtype).astype(F32)
    bits = near.view(np.int32)
    below = np.where(bits >= 0, bits - 0x10000, bits + 0x10000).view(F32)
    below = np.where(near == 0, F32(-(2.0**-133)), below)
    return np.where(near > scale, below, near).astype(F32)


ROWS: dict[str, Callable[[_Group], Array]] = {
    "plain": _plain,
    "coupled": _plain,
    "fixpipe": _a8w8,
    "dequantise": _a8w8,
    "antiquant": _antiquant,
    "a4w4": _int4,
    "a8w4": _int4,
}
"""Template of a row of support -> the function that computes rows."""
