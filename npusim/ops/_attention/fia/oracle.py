"""What kernel FIA computes, on whole arrays in plain numpy: the oracle.

.. code-block:: text

    s = (q @ k) * scale, hidden ones -1e12          of a tile of keys
    m' = max(m, max(s));  e = exp(m - m');  p = exp(s - m')
    l' = e * l + sum(p)                             the sum in the order of the softmax library
    o' = o * e + away(p) @ v                        away(): to the type of v, ties away from zero
    out = o / l                                     fp16: ties away from zero, bf16: ties to even

Each `+ - * /` is an fp32 operation rounded to nearest even, exp and ln the nearest numbers to the
exact ones (assumed, no document says how exact they are), `@` the cube. Rows of tiles that several
cores share: each piece divides by its own sum, and

.. code-block:: text

    M = max(m of the pieces);  c = l * exp(m - M);  w = c / ((c0 + c1) + ...)
    out = (w0 * o0 + w1 * o1) + ...                 lse = ln(sum of c) + M
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import FLOAT16, Array, DType
from npusim.ops._attention.description import Attention, Side
from npusim.ops._attention.fia.schedule import Schedule, schedule
from npusim.ops._products import cube_product

__all__ = ["HIDDEN", "PieceOf", "State", "attend", "nearest", "row_sums"]

Single = NDArray[np.float32]
CubeOrder = Literal["k16", "k8", "k4", "k1"]
HIDDEN = np.float32(-1e12)
"""What a hidden score is replaced by."""
LOWEST = np.finfo(np.float32).min
"""Where the maximum of pieces begins."""


class PieceOf(Protocol):
    """What a core makes of the tiles *span* of rows *q* of a request and a head of keys."""

    def __call__(
        self,
        plan: Schedule,
        place: tuple[int, int],
        q: Array,
        k: Array,
        v: Array,
        hidden: NDArray[np.bool_],
        span: tuple[int, int],
        /,
    ) -> State: ...


class State(NamedTuple):
    """What a piece leaves of its rows."""

    largest: Single
    """`(rows,)`, and *total* likewise."""
    total: Single
    out: Single
    """`(rows, width)`, divided by the total."""


def attend(
    a: Attention,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    cores: int,
    order: CubeOrder = "k16",
    piece: PieceOf | None = None,
) -> tuple[Array, Single]:
    """The output, flat as it lies in memory, and softmax_lse in its own shape.

    *piece* is what a core makes of a piece of a row of tiles, where that is not what this kernel
    does.

    *mask* is that of the call, nonzero where a key is hidden, if it is to be taken as it is. Tokens
    that see no key give zeros and infinite logarithms; all is zero of those that a request does not
    have.
    """
    plan = schedule(a, cores)
    piece = piece or partial(_piece, a, order)
    outside = a.output
    size = max(query.size, 1)
    out = np.zeros(size, a.element.numpy)
    lse = np.zeros((a.requests, a.query_heads, a.longest_query), np.float32)
    for request, head, row, rows, *_ in plan.empty:
        tokens, heads = _rows(plan, request)
        heads = heads + head * a.group
        lse[request, heads[row : row + rows], tokens[row : row + rows]] = np.inf
    whole = _pieces_of(plan)
    for (request, head), tiles in whole.items():
        tokens, heads = _rows(plan, request)
        heads = heads + head * a.group
        q = _taken(query, a.query, request, heads, tokens, a.head_size)
        k, v = (_keys(a, x, name, request, head) for x, name in ((key, "key"), (value, "value")))
        hidden = _hidden(plan, request, tokens, mask)
        for (row, rows), spans in tiles.items():
            here = slice(row, row + rows)
            own = q[here], k, v, hidden[here]
            states = [piece(plan, (request, head), *own, span) for span in spans]
            o, sums, largest = _combined(states)
            seen = np.full(rows, True)
            if plan.rows.has_stencil:
                seen &= ~hidden[here].all(axis=1)
            if a.inner_precise & 2 and plan.rows.mask is not None:
                seen &= largest != HIDDEN
            o = np.where(seen[:, None], o, np.float32(0))
            with np.errstate(all="ignore"):
                logs = nearest(np.log, sums) + largest
            logs = np.where(seen, logs, np.float32(np.inf))
            _put(out, outside, request, heads[here], tokens[here], _narrowed(o, a.element))
            lse[request, heads[here], tokens[here]] = logs
    return out[: query.size], _shaped(plan, lse)


def _shaped(plan: Schedule, lse: Single) -> Single:
    """*lse* `(requests, heads, tokens)`, with a 1 behind; of TND `(tokens, heads, 1)`."""
    if not plan.rows.is_packed:
        return lse[..., None]
    lengths = plan.rows.a.query_lengths
    own = [lse[request, :, :length].T for request, length in enumerate(lengths)]
    return np.concatenate(own)[..., None]


# ---- where things lie ----


def _pieces_of(
    plan: Schedule,
) -> dict[tuple[int, int], dict[tuple[int, int], list[tuple[int, int]]]]:
    """Request and head -> first row and rows -> the first and last tile of each piece."""
    found: dict[tuple[int, int], dict[tuple[int, int], list[tuple[int, int]]]] = {}
    for core in plan.cores:
        for piece in core:
            request, head, row, rows, *_ = piece.row_tile
            tiles = found.setdefault((request, head), {})
            tiles.setdefault((row, rows), []).append((piece.first, piece.last))
    return found


def _rows(plan: Schedule, request: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The token and the head of each row of a head of keys."""
    group, queries = plan.rows.a.group, plan.rows.a.query_lengths[request]
    if plan.rows.by_token:
        return np.repeat(np.arange(queries), group), np.tile(np.arange(group), queries)
    return np.tile(np.arange(queries), group), np.repeat(np.arange(group), queries)


