"""What the kernels of attention compute, on whole arrays in plain numpy: the oracle.

.. code-block:: text

    s = (q @ k) * scale, hidden ones very low       of a tile of keys
    m' = max(m, max(s));  e = exp(m - m');  p = exp(s - m')
    l' = e * l + sum(p)                             the sum in the order of the kernel
    o' = o * e + T(p) @ v                           T(): to the type of v
    out = o / l;  softmax_lse = ln(l) + m

Each `+ - * /` is an fp32 operation rounded to nearest even, exp and ln the nearest numbers to the
exact ones (assumed, no document says how exact they are), `@` the cube. Where cores share rows,
pieces of them are combined as :mod:`~npusim.ops._attention.fai` and
:mod:`~npusim.ops._attention.fia_output` say; for the digits of int8 see
:mod:`~npusim.ops._attention.ifa`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, reduce
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import FLOAT16, Array
from npusim.data.integers import ceil_div
from npusim.data.product import CubeOrder
from npusim.devices.schema import DeviceSpec
from npusim.ops._attention.check import Problem
from npusim.ops._attention.fai_tiling import TASK_ROWS, TILE, work_of
from npusim.ops._attention.fia_tiling import Rows, RowTile, schedule
from npusim.ops._attention.oracle_sums import F32, Single, away, nearest, row_sums, sums_by_64
from npusim.ops._attention.problem import Attention, Scales, sides_of
from npusim.ops._matmul_oracle import cube_product, exact_int

ADDED, REPLACED = F32(-3e38), F32(-1e12)
"""What FAI adds to a score that is hidden, and what FIA replaces it by."""
LOWEST, LOWEST_OF_DIGITS = np.finfo(np.float32).min, F32(-2e38)
"""Where the maximum of pieces begins, and where maxima of rows begin in IFA."""
LOWEST_HALF = -65504
"""What replaces a hidden score of fp16 in IFA-ATB."""
FIRST, NEXT = F32(127), F32(254)
"""What a number is multiplied by before its first digit, and what is left before the next one."""


Tiles = list[tuple[int, int]]
"""The keys [first, last) of each tile."""


class Group(NamedTuple):
    """Rows that are computed together."""

    request: int
    heads: NDArray[np.int64]
    """The query head of each row, and its token: `(rows,)`."""
    tokens: NDArray[np.int64]
    pieces: list[Tiles]
    """What each core makes of the rows, one piece after the other."""


class State(NamedTuple):
    """What a piece leaves of its rows."""

    largest: Single
    """`(rows,)`, and *total* likewise."""
    total: Single
    out: Single
    """`(rows, width)`, divided by the total."""


def attend(problem: Problem, spec: DeviceSpec, order: CubeOrder) -> tuple[Array, Array]:
    """The output and softmax_lse on *spec*; all is zero of tokens that a request does not have.

    Tokens that see no key give zeros and infinite logarithms.
    """
    a, template = problem.attention, problem.choice.template
    if problem.is_empty:
        output, lse = (np.zeros(x.shape, x.element.numpy) for x in problem.outputs.values())
        return output, lse
    arrays = {each.name: np.asarray(each.array) for each in problem.inputs}
    is_fai, cores = template.startswith("FAI"), spec.cores["aic"].count
    out = np.zeros(max(problem.output.size, 1), a.element.numpy)
    lse = np.full((a.requests, a.query_heads, a.longest_query), np.inf if is_fai else 0, F32)
    groups = _fai_groups(a, cores, template) if is_fai else _fia_groups(a, cores, lse)

    @lru_cache(maxsize=1)
    def keys(request: int) -> list[Array]:
        return [_keys_of(a, name, arrays[name], request) for name in ("key", "value")]

    with np.errstate(all="ignore"):
        for group in groups:
            places = group.heads, group.tokens
            k, v = (x[group.heads[0] // a.group] for x in keys(group.request))
            o, logs = _rows(a, arrays, group, k, v, is_fai, order)
            view = _tokens_of(a, "output", out, group.request)
            is_away = a.element is FLOAT16 and not is_fai
            view[places] = away(o, FLOAT16) if is_away else o.astype(a.element.numpy)
            lse[group.request][places] = logs
    output = out[: problem.output.size].reshape(problem.output.shape)
    if not a.returns_lse:
        return output, np.zeros(1, F32)
    if not a.is_packed:
        return output, lse[..., None]
    own = [lse[request, :, :length].T for request, length in enumerate(a.query_lengths)]
    return output, np.concatenate(own)[..., None]


def _rows(
    a: Attention,
    arrays: Mapping[str, Array],
    group: Group,
    k: Array,
    v: Array,
    is_fai: bool,
    order: CubeOrder,
) -> tuple[Single, Single]:
    """Output and softmax_lse of the rows of *group*, of keys and values `(keys, columns)`."""
    request, rows = group.request, Rows(a)
    q = _tokens_of(a, "query", arrays["query"], request)[group.heads, group.tokens]
    hidden = _hidden(a.window(request), group.tokens, len(k))
    seen = ~hidden.all(axis=1)
    if a.has_own_mask and not is_fai:
        # Tokens that the band leaves out: its start is counted from the last token.
        seen = group.tokens >= -a.next_tokens
        seen &= group.tokens < a.query_lengths[request] + a.pre_tokens
    if rows.mask is not None and not is_fai:
        first = request * rows.mask.request + group.tokens * rows.mask.pitch
        places = first[:, None] + np.arange(len(k))
        hidden |= arrays["atten_mask"].reshape(-1)[places].astype(np.bool_)
    if a.has_digits:
        piece = _digit_piece(a, arrays, group, q, k, v)
    elif a.dequantises:
        piece = _half_piece(a, arrays, group, q, (k, v), hidden, order)
    else:
        piece = _piece(a, q, k, v, hidden, is_fai, order)
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
        is_seen = largest != REPLACED
        has_sum = is_seen | (not corrects and min(a.pre_tokens, a.next_tokens) >= 0)
        seen &= is_seen | (not corrects)
    o[~seen], logs[~has_sum] = 0, np.inf
    return o, logs


# ---- which rows, and which keys ----


def _fai_groups(a: Attention, cores: int, template: str) -> Iterator[Group]:
    """Blocks of tokens of each head, against the keys that the last token of a whole one sees."""
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


def _fia_groups(a: Attention, cores: int, lse: Single) -> Iterator[Group]:
    """Rows of tiles; those without keys get an infinite *lse* here."""
    plan = schedule(a, cores)
    size = plan.sizes.keys
    pieces: dict[RowTile, list[Tiles]] = {tile: [] for tile in plan.empty}
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
        heads = heads + tile.head * a.group
        if found:
            yield Group(tile.request, heads, tokens, found)
        else:
            lse[tile.request, heads, tokens] = np.inf


def _tiles(first: int, last: int, size: int) -> Tiles:
    return [(start, min(start + size, last)) for start in range(first, last, size)]


def _tokens_of(a: Attention, name: str, array: Array, request: int) -> Array:
    """The tokens of *request* in tensor *name*, `(heads, tokens, columns)`; a view."""
    side = sides_of(a)[name]
    length = (a.kv_lengths if name in ("key", "value") else a.query_lengths)[request]
    flat = np.ascontiguousarray(array).reshape(-1)
    pitches = side.head_pitch, side.token_pitch, 1
    return np.lib.stride_tricks.as_strided(
        flat[side.starts[request] :],
        (side.heads, length, a.head_size),
        tuple(flat.itemsize * pitch for pitch in pitches),
    )


def _keys_of(a: Attention, name: str, array: Array, request: int) -> Array:
    """The keys or values of *request*, `(heads, keys, columns)`, in or out of pages."""
    length, page = a.kv_lengths[request], a.paging
    if page is None:
        return _tokens_of(a, name, array, request)
    blocks = list(page.tables[request][: ceil_div(length, page.block_size)])
    # Blocks, then tokens and heads, or heads and tokens, then columns.
    shape = (page.block_size, a.kv_heads) if not page.heads_first else (a.kv_heads, page.block_size)
    chosen = array.reshape(page.blocks, *shape, a.head_size)[blocks]
    by_head = np.moveaxis(chosen, 1 if page.heads_first else 2, 0)
    return by_head.reshape(a.kv_heads, len(blocks) * page.block_size, a.head_size)[:, :length]


def _hidden(
    window: tuple[int | None, int | None], tokens: NDArray[np.int64], keys: int
) -> NDArray[np.bool_]:
    """Which keys *window* hides from each of *tokens*, `(rows, keys)`; see `Attention.window`."""
    first, last = window
    apart = np.arange(keys) - tokens[:, None]
    found = np.zeros(apart.shape, np.bool_)
    if first is not None:
        found |= apart < first
    if last is not None:
        found |= apart > last
    return found


# ---- a piece ----


def _softmax(
    rows: int,
    scores: Callable[[slice], Single],
    product: Callable[[slice, Single], Single],
    sums: Callable[[Single], Single],
    lowest: np.float32,
    differences: type[np.floating[Any]] = np.float32,
) -> Callable[[Tiles], State]:
    """A piece of *rows* whose tiles have these *scores*, *product* and *sums*, one by one.

    Scores less their largest are rounded to the type *differences*.
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


