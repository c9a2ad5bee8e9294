"""What check reads off the tensors of a call: heads, lengths, pages, and scales of int8."""

from __future__ import annotations

from typing import Literal

import numpy as np

from npusim.data.dtypes import INT8
from npusim.data.errors import shown
from npusim.data.integers import ceil_div
from npusim.data.tensor import Operand
from npusim.ops._attention.problem import Antiquant, Attention, Paging, Scales
from npusim.ops._contract import Contract, listed

MAX_HEADS, MAX_HEAD_SIZE, HEAD_UNIT = 256, 512, 16
"""Heads of query and of keys, and columns of one: multiples of 16 (op-plugin@517f2e7, the
operator's document; ops-transformer@3a280bc, the tiling)."""
MAX_GROUP = 128
"""Query heads that share keys: the tiling takes so many, the document half of them."""
MAX_REQUESTS, MAX_REQUESTS_TND = 65536, 4096
MAX_KEYS = 20_971_520
"""Keys of a request (both from the document)."""
PAGE_UNIT, MAX_PAGE = 16, 1024
"""Tokens of a block: multiples of the one up to the other (op-plugin@517f2e7, the document)."""
SHAPES = {
    "BSH": "(requests, tokens, heads x columns)",
    "BSND": "(requests, tokens, heads, columns)",
    "BNSD": "(requests, heads, tokens, columns)",
    "TND": "(tokens, heads, columns)",
    "NTD": "(heads, tokens, columns)",
}
PACKED = ("TND", "NTD")
"""Layouts whose requests follow each other."""
BOTH = "antiquant_scale"
"""The scales of keys and of values in one tensor."""

Sizes = tuple[tuple[int, ...], tuple[int, ...]]
"""Query tokens of each request, and its keys."""


# ---- heads ----


def heads_of(contract: Contract) -> tuple[int, int]:
    """Heads of query and of keys; 0 of the latter are as many."""
    heads, given = contract.integer("num_heads"), contract.integer("num_key_value_heads")
    kv_heads = given or heads
    contract.require(
        1 <= heads <= MAX_HEADS,
        f"num_heads must lie in [1, {MAX_HEADS}], not be {heads}; pass the heads of query",
    )
    contract.require(
        1 <= kv_heads <= heads and heads % kv_heads == 0,
        f"num_key_value_heads must divide num_heads, {heads}, not be {given}; pass the heads of "
        f"key",
    )
    contract.require(
        heads // kv_heads <= MAX_GROUP,
        f"at most {MAX_GROUP} query heads must share a head of keys, not {heads // kv_heads}; "
        f"repeat the keys",
    )
    return heads, kv_heads


def size_of(contract: Contract, operand: Operand, layout: str, heads: int) -> int:
    """Columns of a head of *operand*, `query` or `key`, whose heads are that many."""
    shape, name, wanted = operand.shape, operand.name, SHAPES[layout]
    attribute = "num_heads" if name == "query" else "num_key_value_heads"
    contract.require(
        len(shape) == wanted.count(",") + 1,
        f"{name} must have shape {wanted} for input_layout {layout}, not {shape}; reshape it",
    )
    size = shape[-1]
    if layout == "BSH":
        contract.require(
            size % heads == 0,
            f"the last dimension of {name} must be a multiple of {attribute}, {heads}, not "
            f"{size}; pass the heads of {name}",
        )
        size //= heads
    else:
        axis = layout.index("N")
        contract.require(
            shape[axis] == heads,
            f"{name} must have {attribute}, {heads}, as dimension {axis} of {wanted}, not "
            f"{shape[axis]}; pass the heads of {name}",
        )
    contract.require(
        0 < size <= MAX_HEAD_SIZE and size % HEAD_UNIT == 0,
        f"a head of {name} must have a multiple of {HEAD_UNIT} columns up to {MAX_HEAD_SIZE}, not "
        f"{size}; pad it",
    )
    return size


def longest_of(layout: str, shape: tuple[int, ...], lengths: tuple[int, ...]) -> int:
    """Tokens of a request that a tensor has room for; in TND and NTD the longest request's."""
    if layout in PACKED:
        return max(lengths, default=0)
    return shape[2] if layout == "BNSD" else shape[1]


# ---- lengths ----


