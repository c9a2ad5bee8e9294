"""Writes into a paged cache on whole arrays in plain numpy."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.tensor import Tensor

__all__ = ["with_tokens", "written"]


def written(cache: Array, tokens: Array, slots: Array, *, is_nz: bool) -> Array:
    """*cache* with *tokens* `(tokens, heads, width)` at their *slots*; negative ones are left out.

    *cache* is `(blocks, block_size, heads, width)`, or `(blocks, numbers / C0, block_size, C0)`.
    """
    result = np.array(cache)
    kept = slots >= 0
    count = tokens.shape[1] * tokens.shape[2]
    numbers, places = tokens.reshape(-1, count)[kept], slots[kept]
    if not is_nz:
        result.reshape(-1, count)[places] = numbers
        return result
    _, fractals, block_size, lanes = result.shape
    blocks, offsets = np.divmod(places, block_size)
    result[blocks, :, offsets, :] = numbers.reshape(-1, fractals, lanes)
    return result


def with_tokens(
    cache: Array | Tensor, tokens: Array, slots: Array, *, is_nz: bool
) -> Array | Tensor:
    """The same for a cache in FRACTAL_NZ as well, which stays so."""
    if not isinstance(cache, Tensor):
        return written(cache, tokens, slots, is_nz=is_nz)
    return Tensor.of(written(cache.numpy(), tokens, slots, is_nz=is_nz), cache.spec.layout)
