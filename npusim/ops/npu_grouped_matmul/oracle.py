"""npu_grouped_matmul on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.data.dtypes import Array, dtype_of
from npusim.data.tensor import Tensor, is_transposed
from npusim.ops._int4_matmul import digit_sums, scaled_groups, unpacked
from npusim.ops._oracle import Given
from npusim.ops._products import cube_product, exact_int
from npusim.ops.npu_grouped_matmul import choice
from npusim.ops.npu_grouped_matmul.problem import entries_of
from npusim.ops.npu_grouped_matmul.support import Types, types_of

F32, F16 = np.float32, np.float16
CORES = 24
"""Cube cores of an Atlas A2, where nobody says otherwise."""
LISTS = "bias", "scale", "offset", "per_token_scale", "antiquant_scale", "antiquant_offset"


def oracle(given: Given) -> Array | tuple[Array, ...]:
    """Multiply each group of x by its own of weight; one output, or a tuple of several.

    x and weight are lists of arrays or Tensors, or one. Rows that no group has are zero, as the
    allocator gives them. template names the kernel; results may depend on the chip and the order
    in which the cube adds.
    """
    xs, weights = _several(given.x), _several(given.weight)
    lists = {name: _several(given.arguments[name]) for name in LISTS}
    entries = None
    if given.group_list is not None:
        every = entries_of(np.asarray(given.group_list), given.group_list_type).tolist()
        entries = [(expert, max(size, 0)) for expert, size in every]
    types = _types(xs[0], weights[0], lists["bias"], given.output_dtype)
    call = _Call(given, types, xs, weights, lists, entries)
    found = _along_k(call) if given.group_type == 2 else _along_m(call)
    return tuple(found) if len(found) > 1 else found[0]


def _several(value: Any) -> tuple[Any, ...]:
    """A list of arrays, whether it was given as one or as its only member."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _types(x: Any, weight: Any, bias: tuple[Any, ...], output_dtype: str | None) -> Types:
    """What the tensors hold."""
    kinds = [dtype_of(np.asarray(each)) for each in (x, weight, *bias[:1])]
    output = str(np.asarray(x).dtype) if output_dtype is None else output_dtype
    of_x, of_weight, of_bias = (*kinds, None)[:3]
    assert of_x is not None
    assert of_weight is not None
    return types_of(of_x, of_weight, output, of_bias)


@dataclass(frozen=True, slots=True)
class _Call:
    """The whole call."""

    given: Given
    types: Types
    xs: tuple[Any, ...]
    weights: tuple[Any, ...]
    lists: dict[str, tuple[Array, ...]]
    entries: list[tuple[int, int]] | None
    """Experts and their rows, or positions of k; None where no list says."""

    def group(self, expert: int, start: int, count: int) -> _Group:
        """What *expert* has of each list, and *count* rows from *start* on."""
        tokens = None
        if self.lists["per_token_scale"]:
            tokens = np.concatenate(self.lists["per_token_scale"])[start : start + count]
        stacked = len(self.weights) == 1 and len(self.weights[0].shape) == 3

        def own(several: tuple[Any, ...]) -> Any:
            """A tensor of the list, or a part of the only one."""
            if not several:
                return None
            whole = np.asarray(several[0 if stacked else expert])
            return np.atleast_1d(whole[expert]) if stacked else whole

        lists = {name: own(self.lists[name]) for name in LISTS if name != "per_token_scale"}
        return _Group(own(self.weights), expert, per_token_scale=tokens, **lists)


@dataclass(frozen=True, slots=True)
class _Group:
    """What a group has of each list: of its expert, and of its rows."""

    weight: Array
    """`(k, n)`; of int4 as it is stored."""
    expert: int = 0
    bias: Array | None = None
    """`(n,)`."""
    scale: Any = None
    """`(n,)`, `(1,)`, or `(groups of k, n)`."""
    offset: Array | None = None
    """`(1, n)`."""
    per_token_scale: Any = None
    """`(rows,)`."""
    antiquant_scale: Any = None
    antiquant_offset: Any = None


def _along_m(call: _Call) -> list[Array]:
    """Rows of x by the weight of their group."""
    xs = [np.asarray(x) for x in call.xs]
    flat = [x.reshape(-1, x.shape[-1]) for x in xs]
    entries = call.entries
    if len(xs) > 1 or entries is None:
        entries = [(place, len(x)) for place, x in enumerate(flat)]
    whole = np.concatenate(flat) if len({x.shape[1] for x in flat}) == 1 else None
    found, start, rows = [], 0, ROWS[call.types.reference]
    for place, (expert, count) in enumerate(entries):
        x = flat[place] if whole is None else whole[start : start + count]
        found.append(rows(x, call.group(expert, start, count), call))
        start += count
    if call.given.split_item < 2:
        if len(xs) < len(found):
            return found
        return [y.reshape(*x.shape[:-1], y.shape[1]) for x, y in zip(xs, found, strict=True)]
    output = np.zeros((sum(map(len, flat)), found[0].shape[1]), found[0].dtype)
    done = np.concatenate(found)
    output[: len(done)] = done
    return [output]


