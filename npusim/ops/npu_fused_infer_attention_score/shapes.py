"""Heads, columns and lengths of a call, read off its tensors in their layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.data.errors import shown
from npusim.data.tensor import Operand
from npusim.ops._contract import Contract

__all__ = ["Sizes", "check_keys", "head_size_of", "heads_of", "lengths_of", "longest_of"]

MAX_HEADS, MAX_HEAD_SIZE, HEAD_UNIT = 256, 512, 16
"""Heads of query and of keys, and columns of one: multiples of 16 (op-plugin@517f2e7, the
operator's document; ops-transformer@3a280bc, the tiling)."""
MAX_GROUP = 128
"""Query heads that share keys: the tiling takes so many, the document half of them."""
MAX_REQUESTS, MAX_REQUESTS_TND = 65536, 4096
MAX_KEYS = 20_971_520
"""Keys of a request (both from the document)."""
SHAPES = {
    "BSH": "(requests, tokens, heads x columns)",
    "BSND": "(requests, tokens, heads, columns)",
    "BNSD": "(requests, heads, tokens, columns)",
    "TND": "(tokens, heads, columns)",
    "NTD": "(heads, tokens, columns)",
}
TOGETHER = ("TND", "NTD")
"""Layouts whose requests follow each other."""

Sizes = tuple[tuple[int, ...], tuple[int, ...]]
"""Query tokens of each request, and its keys."""
Unchecked = tuple[Any, Any]
"""The parameters that hold these, as they came."""


def heads_of(contract: Contract, num_heads: Any, num_key_value_heads: Any) -> tuple[int, int]:
    """Heads of query and of keys; 0 of the latter are as many."""
    heads = contract.integer("num_heads", num_heads)
    given = contract.integer("num_key_value_heads", num_key_value_heads)
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


def head_size_of(contract: Contract, operand: Operand, layout: str, heads: int) -> int:
    """Columns of a head of *operand*, `query` or `key`, whose heads are that many."""
    shape, name = operand.shape, operand.name
    wanted = SHAPES[layout]
    contract.require(
        len(shape) == wanted.count(",") + 1,
        f"{name} must have shape {wanted} for input_layout {layout}, not {shape}; reshape it",
    )
    attribute = "num_heads" if name == "query" else "num_key_value_heads"
    if layout == "BSH":
        contract.require(
            shape[2] % heads == 0,
            f"the last dimension of {name} must be a multiple of {attribute}, {heads}, not "
            f"{shape[2]}; pass the heads of {name}",
        )
        size = shape[2] // heads
    else:
        axis = layout.index("N")
        contract.require(
            shape[axis] == heads,
            f"{name} must have {attribute}, {heads}, as dimension {axis} of {wanted}, not "
            f"{shape[axis]}; pass the heads of {name}",
        )
        size = shape[-1]
    contract.require(
        0 < size <= MAX_HEAD_SIZE and size % HEAD_UNIT == 0,
        f"a head of {name} must have a multiple of {HEAD_UNIT} columns up to {MAX_HEAD_SIZE}, not "
        f"{size}; pad it",
    )
    return size


def longest_of(layout: str, shape: tuple[int, ...], lengths: tuple[int, ...]) -> int:
    """Tokens of a request that a tensor has room for; in TND and NTD the longest request's."""
    if layout in TOGETHER:
        return max(lengths, default=0)
    return shape[2] if layout == "BNSD" else shape[1]


def check_keys(
    contract: Contract, query: Operand, key: Operand, layout: str, kv_heads: int, head_size: int
) -> None:
    """Hold keys that are not in pages against the query."""
    size = head_size_of(contract, key, layout, kv_heads)
    contract.require(
        size == head_size,
        f"a head of key must have as many columns as one of query, {head_size}, not {size}: others "
        f"are not simulated; pad the shorter one",
    )
    if layout not in TOGETHER:
        contract.require(
            key.shape[0] == query.shape[0],
            f"key must have the requests of query, {query.shape[0]}, not {key.shape[0]}; pass keys "
            f"for each",
        )


# ---- lengths ----


def lengths_of(
    contract: Contract,
    layout: str,
    query: Operand,
    key: Operand,
    given: Unchecked,
    *,
    is_paged: bool,
) -> Sizes:
    """Query tokens and keys of each request, from *given*: both parameters, as they came."""
    query_lengths = _listed(contract, "actual_seq_lengths", given[0])
    kv_lengths = _listed(contract, "actual_seq_lengths_kv", given[1])
    if is_paged and kv_lengths is None:
        contract.fail(
            "actual_seq_lengths_kv must be given with a block_table, not None; pass the keys of "
            "each request"
        )
    if layout in TOGETHER:
        found = _of_tokens(contract, layout, query, key, query_lengths, kv_lengths, is_paged)
    else:
        found = _of_requests(contract, layout, query, key, query_lengths, kv_lengths, is_paged)
    longest = max(found[1], default=0)
    contract.require(
        longest <= MAX_KEYS,
        f"a request must have at most {MAX_KEYS} keys, not {longest}; split it",
    )
    return found


def _listed(contract: Contract, name: str, value: Any) -> tuple[int, ...] | None:
    """Parameter *name* as whole numbers from 0 on; None if it was not given."""
    if value is None:
        return None
    numbers = value.tolist() if isinstance(value, np.ndarray) and value.ndim == 1 else value
    is_listed = isinstance(numbers, list | tuple) and all(
        isinstance(number, int | np.integer) and not isinstance(number, bool) and number >= 0
        for number in numbers
    )
    if not is_listed or not numbers:
        contract.fail(
            f"{name} must be a list of integers from 0 on, one for each request, not "
            f"{shown(value)}; pass the lengths as plain integers"
        )
    return tuple(int(number) for number in numbers)


def _of_tokens(
    contract: Contract,
    layout: str,
    query: Operand,
    key: Operand,
    query_ends: tuple[int, ...] | None,
    kv_given: tuple[int, ...] | None,
    is_paged: bool,
) -> Sizes:
    """TND and NTD: the query's lengths are sums, those of keys without pages too."""
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
    contract: Contract,
    layout: str,
    query: Operand,
    key: Operand,
    query_given: tuple[int, ...] | None,
    kv_given: tuple[int, ...] | None,
    is_paged: bool,
) -> Sizes:
    """The other layouts: a length for each request, one for all of them, or the whole tensor."""
    requests, tokens = query.shape[0], longest_of(layout, query.shape, ())
    contract.require(
        0 < requests <= MAX_REQUESTS,
        f"query must have 1 to {MAX_REQUESTS} requests, not {requests}; split the call",
    )
    keys = MAX_KEYS if is_paged else longest_of(layout, key.shape, ())
    # The query's are not looked at where each request has one token.
    of_query = None if tokens == 1 else query_given
    return (
        _for_all(contract, "actual_seq_lengths", of_query, requests, tokens),
        _for_all(contract, "actual_seq_lengths_kv", kv_given, requests, keys),
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
