"""Calls of npu_fused_infer_attention_score with rotated parts of heads, in all layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attention_calls import STENCIL
from attention_layouts import in_pages, laid_out
from numpy.typing import NDArray

__all__ = ["hidden_of", "rotated_call"]

Array = NDArray[Any]
ROTATED = 64


def in_fractals(cache: Array) -> Array:
    """A cache `(blocks, heads, tokens, columns)` as `(blocks, heads, columns / 16, tokens, 16)`."""
    return cache.reshape(*cache.shape[:3], -1, 16).swapaxes(2, 3).copy()


def rotated_call(
    rng: np.random.Generator,
    layout: str,
    lengths: tuple[Sequence[int], Sequence[int]],
    heads: tuple[int, int],
    columns: int,
    dtype: Any,
    *,
    block_size: int = 0,
    dimensions: int = 4,
    **more: Any,
) -> tuple[dict[str, Any], list[tuple[Array, Array, Array]]]:
    """A call, and query, key and value of each request with their rotated parts behind them.

    Of 512 *columns* keys are the values, too. A cache has 3, 4 or 5 *dimensions*.
    """

    def tensor(count: int, length: int, size: int) -> Array:
        return rng.standard_normal((count, length, size)).astype(dtype)

    inner, sums = layout.partition("_")[0], "T" in layout
    every = []
    for queries, keys in zip(*lengths, strict=True):
        sizes = (heads[0], queries), (heads[1], keys)
        own = [tensor(*size, width) for size in sizes for width in (columns, ROTATED)]
        every.append((*own, own[2] if columns == 512 else tensor(*sizes[1], columns)))
    names = "query", "query_rope", "key", "key_rope", "value"
    parts = dict(zip(names, map(list, zip(*every, strict=True)), strict=True))
    call: dict[str, Any] = {
        "actual_seq_lengths": np.cumsum(lengths[0]).tolist() if sums else list(lengths[0]),
        "actual_seq_lengths_kv": np.cumsum(lengths[1]).tolist() if sums else list(lengths[1]),
        "num_heads": heads[0],
        "num_key_value_heads": heads[1],
        "scale": (columns + ROTATED) ** -0.5,
        "input_layout": layout,
    }
    state = rng.bit_generator.state
    for name, own in parts.items():
        if block_size and not name.startswith("query"):
            # The same blocks for all of them.
            rng.bit_generator.state = state
            call[name], call["block_table"] = in_pages(rng, own, block_size, dimensions > 3)
            call[name] = in_fractals(call[name]) if dimensions == 5 else call[name]
            call |= {"block_size": block_size, "actual_seq_lengths_kv": list(lengths[1])}
        else:
            call[name] = laid_out(own, inner, max(lengths["key" in name or name == "value"]))
    if more.get("sparse_mode", 0) in (2, 3, 4):
        call["atten_mask"] = STENCIL
    behind = [
        (np.concatenate(own[:2], axis=2), np.concatenate(own[2:4], axis=2), own[4]) for own in every
    ]
    return call | more, behind


def hidden_of(call: dict[str, Any], queries: int, keys: int) -> Array:
    """Which keys a request's tokens do not see by sparse_mode 0, 3 and 4, `(tokens, keys)`."""
    apart = np.arange(keys) - np.arange(queries)[:, None] - keys + queries
    before, after = 2**31, 2**31
    if call.get("sparse_mode") == 3:
        after = 0
    elif call.get("sparse_mode") == 4:
        before, after = call["pre_tokens"], call["next_tokens"]
    return (apart > after) | (apart < -before)
