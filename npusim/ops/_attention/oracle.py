"""The results of the attention kernels, on whole arrays in plain numpy: the oracle.

.. code-block:: text

    s = (q @ k) * scale, hidden ones very low       of a tile of keys
    m' = max(m, max(s));  e = exp(m - m');  p = exp(s - m')
    l' = e * l + sum(p)                             the sum in the order of the kernel
    o' = o * e + T(p) @ v                           T(): to the type of v
    out = o / l;  softmax_lse = ln(l) + m

Each `+ - * /` is an fp32 operation rounded to nearest even, exp and ln are correctly rounded
(assumed, no document states their precision), `@` is the cube. If cores share rows, their pieces
are combined as in :mod:`~npusim.ops._attention.fai` and :mod:`~npusim.ops._attention.fia_output`;
for the digits of int8 see :mod:`~npusim.ops._attention.ifa`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, reduce
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import FLOAT16, Array
from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.ops._attention.check import Problem
from npusim.ops._attention.fai_tiling import TASK_ROWS, TILE, work_of
from npusim.ops._attention.fia_tiling import Rows, RowTile, schedule
from npusim.ops._attention.oracle_int8 import digit_piece, half_piece
from npusim.ops._attention.oracle_latent import joined_columns, latent_piece
from npusim.ops._attention.oracle_scores import Where, dropped, scaled
from npusim.ops._attention.oracle_sums import (
    F32,
    Multiply,
    Single,
    State,
    Tiles,
    away,
    nearest,
    row_sums,
    softmax,
    sums_by_64,
    sums_by_128,
)
from npusim.ops._attention.problem import FRACTAL_COLUMNS, Attention
from npusim.ops._attention.sides import sides_of

ADDED = F32(-3e38)
"""What FAI adds to a hidden score."""
LOWEST = np.finfo(np.float32).min
"""Initial value of the maximum of pieces."""
ADDED_HALF = -6e4
"""What FAI adds to a hidden fp16 score."""


class Group(NamedTuple):
    """Rows that are computed together."""

    request: int
    heads: NDArray[np.int64]
    """The query head of each row, and its token: `(rows,)`."""
    tokens: NDArray[np.int64]
    pieces: list[Tiles]
    """The tiles of each core's piece of the rows, one piece after another."""