def _along_k(call: _Call) -> list[Array]:
    """Columns of x by the rows of weight of their group."""
    x, rows = np.asarray(call.xs[0]), ROWS[call.types.reference]
    weights = [np.asarray(weight) for weight in call.weights]
    entries = call.entries or [(place, len(weight)) for place, weight in enumerate(weights)]
    found, start = [], 0
    for place, (_, count) in enumerate(entries):
        weight = weights[0][start : start + count] if len(weights) == 1 else weights[place]
        found.append(rows(x[:, start : start + count], _Group(weight), call))
        start += count
    return [np.stack(found)] if len(weights) == 1 else found


# ---- rows `(rows, k)` of a group, by kernel ----


def _plain(x: Array, group: _Group, call: _Call) -> Array:
    """*x* `(rows, k)` times the weight `(k, n)` plus the bias `(n,)`, in the type of the output."""
    total = cube_product(x, group.weight, group.bias, call.given.cube_order)
    return call.given.rounded(total, call.types.output.numpy)


def _a8w8(x: Array, group: _Group, call: _Call) -> Array:
    """*x* `(rows, k)` times the weight `(k, n)`, in the type of the output."""
    acc = exact_int(x, group.weight)
    late = None
    if group.bias is not None and group.bias.dtype == np.int32:
        acc = acc + group.bias
    elif group.bias is not None:
        late = group.bias.astype(F32)
    acc = np.clip(acc, -(2**31), 2**31 - 1).astype(np.int32)
    if group.scale is None:
        return acc
    with np.errstate(all="ignore"):
        if call.types.output.name == "int8":
            return _requantised(acc, group.scale)
        values = acc.astype(F32) * group.scale.astype(F32)
        if group.per_token_scale is not None or call.given.act_type:
            # A zero of either sign becomes a positive one here.
            values = values + F32(0)
        if group.per_token_scale is not None:
            values = values * group.per_token_scale[:, None]
        if late is not None:
            values = values + late
        return np.asarray(_activated(values, call.given.act_type).astype(call.types.output.numpy))


def _requantised(acc: Array, words: Array) -> Array:
    """int8 of int32 sums by 64-bit *words*: 19 bits of a scale, nine of an offset."""
    bits = words.astype(np.int64)
    factor = (bits & 0xFFFFE000).astype(np.uint32).view(F32)
    point = ((bits << 18) >> 55).astype(np.int32)
    values = acc.astype(F32) * factor
    nine = np.rint(np.clip(np.where(np.isnan(values), 0, values), -256, 255)).astype(np.int32)
    return np.asarray(np.clip(nine + point, -128, 127).astype(np.int8))


def _activated(x: Array, act_type: int) -> Array:
    """*x*, fp32, or its activation; each operation rounds once."""
    match act_type:
        case 1:
            return np.asarray(np.where(x <= 0, F32(0), x))
        case 2:
            y = (x + (x * (x * x)) * F32(0.044715)) * F32(1.5957691)
            below = _exp(np.abs(y) * F32(-1)) + F32(1)
            return np.asarray((x / below) * _exp(np.minimum(y, F32(0))))
        case 4:
            return np.asarray(x / (_exp(x * F32(-1.702)) + F32(1)))
        case 5:
            return np.asarray(x / (_exp(x * F32(-1)) + F32(1)))
    return x


def _exp(x: Array) -> Array:
    """The exponential, rounded once."""
    return np.asarray(np.exp(x.astype(np.float64)).astype(F32))


# ---- int8 or int4 by floats ----


def _antiquant(x: Array, group: _Group, call: _Call) -> Array:
    """*x* `(rows, k)` times the weight `(k, n)` plus the bias `(n,)`, in the type of x."""
    if _takes_msd(call):
        return _msd(x, group, call)
    weight = group.weight
    if weight.dtype == np.int32:
        weight = unpacked(weight, is_transposed(call.weights[0]))
    k, n = weight.shape
    assert group.antiquant_scale is not None
    assert group.antiquant_offset is not None
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
        total = cube_product(x, floats, group.bias, call.given.cube_order)
        return np.asarray(total.astype(x.dtype))


def _takes_msd(call: _Call) -> bool:
    if call.given.template is not None:
        return bool(call.given.template == "msd")
    x, weight = call.xs[0], call.weights[0]
    if call.entries is None or len(weight.shape) != 3:
        return False
    experts, k, n = weight.shape
    is_int8 = np.asarray(weight).dtype == np.int8
    return choice.takes_msd(
        experts, len(x), k, n, int8=is_int8, single=len(call.xs) == 1, of_rows=True
    )


