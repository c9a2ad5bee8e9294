"""What FAI computes, on whole arrays: its roundings, and the order of its sums.

.. code-block:: text

    s = fp32(q . k) * scale (- 3e38 where hidden)       a tile of 512 keys after the other
    m' = max(m, max(s)); shrink = exp(m - m'); p = exp(s - m')
    l = shrink * l + sum(p)                             of p in fp32
    O = O * shrink + T(p) @ v                           of p in the type of q, ties to even
    output = T(O / l); softmax_lse = ln(l) + m

All is fp32, one rounding an operation. The sum of 512 or of 256 numbers is a tree of neighbours;
of other counts it is that of each 64 numbers, one after the other.

Sources: see :mod:`npusim.ops._attention.fai`. Assumed: that exp and ln give the nearest number, and
that what a tree lacks counts as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from npusim.data.dtypes import Array, DType
from npusim.ops._attention.description import Attention
from npusim.ops._attention.tokens import hidden, keys_of, tokens_of
from npusim.ops._products import cube_product

__all__ = ["attend", "attend_rows"]

TILE = 512
"""Keys of a tile."""
BLOCK = 128
"""Query tokens of a block: what its last token does not see is left out of the last tile."""
HIDDEN = np.float32(-3e38)
"""What is added to a score that is hidden."""
CHUNK = 64
"""Numbers of a repeat: what is summed up by itself where a tile is not 256 or 512 wide."""
CubeOrder = Literal["k16", "k8", "k4", "k1"]


class Sums(NamedTuple):
    """What is known of rows after some tiles: `(rows, 1)` each, and O `(rows, columns)`."""

    largest: Array
    total: Array
    output: Array


def attend(
    a: Attention,
    query: Array,
    key: Array,
    value: Array,
    cube_order: CubeOrder = "k16",
    ends: Mapping[tuple[int, int], tuple[int, ...]] | None = None,
) -> tuple[Array, Array]:
    """What all tokens attend to, `(tokens, heads, columns)`, and softmax_lse `(tokens, heads, 1)`.

    Of requests without keys they are 0 and infinity. *ends* says where keys are split: request and
    query head -> the keys before which each piece ends.
    """
    tokens = sum(a.query_lengths)
    output = np.zeros((tokens, a.query_heads, a.head_size), query.dtype)
    lse = np.full((tokens, a.query_heads, 1), np.inf, np.float32)
    first = 0
    for request, length in enumerate(a.query_lengths):
        q = tokens_of(a, a.query, query, request, length)
        k, v = keys_of(a, "key", key, request), keys_of(a, "value", value, request)
        masked = hidden(a, request)
        for start in range(0, length, BLOCK):
            rows = slice(start, min(start + BLOCK, length))
            seen = seen_keys(a, request, start)
            for head in range(a.query_heads if seen else 0):
                of_head = head // a.group
                begin = first_key(a, request, start)
                cuts = (begin, *(ends or {}).get((request, head), (seen,)))
                pieces = []
                for start_key, end in pairwise(cuts):
                    own = slice(start_key, end)
                    arrays = q[head, rows], k[of_head, own], v[of_head, own], masked[rows, own]
                    pieces.append(attend_rows(a, *arrays, cube_order))
                here = slice(first + rows.start, first + rows.stop)
                found, lse[here, head] = combined(pieces)
                output[here, head] = found.astype(query.dtype)
        first += length
    return output, lse


def seen_keys(a: Attention, request: int, start: int) -> int:
    """Keys of *request* that the block of query tokens from *start* on looks at."""
    keys = a.kv_lengths[request]
    _, last = a.window(request)
    return keys if last is None else min(keys, max(0, start + BLOCK + last))


def first_key(a: Attention, request: int, start: int) -> int:
    """The key that begins the first tile which the block from *start* on looks at."""
    first, _ = a.window(request)
    return 0 if first is None else max(0, start + first) // TILE * TILE


def attend_rows(
    a: Attention, q: Array, k: Array, v: Array, masked: Array, cube_order: CubeOrder
) -> Sums:
    """One head: q `(rows, columns)`, k and v `(keys, columns)`, masked `(rows, keys)`."""
    sums: Sums | None = None
    for start in range(0, len(k), TILE):
        tile = slice(start, start + TILE)
        scores = cube_product(q, k[tile].T, order=cube_order) * np.float32(a.scale)
        # A tile without hidden scores is left as it is; adding 0 changes no score that matters.
        if masked[:, tile].any():
            scores = scores + masked[:, tile].astype(np.float32) * HIDDEN
        sums = _with_tile(sums, scores, v[tile], a.element, cube_order)
    assert sums is not None
    return sums


def _with_tile(
    sums: Sums | None, scores: Array, v: Array, element: DType, cube_order: CubeOrder
) -> Sums:
    """*sums* after a tile more: scores `(rows, keys)`, v `(keys, columns)`."""
    largest = scores.max(axis=1, keepdims=True)
    if sums is not None:
        largest = np.maximum(sums.largest, largest)
    p = _nearest(np.exp, scores - largest)
    product = cube_product(p.astype(element.numpy), v, order=cube_order)
    if sums is None:
        return Sums(largest, row_sums(p), product)
    shrink = _nearest(np.exp, sums.largest - largest)
    total = shrink * sums.total + row_sums(p)
    return Sums(largest, total, sums.output * shrink + product)


def row_sums(p: Array) -> Array:
    """The sum of each row of *p* `(rows, keys)`, `(rows, 1)`."""
    columns = p.shape[1]
    if columns in (256, 512):
        return _tree(p)
    chunks = [_tree(p[:, start : start + CHUNK]) for start in range(0, columns, CHUNK)]
    total = chunks[0]
    for chunk in chunks[1:]:
        total = total + chunk
    return total


def combined(pieces: list[Sums]) -> tuple[Array, Array]:
    """O / l of rows `(rows, columns)` and softmax_lse `(rows, 1)`, of *pieces* of the keys."""
    each = [_nearest(np.log, piece.total) + piece.largest for piece in pieces]
    if len(pieces) == 1:
        return pieces[0].output / pieces[0].total, each[0]
    # The first axis counts the pieces.
    every = np.stack(each)
    largest = every.max(axis=0)
    lse = _nearest(np.log, _by_halves(_nearest(np.exp, every - largest))) + largest
    total = np.zeros_like(pieces[0].output)
    for piece, weight in zip(pieces, _nearest(np.exp, every - lse), strict=True):
        total = weight * (piece.output / piece.total) + total
    return total, lse


def _by_halves(numbers: Array) -> Array:
    """The sum over the first axis: of a multiple of eight, the upper half onto the lower one."""
    count = -(-len(numbers) // 8) * 8
    padded = np.zeros((count, *numbers.shape[1:]), np.float32)
    padded[: len(numbers)] = numbers
    half = 1 << (count.bit_length() - 1)
    padded[: count - half] += padded[half:]
    while half > 1:
        half //= 2
        padded[:half] += padded[half : 2 * half]
    return np.asarray(padded[0])


def _tree(p: Array) -> Array:
    """Neighbours added, then neighbours of these, as if there were zeros behind."""
    width = 1 << (p.shape[1] - 1).bit_length()
    numbers = np.zeros((p.shape[0], width), np.float32)
    numbers[:, : p.shape[1]] = p
    while numbers.shape[1] > 1:
        numbers = numbers[:, ::2] + numbers[:, 1::2]
    return numbers


def _nearest(function: np.ufunc, x: Array) -> Array:
    """*function* of fp32 *x*, rounded once."""
    return np.asarray(function(x.astype(np.float64)).astype(np.float32))