def _piece(
    a: Attention,
    q: Array,
    k: Array,
    v: Array,
    hidden: NDArray[np.bool_],
    is_fai: bool,
    order: CubeOrder,
) -> Callable[[Tiles], State]:
    """FAI and FIA: factors of 16 bits."""
    scale = F32(a.scale)

    def scores(here: slice) -> Single:
        found = cube_product(q, k[here].T, order=order) * scale
        if is_fai:
            return np.asarray(found + hidden[:, here].astype(F32) * ADDED)
        return np.where(hidden[:, here], REPLACED, found)

    def product(here: slice, p: Single) -> Single:
        weights = p.astype(a.element.numpy) if is_fai else away(p, a.element)
        return cube_product(weights, v[here], order=order)

    return _softmax(len(q), scores, product, sums_by_64 if is_fai else row_sums, F32(-np.inf))


def _half_piece(
    a: Attention,
    arrays: Mapping[str, Array],
    group: Group,
    q: Array,
    kv: tuple[Array, Array],
    hidden: NDArray[np.bool_],
    order: CubeOrder,
) -> Callable[[Tiles], State]:
    """IFA-ATB: keys and values of int8 become numbers; scores are fp16."""
    assert a.antiquant is not None
    assert a.antiquant.offsets is not None

    def columns(each: Scales) -> Single:
        place = each.place(group.request, int(group.heads[0]) // a.group, 0, a.head_size)
        return np.asarray(arrays[each.name], F32).reshape(-1)[place : place + a.head_size]

    sides = zip(kv, a.antiquant.offsets, (a.antiquant.key, a.antiquant.value), strict=True)
    k, v = (
        ((x.astype(F32) + columns(offset)) * columns(scale)).astype(a.element.numpy)
        for x, offset, scale in sides
    )

    def scores(here: slice) -> Single:
        half = cube_product(q, k[here].T, order=order).astype(np.float16) * np.float16(a.scale)
        return np.where(hidden[:, here], np.float16(LOWEST_HALF), half).astype(F32)

    def product(here: slice, p: Single) -> Single:
        return cube_product(away(p, a.element), v[here], order=order)

    return _softmax(len(q), scores, product, row_sums, F32(-np.inf), np.float16)


def _digit_piece(
    a: Attention, arrays: Mapping[str, Array], group: Group, q: Array, k: Array, v: Array
) -> Callable[[Tiles], State]:
    """IFA: products of digits; nothing is hidden."""
    assert a.antiquant is not None
    key, value = a.antiquant.key, a.antiquant.value

    def scale_of(each: Scales, keys: slice) -> Single:
        """One scale, those of columns `(width,)`, or those of *keys* `(keys, 1)`, in fp32."""
        scales = np.asarray(arrays[each.name]).reshape(-1).astype(F32)
        place = each.place(group.request, int(group.heads[0]) // a.group, 0, a.head_size)
        count = {"tensor": 1, "channel": a.head_size, "token": each.tokens}[each.per]
        own = scales[place : place + count]
        return own[keys, None] if each.per == "token" else own

    wide = q.astype(F32)
    if key.per != "token":
        wide = wide * scale_of(key, slice(0))
    digits, of_query = _stretched(wide)

    def scores(here: slice) -> Single:
        found = _joined([exact_int(digit, k[here].T) for digit in digits]) * of_query
        if key.per == "token":
            found = found * scale_of(key, here).T
        return np.asarray(found * F32(a.scale))

    def product(here: slice, p: Single) -> Single:
        scales = scale_of(value, here)
        if value.per == "token":
            of_weights, factor = _stretched(p * scales.T)
        else:
            of_weights, factor = _digits(p * FIRST), scales
        return _joined([exact_int(digit, v[here]) for digit in of_weights]) * factor

    return _softmax(len(q), scores, product, row_sums, LOWEST_OF_DIGITS)


def _stretched(x: Single) -> tuple[list[Array], Single]:
    """The digits of rows of *x*, and their largest magnitudes `(rows, 1)`."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    return _digits(x * (FIRST / largest)), largest


def _digits(x: Single) -> list[Array]:
    """Both digits of *x*, in [-127, 127]; of NaN 0."""
    first = _away_to_integers(x)
    second = _away_to_integers((x - first) * NEXT)
    return [np.clip(np.nan_to_num(each, nan=0.0), -128, 127) for each in (first, second)]


def _joined(products: list[Any]) -> Single:
    """Products of both digits as that of the number."""
    first, second = (each.astype(F32) for each in products)
    return np.asarray((first + second * (F32(1) / NEXT)) * (F32(1) / FIRST))


def _away_to_integers(x: Single) -> Single:
    """Integers, ties away from zero."""
    exact = x.astype(np.float64)
    return np.asarray(np.trunc(exact + np.copysign(0.5, exact)), F32)


def _combined_by_lse(states: list[State]) -> tuple[Single, Single]:
    """FAI: output and softmax_lse of rows from those of their pieces."""
    each = [nearest(np.log, state.total) + state.largest for state in states]
    if len(states) == 1:
        return states[0].out, each[0]
    # The first axis counts the pieces.
    every = np.stack(each)
    largest = every.max(axis=0)
    lse = nearest(np.log, _by_halves(nearest(np.exp, every - largest))) + largest
    total = np.zeros_like(states[0].out)
    for state, weight in zip(states, nearest(np.exp, every - lse), strict=True):
        total = weight[:, None] * state.out + total
    return total, lse


def _by_halves(x: Single) -> Single:
    """The sum over the first axis: of a multiple of eight, the upper half onto the lower one."""
    padded = np.pad(x, [(0, -len(x) % 8)] + [(0, 0)] * (x.ndim - 1))
    half = 1 << (len(padded).bit_length() - 1)
    padded[: len(padded) - half] += padded[half:]
    while half > 1:
        half //= 2
        padded[:half] += padded[half : 2 * half]
    return np.asarray(padded[0])


def _combined_by_sums(states: list[State]) -> tuple[Single, Single, Single]:
    """FIA: output, sums and maxima of rows from those of their pieces."""
    if len(states) == 1:
        return states[0].out, states[0].total, states[0].largest
    largest = np.maximum(np.stack([state.largest for state in states]).max(axis=0), LOWEST)
    parts = [state.total * nearest(np.exp, state.largest - largest) for state in states]
    total = reduce(np.add, parts, np.zeros_like(largest))
    weighted = [
        (part / total)[:, None] * state.out for part, state in zip(parts, states, strict=True)
    ]
    return reduce(np.add, weighted), total, largest
