"""npu_moe_gating_top_k on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._oracle import Given

__all__ = ["descending", "in_order", "oracle", "row_sums"]

LANES = 64
"""fp32 numbers of a repeat."""


def oracle(given: Given) -> tuple[Array, Array, Array]:
    """Weights `(rows, k)`, the experts that they are of, and what all experts got."""
    x, bias, is_sigmoid = given.x, given.bias, given.norm_type == 1
    groups = given.k_group, given.group_count, given.group_select_mode
    with np.errstate(all="ignore"):
        wide = x.astype(np.float32)
        scores = _sigmoid(wide) if is_sigmoid else _softmax(wide)
        keys = scores if bias is None else scores + bias.astype(np.float32)
        ranks = _kept(in_order(keys), keys, *groups)
        chosen = descending(ranks)[:, : given.k]
        weights = np.take_along_axis(scores, chosen, axis=1)
        if is_sigmoid:
            weights = weights / (row_sums(weights) + np.float32(given.eps))[:, None]
        weights = weights * np.float32(given.routed_scaling_factor)
        every = scores if given.out_flag else np.zeros_like(scores)
        return weights.astype(x.dtype), chosen.astype(np.int32), every


def _sigmoid(x: Array) -> Array:
    exponential = np.exp((x * np.float32(-1)).astype(np.float64)).astype(np.float32)
    return np.asarray(np.float32(1) / (exponential + np.float32(1)))


def _softmax(x: Array) -> Array:
    apart = x + np.max(x, axis=1, keepdims=True) * np.float32(-1)
    exponential = np.exp(apart.astype(np.float64)).astype(np.float32)
    return np.asarray(exponential * (np.float32(1) / row_sums(exponential))[:, None])


def row_sums(x: Array) -> Array:
    """Of 64 columns at a time neighbours onto neighbours, then one such sum after the other."""
    total: Array | None = None
    for start in range(0, x.shape[1], LANES):
        part = np.zeros((len(x), LANES), np.float32)
        columns = x[:, start : start + LANES]
        part[:, : columns.shape[1]] = columns
        while part.shape[1] > 1:
            part = part[:, 0::2] + part[:, 1::2]
        total = part[:, 0] if total is None else total + part[:, 0]
    assert total is not None
    return total


def in_order(keys: Array) -> Array:
    """An integer for each of *keys* in their order: -0 is 0, and NaN above infinity."""
    bits = keys.astype(np.float32).view(np.int32).astype(np.int64)
    ranks = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return np.where(np.isnan(keys), 2**31, ranks)


def descending(ranks: Array) -> Array:
    """The places of *ranks* from the largest on, of equal ones the first one first."""
    return np.argsort(-ranks, axis=-1, kind="stable")


def _kept(ranks: Array, keys: Array, kept: int, groups: int, mode: int) -> Array:
    """*ranks*, with the smallest number of all in groups that are left out."""
    rows, experts = ranks.shape
    if groups in (1, experts) or kept == groups:
        return ranks
    by_group = (rows, groups, experts // groups)
    leading = np.take_along_axis(
        keys.reshape(by_group), descending(ranks.reshape(by_group))[..., :2], axis=-1
    )
    scores = leading[..., 0] + leading[..., 1] if mode == 1 else leading[..., 0]
    best = descending(in_order(scores))[:, :kept]
    is_kept = np.zeros((rows, groups), bool)
    np.put_along_axis(is_kept, best, True, axis=1)
    return np.where(np.repeat(is_kept, experts // groups, axis=1), ranks, -(2**40))
