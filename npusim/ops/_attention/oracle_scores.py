"""pse and dropout on whole arrays in plain numpy, for the oracles of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import Array
from npusim.ops._attention.oracle_sums import F32, Single, nearest
from npusim.ops._attention.problem import Attention
from npusim.ops._attention.scores import INNER_ROOT, Places


class Where(NamedTuple):
    """Scores of a request: heads and tokens of the rows `(rows,)`, and keys `(keys,)`."""

    request: int
    heads: NDArray[np.int64]
    tokens: NDArray[np.int64]
    keys: NDArray[np.int64]


def _indices(places: Places, where: Where) -> NDArray[np.int64]:
    """The index of the element of each score, `(rows, keys)`."""
    tokens, keys = places.tokens[where.request], places.keys[where.request]
    rows = where.heads * tokens + np.minimum(where.tokens, tokens - 1)
    columns = np.minimum(where.keys, keys - 1)
    found: NDArray[np.int64] = places.starts[where.request] + rows[:, None] * keys + columns
    return found


def scaled(a: Attention, arrays: Mapping[str, Array], where: Where, scores: Single) -> Single:
    """*scores* times scale, with pse."""
    bias, scale = a.bias, F32(a.scale)
    if bias is None:
        return np.asarray(scores * scale)
    values = arrays["pse"].reshape(-1)[_indices(bias.places, where)].astype(F32)
    if bias.kind == "slopes":
        apart = np.abs(where.keys - where.tokens[:, None] + bias.shift).astype(F32)
        if bias.pse_type == INNER_ROOT:
            apart = nearest(np.sqrt, apart)
        values = -(apart * values)
    return np.asarray((scores + values) * scale if bias.is_scaled else scores * scale + values)


def dropped(a: Attention, arrays: Mapping[str, Array], where: Where, p: Single) -> Single:
    """*p* with dropout."""
    if a.dropout is None:
        return p
    index = _indices(a.dropout.places, where)
    bits = arrays["dropout_mask"].reshape(-1)[index // 8] >> (index % 8).astype(np.uint8)
    return np.asarray((p * (bits & 1).astype(F32)) * F32(a.dropout.factor))
