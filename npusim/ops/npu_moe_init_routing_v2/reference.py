"""npu_moe_init_routing_v2 on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._oracle import Given

__all__ = ["oracle"]


def oracle(given: Given) -> tuple[Array, Array, Array, Array]:
    """The rows of each expert behind each other, where they are, their counts and their scales."""
    x, expert_idx, scale, expert_num = given.x, given.expert_idx, given.scale, given.expert_num
    is_padded, kind = given.drop_pad_mode == 1, given.expert_tokens_num_type
    first, last = given.active_expert_range or (0, expert_num)
    experts, k = expert_idx.ravel(), expert_idx.shape[1]
    is_active = (experts >= first) & (experts < last)
    order = np.argsort(np.where(is_active, experts, expert_num), kind="stable")
    places, coming = np.arange(is_active.sum()), order[: is_active.sum()]
    shape: tuple[int, ...] = (len(order),)
    if is_padded:
        places, coming = _padded(experts, expert_num, given.expert_capacity)
        shape = expert_num, given.expert_capacity
    new = x[coming // k]
    scales = np.zeros(np.prod(shape), np.float32)
    if given.quant_mode == 1:
        is_one_token = _is_one_token(x, expert_idx, scale, (first, last)) and (
            given.expert_tokens_num_flag and kind == 2 and not is_padded
        )
        factors = None if scale is None else scale[(experts[coming] - first) % len(scale)]
        new, scales[places] = _quantise(new, factors, is_one_token)
    elif scale is not None:
        scales[places] = scale[coming // k]
    rows = np.zeros((scales.size, x.shape[1]), new.dtype)
    rows[places] = new
    rows = rows.reshape(*shape, x.shape[1])
    index = order.astype(np.int32)
    if given.row_idx_type == 0:
        index = np.full_like(index, -1)
        index[coming] = places
    numbers = np.bincount(experts[is_active] - first, minlength=last - first).astype(np.int64)
    counts = _counts(numbers, kind, first, expert_num)
    return rows, index, counts if given.expert_tokens_num_flag else np.zeros_like(counts), scales


def _padded(experts: Array, expert_num: int, capacity: int) -> tuple[Array, Array]:
    """Places of rows `(kept,)`, and the choices that they are of; each expert has *capacity*."""
    own = [np.flatnonzero(experts == expert)[:capacity] for expert in range(expert_num)]
    places = [expert * capacity + np.arange(len(each)) for expert, each in enumerate(own)]
    return np.concatenate(places), np.concatenate(own)


def _counts(numbers: Array, kind: int, first: int, experts: int) -> Array:
    if kind == 0:
        return np.asarray(np.cumsum(numbers))
    if kind == 1:
        return numbers
    pairs = np.zeros((experts, 2), np.int64)
    present = np.flatnonzero(numbers)
    pairs[: len(present)] = np.stack([present + first, numbers[present]], axis=1)
    return pairs


def _is_one_token(x: Array, expert_idx: Array, scale: Array | None, active: object) -> bool:
    """Whether the kernel for single tokens of a certain model runs."""
    shapes = (x.shape, expert_idx.shape, None if scale is None else scale.shape)
    is_bf16 = x.dtype not in (np.float16, np.float32)
    return is_bf16 and active == (0, 256) and shapes == ((1, 7168), (1, 8), (256, 7168))


def _quantise(x: Array, factors: Array | None, is_one_token: bool) -> tuple[Array, Array]:
    """int8 rows and their scales, `max|v| / 127`."""
    with np.errstate(all="ignore"):
        values = x.astype(np.float32)
        if factors is not None:
            values = values * factors
        scales = np.max(np.abs(values), axis=1, initial=0) / np.float32(127)
        half = _half(values / scales[:, None], is_one_token)
        whole = np.where(np.isnan(half), 0, half)
        away = np.sign(whole) * np.floor(np.abs(whole) + 0.5)
        whole = np.rint(whole) if is_one_token else away
        return np.clip(whole, -128, 127).astype(np.int8), scales


def _half(values: Array, to_odd: bool) -> Array:
    """float32 *values* cut to the bits of float16, as float64; what is cut makes the last bit odd.

    Quotients are at most 127.5 or so, NaN, or subnormals of float16, whose bits are fewer.
    """
    wide = values.astype(np.float64)
    exponent = np.maximum(np.frexp(wide)[1] - 1, -14)
    unit = np.ldexp(1.0, exponent - 10)
    cut = np.trunc(wide / unit)
    if to_odd:
        is_even = cut % 2 == 0
        cut = np.where((cut * unit != wide) & is_even, cut + np.copysign(1, wide), cut)
    return np.asarray(cut * unit)