def attend(
    problem: Problem, arrays: Mapping[str, Array], spec: DeviceSpec, multiply: Multiply
) -> tuple[Array, ...]:
    """The output and softmax_lse on *spec*; zero for tokens that a request does not have.

    Tokens that see no key give zeros and infinite logarithms. Training has maxima and sums of rows
    instead of logarithms.
    """
    a, template = problem.attention, problem.choice.template
    if problem.is_empty:
        return tuple(np.zeros(x.shape, x.element.numpy) for x in problem.outputs.values())
    is_fai, cores = template.startswith("FAI"), spec.cores["aic"].count
    out = np.zeros(max(problem.output.size, 1), a.element.numpy)
    rows = a.requests, a.query_heads, a.longest_query
    unseen = [lowest for _, lowest in a.sums.values()] or [np.inf]
    sums = [np.full(rows, each, F32) for each in unseen]
    groups = _fai_groups(a, cores, template) if is_fai else _fia_groups(a, cores)

    @lru_cache(maxsize=1)
    def keys(request: int) -> list[Array]:
        names = ("key", "value", "key_rope")[: 3 if a.rope_size else 2]
        return [_keys_of(a, name, arrays[name], request) for name in names]

    with np.errstate(all="ignore"):
        for group in groups:
            places = group.heads, group.tokens
            k, v, *rotated = (x[group.heads[0] // a.group] for x in keys(group.request))
            k = joined_columns(a, k, *rotated)
            o, *found = _rows(a, arrays, group, k, v, is_fai, multiply)
            view = _tokens_of(a, "output", out, group.request)
            is_away = a.rounds_away and not is_fai
            view[places] = away(o, a.element) if is_away else o.astype(a.element.numpy)
            for array, values in zip(sums, found, strict=True):
                array[group.request][places] = values
    output = out[: problem.output.size].reshape(problem.output.shape)
    if not a.sums:
        return output, np.zeros(1, F32)
    columns = [count for count, _ in a.sums.values()]
    return output, *(_as_returned(a, *each) for each in zip(sums, columns, strict=True))


def _as_returned(a: Attention, sums: Single, columns: int) -> Array:
    """*sums* `(requests, heads, tokens)` in output form, with *columns* copies of each."""
    each = np.repeat(sums[..., None], columns, axis=-1)
    if not a.is_packed:
        return each
    own = [each[request, :, :length] for request, length in enumerate(a.query_lengths)]
    if a.is_training and not a.sums_by_token:
        # In memory by head within each request, whatever the shape is.
        return np.concatenate([x.reshape(-1, columns) for x in own]).reshape(-1, *each.shape[1::2])
    return np.concatenate([x.swapaxes(0, 1) for x in own])


def _rows(
    a: Attention,
    arrays: Mapping[str, Array],
    group: Group,
    k: Array,
    v: Array,
    is_fai: bool,
    multiply: Multiply,
) -> tuple[Single, ...]:
    """Output and softmax_lse of the rows of *group*, for keys and values `(keys, columns)`, or
    output, maxima and sums."""
    request, rows = group.request, Rows(a)
    names = ("query", "query_rope")[: 2 if a.rope_size else 1]
    found = [_tokens_of(a, name, arrays[name], request) for name in names]
    q = joined_columns(a, *(x[group.heads, group.tokens] for x in found))
    hidden = _hidden(a.window(request), group.tokens, len(k))
    if a.is_stencil:
        hidden[:, : rows.prefix(request)] = False
    seen = ~hidden.all(axis=1)
    if a.has_own_mask and not is_fai:
        # Tokens that the band excludes: its start is relative to the last token.
        seen = group.tokens >= -a.next_tokens
        seen &= group.tokens < a.query_lengths[request] + a.pre_tokens
    if rows.mask is not None and not is_fai:
        first = request * rows.mask.request + group.tokens * rows.mask.pitch
        places = first[:, None] + np.arange(len(k))
        hidden |= arrays["atten_mask"].reshape(-1)[places].astype(np.bool_)
    place = request, int(group.heads[0]) // a.group
    if a.has_digits:
        piece = digit_piece(a, arrays, place, q, k, v)
    elif is_fai and a.work_type is FLOAT16:
        return _narrow_rows(a, q, k, v, hidden, group.pieces[0], multiply)
    elif a.is_latent:
        piece = latent_piece(a, q, k, v, hidden, multiply)
    elif a.dequantises:
        piece = half_piece(a, arrays, place, q, (k, v), hidden, multiply)
    else:
        rows_of = Where(request, group.heads, group.tokens, np.arange(len(k)))
        piece = _piece(a, arrays, rows_of, (q, k, v), hidden, is_fai, multiply)
    states = [piece(tiles) for tiles in group.pieces]
    if is_fai:
        o, logs = _combined_by_lse(states)
        o[~seen], logs[~seen] = 0, np.inf
        return o, logs
    o, total, largest = _combined_by_sums(states)
    logs = nearest(np.log, total) + largest
    has_sum = seen
    if a.has_own_mask:
        corrects = a.inner_precise & 2
        is_seen = largest != F32(a.hidden)
        has_sum = is_seen | (not corrects and min(a.pre_tokens, a.next_tokens) >= 0)
        seen &= is_seen | (not corrects)
    o[~seen], logs[~has_sum] = 0, np.inf
    if not a.is_training:
        return o, logs
    largest[~seen], total[~seen] = (each for _, each in a.sums.values())
    return o, largest, total


# ---- rows and their keys ----


def _fai_groups(a: Attention, cores: int, template: str) -> Iterator[Group]:
    """Blocks of tokens of each head, with the keys that the last token of a full one sees."""
    ends: dict[tuple[int, int], list[int]] = {}
    tasks = work_of(a, cores, template).tasks if template == "FAI-FD" else ()
    for task in chain.from_iterable(tasks):
        for head in range(task.head, task.head + task.form.heads):
            ends.setdefault((task.request, head), []).append(task.form.keys)
    for request, length in enumerate(a.query_lengths):
        first, last = a.window(request)
        keys = a.kv_lengths[request]
        for start in range(0, length if keys else 0, TASK_ROWS):
            tokens = np.arange(start, min(start + TASK_ROWS, length))
            begin = 0 if first is None else max(0, start + first) // TILE * TILE
            seen = keys if last is None else min(keys, start + TASK_ROWS + max(0, last))
            sees_none = _hidden((first, last), tokens, keys).all()
            for head in range(0 if sees_none else a.query_heads):
                cuts = begin, *ends.get((request, head), [seen])
                heads = np.full(tokens.size, head)
                pieces = [_tiles(*span, TILE) for span in pairwise(cuts)]
                yield Group(request, heads, tokens, pieces)


def _fia_groups(a: Attention, cores: int) -> Iterator[Group]:
    """Rows of tiles that see keys."""
    plan = schedule(a, cores)
    size = plan.sizes.keys
    pieces: dict[RowTile, list[Tiles]] = {}
    for piece in chain.from_iterable(plan.cores):
        last = min(piece.last * size, a.kv_lengths[piece.row_tile.request])
        own = _tiles(piece.first * size, last, size)
        pieces.setdefault(piece.row_tile, []).append(own)
    for tile, found in pieces.items():
        index = np.arange(tile.row, tile.row + tile.rows)
        queries = a.query_lengths[tile.request]
        tokens, heads = index // a.group, index % a.group
        if not plan.rows.by_token:
            heads, tokens = index // queries, index % queries
        yield Group(tile.request, heads + tile.head * a.group, tokens, found)


def _tiles(first: int, last: int, size: int) -> Tiles:
    return [(start, min(start + size, last)) for start in range(first, last, size)]


def _tokens_of(a: Attention, name: str, array: Array, request: int) -> Array:
    """The tokens of *request* in tensor *name*, `(heads, tokens, columns)`; a view."""
    side = sides_of(a)[name]
    is_key = name in ("key", "value", "key_rope")
    length = (a.kv_lengths if is_key else a.query_lengths)[request]
    flat = np.ascontiguousarray(array).reshape(-1)
    pitches = side.head_pitch, side.token_pitch, 1
    return np.lib.stride_tricks.as_strided(
        flat[side.starts[request] :],
        (side.heads, length, side.columns),
        tuple(flat.itemsize * pitch for pitch in pitches),
    )


def _keys_of(a: Attention, name: str, array: Array, request: int) -> Array:
    """The keys or values of *request*, `(heads, keys, columns)`, in or out of pages."""
    length, page = a.kv_lengths[request], a.paging
    if page is None:
        return _tokens_of(a, name, array, request)
    blocks = list(page.tables[request][: ceil_div(length, page.block_size)])
    heads, size, columns = a.kv_heads, page.block_size, sides_of(a)[name].columns
    if page.is_nz:
        # The columns of a fractal follow the tokens.
        chosen = array.reshape(page.blocks, heads, -1, size, FRACTAL_COLUMNS)[blocks]
        by_head = chosen.transpose(1, 0, 3, 2, 4)
    elif page.heads_first:
        by_head = array.reshape(page.blocks, heads, size, columns)[blocks].swapaxes(0, 1)
    else:
        by_head = np.moveaxis(array.reshape(page.blocks, size, heads, columns)[blocks], 2, 0)
    return by_head.reshape(heads, len(blocks) * size, columns)[:, :length]


def _hidden(
    window: tuple[int | None, int | None], tokens: NDArray[np.int64], keys: int
) -> NDArray[np.bool_]:
    """The keys that *window* hides from each of *tokens*, `(rows, keys)`: `Attention.window`."""
    first, last = window
    apart = np.arange(keys) - tokens[:, None]
    found = np.zeros(apart.shape, np.bool_)
    if first is not None:
        found |= apart < first
    if last is not None:
        found |= apart > last
    return found


# ---- a piece ----


def _piece(
    a: Attention,
    arrays: Mapping[str, Array],
    where: Where,
    operands: tuple[Array, Array, Array],
    hidden: NDArray[np.bool_],
    is_fai: bool,
    multiply: Multiply,
) -> Callable[[Tiles], State]:
    """A piece of FAI and FIA: factors of 16 bits."""
    q, k, v = operands

    def at(here: slice) -> Where:
        return where._replace(keys=where.keys[here])

    def scores(here: slice) -> Single:
        found = scaled(a, arrays, at(here), multiply(q, k[here].T))
        if is_fai:
            return np.asarray(found + hidden[:, here].astype(F32) * ADDED)
        return np.where(hidden[:, here], F32(a.hidden), found)

    def product(here: slice, p: Single) -> Single:
        p = dropped(a, arrays, at(here), p)
        weights = p.astype(a.element.numpy) if is_fai else away(p, a.element)
        return multiply(weights, v[here])

    return softmax(len(q), scores, product, sums_by_64 if is_fai else row_sums, F32(-np.inf))


def _narrow_rows(
    a: Attention,
    q: Array,
    k: Array,
    v: Array,
    hidden: NDArray[np.bool_],
    tiles: Tiles,
    multiply: Multiply,
) -> tuple[Single, Single]:
    """FAI with inner_precise 1, all in fp16: output and softmax_lse of the rows of *q*."""
    half = np.float16
    largest, total = np.full(len(q), -np.inf, half), np.zeros(len(q), half)
    out = np.zeros((len(q), v.shape[1]), half)
    for here in (slice(*tile) for tile in tiles):
        s = multiply(q, k[here].T).astype(half) * half(a.scale)
        s = s + hidden[:, here].astype(half) * half(ADDED_HALF)
        new = np.maximum(largest, s.max(axis=1))
        faded = nearest(np.exp, largest - new, half)
        p = nearest(np.exp, s - new[:, None], half)
        total, largest = faded * total + sums_by_128(p), new
        more = multiply(p, v[here]).astype(half)
        out = out * faded[:, None] + more if here.start > tiles[0][0] else more
    o, logs = (
        (out / total[:, None]).astype(F32),
        (nearest(np.log, total, half) + largest).astype(F32),
    )
    blind = hidden.all(axis=1)
    o[blind], logs[blind] = 0, np.inf
    return o, logs


def _combined_by_lse(states: list[State]) -> tuple[Single, Single]:
    """FAI: output and softmax_lse of rows, combined from their pieces."""
    each = [nearest(np.log, state.total) + state.largest for state in states]
    if len(states) == 1:
        return states[0].out, each[0]
    # The first axis is that of pieces.
    every = np.stack(each)
    largest = every.max(axis=0)
    lse = nearest(np.log, _by_halves(nearest(np.exp, every - largest))) + largest
    total = np.zeros_like(states[0].out)
    for state, weight in zip(states, nearest(np.exp, every - lse), strict=True):
        total = weight[:, None] * state.out + total
    return total, lse


def _by_halves(x: Single) -> Single:
    """The sum over the first axis, padded to a multiple of eight, upper half onto the lower one."""
    padded = np.pad(x, [(0, -len(x) % 8)] + [(0, 0)] * (x.ndim - 1))
    half = 1 << (len(padded).bit_length() - 1)
    padded[: len(padded) - half] += padded[half:]
    while half > 1:
        half //= 2
        padded[:half] += padded[half : 2 * half]
    return np.asarray(padded[0])


def _combined_by_sums(states: list[State]) -> tuple[Single, Single, Single]:
    """FIA: output, sums and maxima of rows, combined from their pieces."""
    if len(states) == 1:
        return states[0].out, states[0].total, states[0].largest
    largest = np.maximum(np.stack([state.largest for state in states]).max(axis=0), LOWEST)
    parts = [state.total * nearest(np.exp, state.largest - largest) for state in states]
    total = reduce(np.add, parts, np.zeros_like(largest))
    weighted = [
        (part / total)[:, None] * state.out for part, state in zip(parts, states, strict=True)
    ]
    return reduce(np.add, weighted), total, largest
