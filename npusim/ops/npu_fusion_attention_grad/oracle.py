"""The gradient of attention on whole tiles in plain numpy: the oracle.

Cores add their tiles one after the other, the first core first: atomic adds have this order here;
on a card it is undefined.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import Array
from npusim.devices.schema import DeviceSpec
from npusim.ops._attention.fia_tiling import Rows
from npusim.ops._attention.oracle_scores import Where, dropped, scaled
from npusim.ops._attention.oracle_sums import F32, Multiply, Single, away, nearest, row_sums
from npusim.ops._attention.problem import Attention
from npusim.ops._attention.sides import sides_of
from npusim.ops.npu_fusion_attention_grad.cube import SLICE
from npusim.ops.npu_fusion_attention_grad.tiles import SIDES, Tile, schedule


def gradients(
    a: Attention, arrays: Mapping[str, Array], spec: DeviceSpec, multiply: Multiply
) -> tuple[Array, ...]:
    """The gradients of query, key and value."""
    names = ("query", "key", "value")
    sums = [np.zeros(arrays[name].size, F32) for name in names]
    every = sorted(schedule(a, spec.cores["aic"].count), key=lambda x: (x.core, x.number))
    with np.errstate(all="ignore"):
        for tile in every:
            views = [
                _rows(a, SIDES[name], flat, tile) for name, flat in zip(names, sums, strict=True)
            ]
            for view, parts in zip(views, _of_tile(a, arrays, tile, multiply), strict=True):
                for here, part in parts:
                    view[here] += part
        scaled = [sums[0] * F32(a.scale), sums[1] * F32(a.scale), sums[2]]
        return tuple(
            away(flat, a.element).reshape(arrays[name].shape)
            for name, flat in zip(names, scaled, strict=True)
        )


Parts = list[tuple[slice, Single]]
"""Rows of a sum, and the values added to them."""


def _of_tile(
    a: Attention, arrays: Mapping[str, Array], tile: Tile, multiply: Multiply
) -> tuple[Parts, Parts, Parts]:
    """The contributions of *tile* to the sums of its tokens, and twice to those of its keys."""

    def rows(name: str) -> Array:
        return _rows(a, SIDES[name], arrays[name].reshape(-1), tile)

    query, key, value, dy = (rows(name) for name in ("query", "key", "value", "dy"))
    delta = row_sums(dy.astype(F32) * rows("attention_in").astype(F32))
    largest, total = (
        _rows(a, name, arrays[name].reshape(-1), tile)[:, :1]
        for name in ("softmax_max", "softmax_sum")
    )
    tokens, keys = np.arange(tile.tokens) + tile.token, np.arange(tile.keys) + tile.key
    where = Where(tile.request, np.full(tile.tokens, tile.head), tokens, keys)
    scores = scaled(a, arrays, where, multiply(query, key.T))
    scores = np.where(_hidden(a, arrays, tile), F32(a.hidden), scores)
    shares: Single = np.asarray(nearest(np.exp, scores - largest) / total, F32)
    slopes = dropped(a, arrays, where, multiply(dy, value.T))
    differences = away(np.asarray((slopes - delta[:, None]) * shares, F32), a.element)
    every = slice(0, tile.tokens)
    of_query = [
        (every, multiply(differences[:, here], key[here]))
        for here in (slice(start, start + SLICE) for start in range(0, tile.keys, SLICE))
    ]
    of_key = multiply(differences.T, query)
    of_value = multiply(away(dropped(a, arrays, where, shares), a.element).T, dy)
    own = slice(0, tile.keys)
    return of_query, [(own, of_key)], [(own, of_value)]


def _rows(a: Attention, name: str, flat: Array, tile: Tile) -> Array:
    """The rows of *tile* in a tensor whose elements are *flat*; a view."""
    side = sides_of(a)[name]
    head = tile.head // (a.query_heads // side.heads)
    is_key = name in ("key", "value")
    first, count = (tile.key, tile.keys) if is_key else (tile.token, tile.tokens)
    place = side.at(tile.request, head, first)
    return np.lib.stride_tricks.as_strided(
        flat[place:],
        (count, side.columns),
        (flat.itemsize * side.token_pitch, flat.itemsize),
    )


def _hidden(a: Attention, arrays: Mapping[str, Array], tile: Tile) -> NDArray[np.bool_]:
    """The mask of keys that are hidden from each token."""
    tokens, keys = np.arange(tile.tokens) + tile.token, np.arange(tile.keys) + tile.key
    apart = keys - tokens[:, None]
    found = np.zeros(apart.shape, np.bool_)
    first, last = a.window(tile.request)
    if first is not None:
        found |= apart < first
    if last is not None:
        found |= apart > last
    if a.is_stencil:
        found &= keys >= Rows(a).prefix(tile.request)
    mask = Rows(a).mask
    if mask is not None:
        places = tile.request * mask.request + tokens[:, None] * mask.pitch + keys
        found |= arrays["atten_mask"].reshape(-1)[places].astype(np.bool_)
    return found