def _msd(x: Array, group: _Group, call: _Call) -> Array:
    """*x* `(rows, k)` times the weight `(k, n)`, in the type of x."""
    k, n = group.weight.shape
    if not len(x):
        return np.zeros((0, n), x.dtype)
    cores = CORES if call.given.spec is None else call.given.spec.cores["aic"].count
    blocks = choice.blocks_of(len(call.xs[0]), k, n, turned=is_transposed(call.weights[0]))
    assert call.entries is not None
    counts = tuple(count for _, count in call.entries)
    piece_k = choice.splits(counts, k, n, blocks, cores)[group.expert].piece_k
    assert group.antiquant_scale is not None
    assert group.antiquant_offset is not None
    wide = x.astype(F32)
    with np.errstate(all="ignore"):
        most = np.abs(wide).max(axis=1, keepdims=True)
        p = wide * (F32(127) / most)
        first = _away(p)
        second = _away((p - first) * F32(254))
        c1, c2 = (exact_int(_int8(d), group.weight).astype(F32) for d in (first, second))
        c = (c1 + c2 * F32(1 / 254)) * (most / F32(127))
        c = c + group.antiquant_offset.astype(F32) * _sums(wide, piece_k)[:, None]
        c = c * group.antiquant_scale.astype(F32)
        if group.bias is not None:
            c = c + group.bias.astype(F32)
        return np.asarray(c.astype(x.dtype))


def _away(values: Array) -> Array:
    """Whole numbers, ties away from zero."""
    whole = np.trunc(values)
    up = np.abs(values - whole) >= F32(0.5)
    return np.asarray(whole + np.where(up, np.copysign(F32(1), values), F32(0)))


def _int8(values: Array) -> Array:
    return np.clip(np.where(np.isnan(values), 0, values), -128, 127).astype(np.int8)


def _sums(values: Array, piece_k: int) -> Array:
    """The sum of each row: of parts, then of these."""
    parts = [_tree(values[:, k : k + piece_k]) for k in range(0, values.shape[1], piece_k)]
    return _tree(np.stack(parts, axis=1))


def _tree(values: Array) -> Array:
    """The sum of each row, 64 numbers as a tree of neighbours, and what comes of them again."""
    while True:
        more = -values.shape[1] % 64
        lanes = np.pad(values, ((0, 0), (0, more))).reshape(len(values), -1, 64)
        while lanes.shape[2] > 1:
            lanes = lanes[:, :, 0::2] + lanes[:, :, 1::2]
        values = lanes[:, :, 0]
        if values.shape[1] == 1:
            return np.asarray(values[:, 0])


# ---- int4 by integers ----


def _int4(x: Array, group: _Group, call: _Call) -> Array:
    """*x* `(rows, k)` times the weight `(k, n)`, int4 in int32, in the type of the output."""
    weight = unpacked(group.weight, is_transposed(call.weights[0]))
    assert group.scale is not None
    assert group.per_token_scale is not None
    words = group.scale.reshape(-1, weight.shape[1])
    with np.errstate(all="ignore"):
        if x.dtype == np.int8 and group.offset is None and _is_unpacked(call, words):
            return _unpacked_rows(x, weight, words[0], group.per_token_scale, call)
        if x.dtype == np.int8:
            assert group.bias is not None
            sums = _digit_sums(x, weight, words, call) + group.bias
            if group.offset is not None:
                sums = x.sum(axis=1, dtype=F32)[:, None] * group.offset + sums
        else:
            sums = scaled_groups(unpacked(x), weight, words).astype(F32)
        y = sums * group.per_token_scale[:, None]
        return np.asarray(y.astype(call.types.output.numpy))


def _digit_sums(x: Array, weight: Array, words: Array, call: _Call) -> Array:
    """`f32(lo) + f32(hi) * 16`; of two shapes groups of k are scaled and added up in float32."""
    (whole,), rows = call.weights, sum(len(x) for x in call.xs)
    sizes = whole.shape[0], rows, *weight.shape
    is_nz = isinstance(whole, Tensor) and whole.spec.layout == "FRACTAL_NZ"
    is_listed = is_nz and sizes in choice.VECTOR_DEQUANTISED
    if not (is_listed and len(words) * 256 == weight.shape[0] and not call.lists["offset"]):
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


def _is_unpacked(call: _Call, words: Array) -> bool:
    """Whether the weight becomes int8: one scale a column, at most four columns a row."""
    experts, rows = len(np.asarray(call.weights[0])), sum(len(x) for x in call.xs)
    return len(words) == 1 and words.shape[1] * experts <= 4 * rows


def _unpacked_rows(x: Array, weight: Array, words: Array, tokens: Array, call: _Call) -> Array:
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


ROWS: dict[str, Callable[[Array, _Group, _Call], Array]] = {
    "plain": _plain,
    "a8w8": _a8w8,
    "antiquant": _antiquant,
    "int4": _int4,
}
"""The `reference` of a row of support -> what computes rows."""