def lengths_of(
    contract: Contract, layout: str, query: Operand, key: Operand, *, is_paged: bool
) -> Sizes:
    """Query tokens and keys of each request."""
    given = _listed(contract, "actual_seq_lengths"), _listed(contract, "actual_seq_lengths_kv")
    if is_paged and given[1] is None:
        contract.fail(
            "actual_seq_lengths_kv must be given with a block_table, not None; pass the keys of "
            "each request"
        )
    of_layout = _of_tokens if layout in PACKED else _of_requests
    found = of_layout(contract, layout, query, key, given, is_paged)
    longest = max(found[1], default=0)
    contract.require(
        longest <= MAX_KEYS,
        f"a request must have at most {MAX_KEYS} keys, not {longest}; split it",
    )
    return found


def _listed(contract: Contract, name: str) -> tuple[int, ...] | None:
    """Parameter *name* as integers from 0 on; None if it was not given."""
    value = contract.value(name)
    if value is None:
        return None
    if not value or min(value) < 0:
        contract.fail(
            f"{name} must be a list of integers from 0 on, one for each request, not "
            f"{shown(value)}; pass the lengths as plain integers"
        )
    return tuple(value)


Given = tuple[tuple[int, ...] | None, tuple[int, ...] | None]


def _of_tokens(
    contract: Contract, layout: str, query: Operand, key: Operand, given: Given, is_paged: bool
) -> Sizes:
    """TND and NTD: the query's lengths are sums, those of keys without pages too."""
    query_ends, kv_given = given
    if query_ends is None or kv_given is None:
        name = "actual_seq_lengths" if query_ends is None else "actual_seq_lengths_kv"
        contract.fail(f"{name} must be given for input_layout {layout}, not None; pass a list")
    count = len(query_ends)
    contract.require(
        count <= MAX_REQUESTS_TND,
        f"actual_seq_lengths must have at most {MAX_REQUESTS_TND} entries for input_layout "
        f"{layout}, not {count}; split the call",
    )
    contract.require(
        len(kv_given) == count,
        f"actual_seq_lengths_kv must have as many entries as actual_seq_lengths, {count}, not "
        f"{len(kv_given)}; pass one for each request",
    )
    query_lengths = _apart(contract, "actual_seq_lengths", query_ends, query, layout)
    if is_paged:
        return query_lengths, kv_given
    return query_lengths, _apart(contract, "actual_seq_lengths_kv", kv_given, key, layout)


def _apart(
    contract: Contract, name: str, ends: tuple[int, ...], operand: Operand, layout: str
) -> tuple[int, ...]:
    """The lengths of requests that end at *ends* of the tokens of *operand*."""
    tokens = operand.shape[layout.index("T")]
    lengths = tuple(end - start for start, end in zip((0, *ends[:-1]), ends, strict=True))
    contract.require(
        min(lengths) >= 0,
        f"{name} must not fall from request to request for input_layout {layout}, where each is "
        f"the sum of lengths so far, not {shown(list(ends))}; pass the sums",
    )
    contract.require(
        ends[-1] == tokens,
        f"the last entry of {name} must be the tokens of {operand.name}, {tokens}, not "
        f"{ends[-1]}; pass the sums of the lengths",
    )
    return lengths


def _of_requests(
    contract: Contract, layout: str, query: Operand, key: Operand, given: Given, is_paged: bool
) -> Sizes:
    """The other layouts: a length for each request, one for all of them, or the whole tensor."""
    requests, tokens = query.shape[0], longest_of(layout, query.shape, ())
    contract.require(
        0 < requests <= MAX_REQUESTS,
        f"query must have 1 to {MAX_REQUESTS} requests, not {requests}; split the call",
    )
    keys = MAX_KEYS if is_paged else longest_of(layout, key.shape, ())
    # The query's are not looked at where each request has one token.
    of_query = None if tokens == 1 else given[0]
    return (
        _for_all(contract, "actual_seq_lengths", of_query, requests, tokens),
        _for_all(contract, "actual_seq_lengths_kv", given[1], requests, keys),
    )


def _for_all(
    contract: Contract, name: str, given: tuple[int, ...] | None, requests: int, room: int
) -> tuple[int, ...]:
    """*given*, one of them for all of *requests*; *room* without."""
    if given is None:
        return (room,) * requests
    contract.require(
        len(given) in (1, requests),
        f"{name} must have 1 or {requests} entries, one for each request, not {len(given)}; pass "
        f"as many",
    )
    contract.require(
        max(given) <= room,
        f"{name} must be at most {room}, the tokens of a request, not {max(given)}; pass lengths "
        f"that fit",
    )
    return given if len(given) == requests else given * requests


# ---- pages ----


