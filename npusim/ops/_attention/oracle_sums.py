"""Softmax of tiles, sums in the order of the attention kernels, and rounding, for oracles."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import FLOAT16, Array, DType

Single = NDArray[np.float32]
F32 = np.float32
LANES = 64
"""fp32 in a repeat."""
Multiply = Callable[[Array, Array], Single]
"""What the cube makes of two matrices."""
Tiles = list[tuple[int, int]]
"""The keys [first, last) of each tile."""


class State(NamedTuple):
    """The state of rows after a piece."""

    largest: Single
    """`(rows,)`, and *total* likewise."""
    total: Single
    out: Single
    """`(rows, width)`, divided by the total."""


def softmax(
    rows: int,
    scores: Callable[[slice], Single],
    product: Callable[[slice, Single], Single],
    sums: Callable[[Single], Single],
    lowest: np.float32,
    differences: type[np.floating[Any]] = np.float32,
) -> Callable[[Tiles], State]:
    """A piece of *rows* whose tiles have these *scores*, *product* and *sums*, one by one.

    Scores less their maximum are rounded to type *differences*.
    """

    def piece(tiles: Tiles) -> State:
        largest, total = np.full(rows, lowest, F32), np.zeros(rows, F32)
        out: Single | None = None
        for here in (slice(*tile) for tile in tiles):
            s = scores(here)
            new = np.maximum(largest, s.max(axis=1))
            faded = nearest(np.exp, largest - new)
            p = nearest(np.exp, (s - new[:, None]).astype(differences))
            total = faded * total + sums(p)
            largest, more = new, product(here, p)
            out = more if out is None else out * faded[:, None] + more
        assert out is not None
        return State(largest, total, out / total[:, None])

    return piece


# ---- sums and roundings ----


def sums_by_64(p: Single) -> Single:
    """FAI: the sum of each row of *p* `(rows, keys)`.

    512 and 256 elements are summed as a tree of neighbours; other counts 64 at a time, one sum
    after another. The tree is padded with 0 (assumed).
    """
    if p.shape[1] in (256, 512):
        return _neighbours(p)
    starts = range(0, p.shape[1], LANES)
    return reduce(np.add, [_neighbours(p[:, start : start + LANES]) for start in starts])


def sums_by_128(p: Array) -> Array:
    """FAI in fp16: likewise, but 128 at a time for counts other than 512 and 256."""
    if p.shape[1] in (256, 512):
        return _neighbours(p)
    starts = range(0, p.shape[1], 2 * LANES)
    return reduce(np.add, [_neighbours(p[:, start : start + 2 * LANES]) for start in starts])


def row_sums(p: Single) -> Single:
    """FIA: the sum of each row of *p* `(rows, keys)` as the softmax library computes it.

    64 running sums, then these as a tree of neighbours. With 512 columns or more the first ones are
    sums of 8 neighbours, with 128 or more `x[j] + x[64 + j]`; each further 64 columns are added to
    them one by one, and the final remainder to the first of them (asc-devkit@82b89a1
    impl/adv_api/detail/activation/softmax/membase/v220).
    """
    rows, keys = p.shape
    if keys < LANES:
        return _neighbours(p)
    if keys >= 512:
        sums, start = _neighbours(p[:, :512].reshape(rows, LANES, 8)), 512
    else:
        sums, start = p[:, :LANES].copy(), LANES
    for first in range(start, keys, LANES):
        more = p[:, first : first + LANES]
        sums[:, : more.shape[1]] += more
    return _neighbours(sums)


def _neighbours(x: Single) -> Single:
    """`(..., n)` -> `(...)`: add neighbours, then neighbouring sums, padded with zeros."""
    width = 1 << (x.shape[-1] - 1).bit_length()
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return np.asarray(x[..., 0])


def nearest(function: np.ufunc, x: Array, kind: type[np.floating[Any]] = F32) -> Array:
    """*function* of *x*, rounded once to type *kind*."""
    return np.asarray(function(x.astype(np.float64)), kind)


def away(x: Single, element: DType) -> Array:
    """*x* rounded to *element*, ties away from zero."""
    if element is not FLOAT16:
        # Drop the lower half of the bits; adding half of the last remaining one rounds up.
        up = (x.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
        up = np.where(np.isnan(x), np.uint32(0x7FC00000), up)
        return np.asarray(up.view(np.float32).astype(element.numpy))
    # fp16: 11 bits from the leading one, but none below 2**-24.
    _, exponent = np.frexp(x.astype(np.float64))
    unit = np.ldexp(1.0, np.maximum(exponent - 11, -24))
    whole = np.floor(np.abs(x) / unit + 0.5) * unit
    return np.asarray(np.copysign(whole, x).astype(np.float16))
