"""The results of FIA-MLA for rows, on whole arrays in plain numpy: the formulas of `mla_vector`.

Sums of products accumulate in one place, tile after tile. In between their exponents are adjusted
as integers, by about as much as maxima have grown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import Array
from npusim.ops._attention.oracle_sums import (
    F32,
    Multiply,
    Single,
    State,
    Tiles,
    away,
    nearest,
    row_sums,
)
from npusim.ops._attention.problem import Attention

REPLACED = F32(-1e12)
LN2, PER_LN2 = F32(np.log(2)), F32(1 / np.log(2))


def joined_columns(a: Attention, plain: Array, rotated: Array | None = None) -> Array:
    """Columns of queries or keys in the order in which the cube sums their products."""
    if rotated is None:
        return plain
    if not a.is_latent:
        return np.concatenate([plain, rotated], axis=-1)
    halves = plain[..., :256], rotated[..., :32], rotated[..., 32:], plain[..., 256:]
    return np.concatenate(halves, axis=-1)


def latent_piece(
    a: Attention, q: Array, k: Array, v: Array, hidden: NDArray[np.bool_], multiply: Multiply
) -> Callable[[Tiles], State]:
    """The rows of *q* `(rows, 576)`, keys *k* `(keys, 576)` and values *v* `(keys, 512)`."""

    def piece(tiles: Tiles) -> State:
        largest: Single = np.full(len(q), -np.inf, F32)
        total: Single = np.zeros(len(q), F32)
        power: Single = np.zeros(len(q), F32)
        factor: Single = np.ones(len(q), F32)
        out: Single = np.zeros((len(q), v.shape[1]), F32)
        scale = factor
        for here in (slice(*tile) for tile in tiles):
            found = multiply(q, k[here].T) * F32(a.scale)
            s = np.where(hidden[:, here], REPLACED, found)
            new = np.maximum(largest, s.max(axis=1))
            p = nearest(np.exp, s - new[:, None])
            total = nearest(np.exp, largest - new) * total + row_sums(p)
            largest, before, factor_before = new, power, factor
            power = _away(largest * -PER_LN2)
            wide = nearest(np.exp, (largest * PER_LN2 + power) * LN2)
            scale = away(wide, a.element).astype(F32)
            factor = np.asarray(wide / scale, F32)
            if here.start > tiles[0][0]:
                change = ((factor_before / factor) - F32(1)) * F32(1.5) + F32(1e-6)
                step = _away((np.maximum(power - before, F32(-30)) + change) * F32(2**23))
                bits = out.view(np.int32) + step.astype(np.int32)[:, None]
                out = bits.view(F32)
            weights = away(p * scale[:, None], a.element)
            out = out + multiply(weights, v[here])
        out = np.where(np.abs(out) <= F32(1e10), out, F32(0))
        return State(largest, total, out / (total * scale)[:, None])

    return piece


def _away(x: NDArray[np.floating[Any]]) -> Single:
    """*x* rounded to integers, ties away from zero."""
    return np.asarray(np.copysign(np.floor(np.abs(x.astype(np.float64)) + 0.5), x), F32)