def paging_of(
    contract: Contract,
    key: Operand,
    table: Operand,
    heads: int,
    head_size: int,
    kv_lengths: tuple[int, ...],
) -> Paging:
    """The pages of *key* and of value, which has its shape; raises OpError."""
    shape, row = key.shape, heads * head_size
    given = contract.integer("block_size")
    heads_first = len(shape) == 4 and (shape[1], shape[3]) == (heads, head_size)
    contract.require(
        heads_first or (len(shape) == 3 and shape[2] == row),
        f"key must have shape (blocks, block_size, {row}) or (blocks, {heads}, block_size, "
        f"{head_size}) with a block_table, not {shape}; reshape the cache",
    )
    tokens = shape[2] if heads_first else shape[1]
    contract.require(
        given == tokens,
        f"block_size must be that of the cache, {tokens}, not {given}; pass {tokens}",
    )
    contract.require(
        tokens % PAGE_UNIT == 0 and 0 < tokens <= MAX_PAGE,
        f"block_size must be a multiple of {PAGE_UNIT} up to {MAX_PAGE}, not {tokens}; make the "
        f"cache so",
    )
    needed = [ceil_div(length, tokens) for length in kv_lengths]
    contract.require(
        len(table.shape) == 2
        and table.shape[0] == len(kv_lengths)
        and table.shape[1] >= max(needed),
        f"block_table must have shape ({len(kv_lengths)}, blocks of the longest request), at least "
        f"{max(needed)} of them, not {table.shape}; pass a row for each request",
    )
    tables = _tables(contract, table, needed, shape[0])
    return Paging(shape[0], tokens, heads_first, tables, table.shape[1], table.array is None)


def _tables(
    contract: Contract, table: Operand, needed: list[int], blocks: int
) -> tuple[tuple[int, ...], ...]:
    """The blocks of each request; without values one after the other, over and over."""
    if table.array is None:
        firsts = np.cumsum([0, *needed])
        return tuple(
            tuple(((first + np.arange(count)) % max(1, blocks)).tolist())
            for first, count in zip(firsts[:-1], needed, strict=True)
        )
    found = []
    for request, count in enumerate(needed):
        own = table.array[request, :count]
        for number in (own.min(), own.max()) if count else ():
            contract.require(
                0 <= number < blocks,
                f"block_table must name blocks in [0, {blocks}) of the cache, not {number} for "
                f"request {request}; a card would read elsewhere: correct it",
            )
        found.append(tuple(own.tolist()))
    return tuple(found)


# ---- scales of int8 ----


def antiquant_of(
    contract: Contract, scales: list[tuple[Operand, int]], a: Attention
) -> Antiquant | None:
    """What *scales* of keys and values multiply, by their modes; None without any.

    Assumed: that those for keys or values alone have the shape of a half of `antiquant_scale`, with
    or without its first axis.
    """
    sides = [_side(contract, scale, mode, a) for scale, mode in scales]
    if len(sides) == 1:
        # Those of values follow those of keys.
        (both,) = sides
        half = scales[0][0].spec.size // 2
        sides.append(Scales(both.name, both.dtype, both.per, half, both.tokens))
    return Antiquant(INT8, *sides) if sides else None


def _side(contract: Contract, scale: Operand, mode: int, a: Attention) -> Scales:
    """What *scale* is for, by its mode and its shape."""
    room = a.longest_kv if a.paging is None else a.paging.width * a.paging.block_size
    heads, size, inner = a.kv_heads, a.head_size, a.layout.partition("_")[0]
    channels = {"BNSD": (heads, 1, size), "BSND": (heads, size)}.get(inner, (heads * size,))
    kinds: dict[Literal["tensor", "channel", "token"], tuple[int, ...]]
    kinds = {"token": (a.requests, room)} if mode else {"tensor": (), "channel": channels}
    shapes: dict[tuple[int, ...], Literal["tensor", "channel", "token"]] = {}
    for kind, each in kinds.items():
        shapes[(2 if scale.name == BOTH else 1, *each)] = kind
        if scale.name != BOTH and each:
            shapes[each] = kind
    contract.require(
        scale.shape in shapes,
        f"{scale.name} must have shape {listed(tuple(map(str, shapes)))} with"
        f"{mode_words(contract, scale.name)} input_layout {a.layout}, not {scale.shape}; reshape "
        f"it",
    )
    return Scales(scale.name, scale.element, shapes[scale.shape], 0, room)


def mode_of(scale: str) -> str:
    """The parameter that says what has its own scale."""
    return scale.replace("scale", "mode")


def mode_words(contract: Contract, scale: str) -> str:
    """What the mode of *scale* is, where the operator has it, before something else."""
    mode = mode_of(scale)
    return f" {mode} {contract.integer(mode)} and" if mode in contract.arguments else ""