def _places(side: Side, request: int, heads: Any, tokens: Any, width: int) -> NDArray[np.int64]:
    first = side.starts[request] + heads * side.head_pitch + tokens * side.token_pitch
    return np.asarray(first[:, None] + np.arange(width))


def _taken(x: Array, side: Side, request: int, heads: Any, tokens: Any, width: int) -> Array:
    return np.asarray(x.reshape(-1)[_places(side, request, heads, tokens, width)])


def _put(out: Array, side: Side, request: int, heads: Any, tokens: Any, numbers: Array) -> None:
    out[_places(side, request, heads, tokens, numbers.shape[1])] = numbers


def _keys(a: Attention, x: Array, name: str, request: int, head: int) -> Array:
    """Keys or values of a head, `(keys, width)`."""
    side, count, page = a.keys(name), a.kv_lengths[request], a.paging
    tokens = np.arange(count)
    if page is None:
        return _taken(x, side, request, np.full(count, head), tokens, a.head_size)
    blocks = np.array(page.tables[request], np.int64)[tokens // page.block_size]
    first = blocks * (page.block_size * a.kv_heads * a.head_size) + head * side.head_pitch
    places = first + tokens % page.block_size * side.token_pitch
    return np.asarray(x.reshape(-1)[places[:, None] + np.arange(a.head_size)])


def _hidden(
    plan: Schedule, request: int, tokens: NDArray[np.int64], mask: Array | None
) -> NDArray[np.bool_]:
    """Which keys each row does not see, `(rows, keys)`."""
    keys = plan.rows.a.kv_lengths[request]
    columns = np.arange(keys)
    found = np.zeros((tokens.size, keys), np.bool_)
    before, after = plan.rows.window(request)
    if before is not None:
        found |= columns < tokens[:, None] + before
    if after is not None:
        found |= columns > tokens[:, None] + after
    place = plan.rows.mask
    if place is not None and mask is not None:
        first = request * place.request + tokens * place.pitch
        found |= mask.reshape(-1)[first[:, None] + columns] != 0
    return found


# ---- numbers ----


def _piece(
    a: Attention,
    order: CubeOrder,
    plan: Schedule,
    _: tuple[int, int],
    q: Array,
    k: Array,
    v: Array,
    hidden: NDArray[np.bool_],
    span: tuple[int, int],
) -> State:
    """The tiles of keys of *span*, one after the other."""
    rows, size = q.shape[0], plan.sizes.keys
    largest, total = np.full(rows, -np.inf, np.float32), np.zeros(rows, np.float32)
    out = np.zeros((rows, a.head_size), np.float32)
    scale = np.float32(a.scale)
    with np.errstate(all="ignore"):
        for tile in range(*span):
            here = slice(tile * size, min((tile + 1) * size, k.shape[0]))
            scores = cube_product(q, k[here].T, order=order) * scale
            scores = np.where(hidden[:, here], HIDDEN, scores)
            new = np.maximum(largest, scores.max(axis=1))
            faded = nearest(np.exp, largest - new)
            p = nearest(np.exp, scores - new[:, None])
            total = faded * total + row_sums(p)
            largest = new
            product = cube_product(away(p, a.element), v[here], order=order)
            out = product if tile == span[0] else out * faded[:, None] + product
        return State(largest, total, out / total[:, None])


def _combined(states: list[State]) -> tuple[Single, Single, Single]:
    """Output, sums and maxima of rows from those of their pieces."""
    if len(states) == 1:
        return states[0].out, states[0].total, states[0].largest
    with np.errstate(all="ignore"):
        largest = np.full(states[0].largest.shape, LOWEST, np.float32)
        for state in states:
            largest = np.maximum(largest, state.largest)
        parts = [state.total * nearest(np.exp, state.largest - largest) for state in states]
        total = np.zeros_like(largest)
        for part in parts:
            total = total + part
        out = (parts[0] / total)[:, None] * states[0].out
        for part, state in zip(parts[1:], states[1:], strict=True):
            out = out + (part / total)[:, None] * state.out
    return out, total, largest


def row_sums(p: Single) -> Single:
    """The sum of each row of *p* `(rows, keys)` as the softmax library adds it up.

    64 running sums, then these by neighbours. The first ones of 512 and more columns are the sums
    of 8 neighbours, those of 128 and more `x[j] + x[64 + j]`, and every further 64 columns are
    added to them one by one; what is left at last to the first of them (asc-devkit@82b89a1
    impl/adv_api/detail/activation/softmax/membase/v220).
    """
    rows, keys = p.shape
    if keys < 64:
        return _neighbours(np.pad(p, ((0, 0), (0, 64 - keys))))
    if keys >= 512:
        sums, start = _neighbours(p[:, :512].reshape(rows, 64, 8)), 512
    else:
        sums, start = p[:, :64].copy(), 64
    for first in range(start, keys, 64):
        more = p[:, first : first + 64]
        sums[:, : more.shape[1]] += more
    return _neighbours(sums)


def _neighbours(x: Single) -> Single:
    """`(..., 2**n)` -> `(...)`: neighbours are added, then neighbours of these, and so on."""
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return np.asarray(x[..., 0])


def nearest(function: Any, x: Single) -> Single:
    """*function* of fp32 numbers, rounded to fp32 once."""
    return np.asarray(function(x.astype(np.float64)), np.float32)


def _narrowed(o: Single, element: DType) -> Array:
    """fp32 to the type of the output."""
    if element is FLOAT16:
        return away(o, element)
    with np.errstate(all="ignore"):
        return o.astype(element.numpy)


def away(x: Single, element: DType) -> Array:
    """*x* rounded to *element*, ties away from zero."""
    with np.errstate(all="ignore"):
        if element is not FLOAT16:
            # The lower half of the bits goes; half of what remains' last one makes it go up.
            up = (x.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)
            up = np.where(np.isnan(x), np.uint32(0x7FC00000), up)
            return np.asarray(up.view(np.float32).astype(element.numpy))
        # fp16: 11 bits from the first one on, but none below 2**-24.
        _, exponent = np.frexp(x.astype(np.float64))
        unit = np.ldexp(1.0, np.maximum(exponent - 11, -24))
        whole = np.floor(np.abs(x) / unit + 0.5) * unit
        return np.asarray(np.copysign(whole, x).astype(np.float16))
