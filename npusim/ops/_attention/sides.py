"""Memory layout of the tokens of query, key, value and output, by the layout of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from npusim.ops._attention.problem import FRACTAL_COLUMNS, Attention


@dataclass(frozen=True, slots=True)
class Side:
    """Memory layout of the tokens of query, key, value or output, in elements."""

    name: str
    """Name of the tensor in programs."""
    heads: int
    starts: tuple[int, ...]
    """Offset of head 0 of the first token of each request."""
    head_pitch: int
    token_pitch: int
    columns: int
    """Columns of a head."""

    def at(self, request: int, head: int, token: int) -> int:
        """Offset of *token* of *head* of *request*."""
        return self.starts[request] + head * self.head_pitch + token * self.token_pitch


@dataclass(frozen=True, slots=True)
class PackedSide(Side):
    """The same for packed requests, each stored as `(heads, tokens, columns)`."""

    lengths: tuple[int, ...]
    """Tokens of each request."""

    def at(self, request: int, head: int, token: int) -> int:
        return self.starts[request] + (head * self.lengths[request] + token) * self.columns


@lru_cache(maxsize=16)
def sides_of(a: Attention) -> Mapping[str, Side]:
    """Memory layout of query, key, value, their rotary parts, output and softmax_lse.

    Offsets of keys in pages are relative to the start of a block.
    """
    inner, _, outer = a.layout.partition("_")
    sums = "BNSD"
    if a.is_packed:
        sums = "TND" if a.sums_by_token or not a.is_training else "NSD"
    queries = (
        ("query", inner, a.head_size),
        ("query_rope", inner, a.rope_size),
        ("output", outer or inner, a.value_size),
        *((name, sums, columns) for name, (columns, _) in a.sums.items()),
    )
    found = {
        name: _side_of(name, layout, a.query_heads, size, a.query_lengths, a.longest_query)
        for name, layout, size in queries
    }
    keys = (("key", a.head_size), ("key_rope", a.rope_size), ("value", a.value_size))
    return found | {name: _key_side(a, inner, name, size) for name, size in keys}


def _key_side(a: Attention, layout: str, name: str, size: int) -> Side:
    """The tokens of key or value, in *layout* or in pages."""
    page, heads = a.paging, a.kv_heads
    if page is None:
        return _side_of(name, layout, heads, size, a.kv_lengths, a.longest_kv)
    firsts, by_head = (0,) * a.requests, page.block_size * size
    if page.is_nz:
        return Side(name, heads, firsts, by_head, FRACTAL_COLUMNS, size)
    if page.heads_first:
        return Side(name, heads, firsts, by_head, size, size)
    return Side(name, heads, firsts, size, heads * size, size)


def _side_of(
    name: str, layout: str, heads: int, size: int, lengths: tuple[int, ...], longest: int
) -> Side:
    """The tokens of tensor *name* in *layout*, without an underscore; *size* columns per head.

    *longest* is the number of tokens of a request for which the tensor has room.
    """
    row = heads * size
    padded = tuple(request * longest * row for request in range(len(lengths)))
    firsts = (0, *accumulate(lengths))[:-1]
    match layout:
        case "BSH" | "BSND":
            return Side(name, heads, padded, size, row, size)
        case "SBH":
            own = tuple(request * row for request in range(len(lengths)))
            return Side(name, heads, own, size, len(lengths) * row, size)
        case "BNSD":
            return Side(name, heads, padded, longest * size, size, size)
        case "NBSD":
            own = tuple(request * longest * size for request in range(len(lengths)))
            return Side(name, heads, own, len(lengths) * longest * size, size, size)
        case "TND":
            return Side(name, heads, tuple(first * row for first in firsts), size, row, size)
        case "NTD":
            starts = tuple(first * size for first in firsts)
            return Side(name, heads, starts, sum(lengths) * size, size, size)
        case "NSD":
            starts = tuple(first * row for first in firsts)
            return PackedSide(name, heads, starts, size, size, size, lengths)
    raise ValueError(
        f"attention: an order must be BSH, BSND, SBH, BNSD, NBSD, TND, NTD or NSD, not {layout!r}; "
        f"use one of these"
    )
