"""Calls of npu_fused_infer_attention_score in all layouts, and attention in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attention_calls import STENCIL
from numpy.typing import NDArray

__all__ = ["by_request", "float64_rows", "layout_call"]

Array = NDArray[Any]
ORDERS = {
    "BSH": "BSND", "BSH_BNSD": "BSND", "BSND_BNSD": "BSND", "BNSD_BSND": "BNSD", "NTD_TND": "NTD",
}  # fmt: skip
"""Layouts whose tensors are ordered as those of another one."""


def laid_out(requests: Sequence[Array], layout: str, room: int) -> Array:
    """*requests* `(heads, tokens, columns)` each, in *layout*, with *room* for tokens."""
    order = ORDERS.get(layout, layout)
    if "T" in order:
        every = np.concatenate(requests, axis=1)
        return every.copy() if order == "NTD" else every.swapaxes(0, 1).copy()
    heads, _, columns = requests[0].shape
    found = np.zeros((len(requests), heads, room, columns), requests[0].dtype)
    for request, own in zip(found, requests, strict=True):
        request[:, : own.shape[1]] = own
    if order == "BSND":
        found = found.swapaxes(1, 2).copy()
    return found.reshape(*found.shape[:2], -1) if "BSH" in layout else found


def by_request(array: Array, layout: str, lengths: Sequence[int], heads: int) -> list[Array]:
    """The other way round: `(heads, tokens, columns)` of each request."""
    order = ORDERS.get(layout, layout)
    if "T" in order:
        every = array if order == "NTD" else array.swapaxes(0, 1)
        ends = np.cumsum(lengths)
        return [every[:, end - own : end] for own, end in zip(lengths, ends, strict=True)]
    if layout == "BSH":
        array = array.reshape(*array.shape[:2], heads, -1)
    if order == "BSND":
        array = array.swapaxes(1, 2)
    return [request[:, :own] for request, own in zip(array, lengths, strict=True)]


def in_pages(
    rng: np.random.Generator, requests: Sequence[Array], size: int, heads_first: bool
) -> tuple[Array, Array]:
    """Keys scattered over a cache in blocks of *size*, and the block table."""
    heads, _, columns = requests[0].shape
    needed = [-(-own.shape[1] // size) for own in requests]
    blocks = rng.permutation(sum(needed) + 2).astype(np.int32)
    cache = np.zeros((len(blocks), heads, size, columns), requests[0].dtype)
    table = np.zeros((len(needed), max(needed) + 1), np.int32)
    first = 0
    for row, own, count in zip(table, requests, needed, strict=True):
        row[:count] = blocks[first : first + count]
        for index in range(count):
            part = own[:, index * size : (index + 1) * size]
            cache[row[index], :, : part.shape[1]] = part
        first += count
    if not heads_first:
        cache = cache.swapaxes(1, 2).reshape(len(blocks), size, -1).copy()
    return cache, table


def layout_call(
    rng: np.random.Generator,
    layout: str,
    lengths: tuple[Sequence[int], Sequence[int]],
    heads: tuple[int, int],
    columns: int,
    dtype: Any,
    *,
    block_size: int = 0,
    heads_first: bool = False,
    **more: Any,
) -> tuple[dict[str, Any], list[tuple[Array, Array, Array]]]:
    """A call with random tokens of requests, and query, key and value of each request."""

    def tensor(count: int, length: int) -> Array:
        return rng.standard_normal((count, length, columns)).astype(dtype)

    queries, keys = lengths
    every = [
        (tensor(heads[0], q), tensor(heads[1], k), tensor(heads[1], k))
        for q, k in zip(queries, keys, strict=True)
    ]
    query, key, value = (list(parts) for parts in zip(*every, strict=True))
    sums = "T" in layout
    call: dict[str, Any] = {
        "query": laid_out(query, layout, max(queries)),
        "actual_seq_lengths": np.cumsum(queries).tolist() if sums else list(queries),
        "actual_seq_lengths_kv": np.cumsum(keys).tolist() if sums else list(keys),
        "num_heads": heads[0],
        "num_key_value_heads": heads[1],
        "scale": columns**-0.5,
        "input_layout": layout,
    }
    if block_size:
        state = rng.bit_generator.state
        call["key"], call["block_table"] = in_pages(rng, key, block_size, heads_first)
        # The same blocks for values.
        rng.bit_generator.state = state
        call["value"], _ = in_pages(rng, value, block_size, heads_first)
        call |= {"block_size": block_size, "actual_seq_lengths_kv": list(keys)}
    else:
        call["key"], call["value"] = (laid_out(x, layout, max(keys)) for x in (key, value))
    is_single = max(queries) == 1 and layout in ("BSH", "BSND", "BNSD")
    if more.get("sparse_mode", 0) in (2, 3, 4) and not is_single:
        call["atten_mask"] = STENCIL
    return call | more, every


def float64_rows(q: Array, k: Array, v: Array, hidden: Array, scale: float) -> tuple[Array, Array]:
    """What the document's formula gives of a request, `(heads, tokens, columns)`, in float64.

    *hidden* is `(tokens, keys)`. With it come the tokens that see a key.
    """
    seen = ~hidden.all(axis=1)
    group = len(q) // len(k)
    found = np.zeros((*q.shape[:2], v.shape[2]))
    for head in range(len(q)):
        own, values = (x[head // group].astype(np.float64) for x in (k, v))
        scores = np.where(hidden, -np.inf, q[head].astype(np.float64) @ own.T * scale)
        with np.errstate(invalid="ignore"):
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            found[head] = p @ values / p.sum(axis=1, keepdims=True)
    return np.where(seen[:, None], found, 0), seen
