"""Whole arrays of query and keys by request, whatever the layout: what references begin with."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.integers import ceil_div
from npusim.ops._attention.description import Attention, Side

__all__ = ["hidden", "keys_of", "tokens_of"]


def tokens_of(a: Attention, side: Side, array: Array, request: int, length: int) -> Array:
    """The first *length* tokens of *request* in *array*, `(heads, length, columns)`; a view."""
    flat = np.ascontiguousarray(array).reshape(-1)
    pitches = side.head_pitch, side.token_pitch, 1
    return np.lib.stride_tricks.as_strided(
        flat[side.starts[request] :],
        (side.heads, length, a.head_size),
        tuple(flat.itemsize * pitch for pitch in pitches),
    )


def keys_of(a: Attention, name: str, array: Array, request: int) -> Array:
    """The keys or values of *request*, `(heads, keys, columns)`, in or out of pages."""
    side, length, page = a.keys(name), a.kv_lengths[request], a.paging
    if page is None:
        return tokens_of(a, side, array, request, length)
    blocks = list(page.tables[request][: ceil_div(length, page.block_size)])
    # Blocks, then tokens and heads, or heads and tokens, then columns.
    shape = (page.block_size, a.kv_heads) if not page.heads_first else (a.kv_heads, page.block_size)
    chosen = array.reshape(page.blocks, *shape, a.head_size)[blocks]
    by_head = np.moveaxis(chosen, 1 if page.heads_first else 2, 0)
    return by_head.reshape(a.kv_heads, len(blocks) * page.block_size, a.head_size)[:, :length]


def hidden(a: Attention, request: int) -> Array:
    """Which keys of *request* its lengths hide, `(query tokens, keys)`; see `Attention.window`."""
    first, last = a.window(request)
    rows = np.arange(a.query_lengths[request])[:, None]
    keys = np.arange(a.kv_lengths[request])[None, :]
    found = np.zeros((rows.size, keys.size), np.bool_)
    if first is not None:
        found |= keys < rows + first
    if last is not None:
        found |= keys > rows + last
    return found
