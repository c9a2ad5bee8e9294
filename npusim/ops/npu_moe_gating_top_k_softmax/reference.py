"""npu_moe_gating_top_k_softmax on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._oracle import Given

__all__ = ["oracle"]

REPEAT_BYTES = 256
"""What is added up as a tree; one after the other beyond that."""


def oracle(given: Given) -> tuple[Array, Array, Array]:
    """Weights, experts and the places of the rows that go to them, each `(..., k)`."""
    x, finished, k = given.x, given.finished, given.k
    shape = (*x.shape[:-1], k)
    wide = x.reshape(-1, x.shape[-1])
    if x.dtype != np.float16:
        wide = wide.astype(np.float32)
    with np.errstate(all="ignore"):
        scores = _softmax(wide)
        # NaN is above all, and -0 does not occur.
        ranks = np.where(np.isnan(scores), np.float32(np.inf), scores.astype(np.float32))
        experts = np.argsort(-ranks, axis=-1, kind="stable")[:, :k]
        weights = np.take_along_axis(scores, experts, axis=-1)
    if finished is not None:
        experts = np.where(finished.reshape(-1, 1) != 0, x.shape[-1], experts)
    rows = len(wide)
    places = np.arange(k) * rows + np.arange(rows)[:, None]
    results = (_half_away(weights, x), experts.astype(np.int32), places.astype(np.int32))
    weights, experts, places = (each.reshape(shape) for each in results)
    return weights, experts, places


def _softmax(x: Array) -> Array:
    """In the type of *x*, float32 or float16, each step rounded to it."""
    apart = x - np.max(x, axis=-1, keepdims=True)
    exponential = np.exp(apart.astype(np.float64)).astype(x.dtype)
    return np.asarray(exponential / _row_sums(exponential)[:, None])


def _row_sums(x: Array) -> Array:
    lanes = REPEAT_BYTES // x.itemsize
    total: Array | None = None
    for start in range(0, x.shape[1], lanes):
        part = np.zeros((len(x), lanes), x.dtype)
        columns = x[:, start : start + lanes]
        part[:, : columns.shape[1]] = columns
        while part.shape[1] > 1:
            part = part[:, 0::2] + part[:, 1::2]
        total = part[:, 0] if total is None else total + part[:, 0]
    assert total is not None
    return total


def _half_away(weights: Array, x: Array) -> Array:
    """*weights* in the type of *x*; to bfloat16 halves go away from zero."""
    if weights.dtype == x.dtype:
        return weights
    bits = weights.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x8000) >> 16).astype(np.uint16).view(x.dtype)
    return np.where(np.isnan(weights), weights.astype(x.dtype), rounded)
