"""A call of attention as kernels see it, whatever its layout.

Tokens of all layouts are reached the same way: each request begins somewhere in the tensor, its
heads and its tokens lie a fixed number of elements apart. A cache in pages is reached by a table,
which says in which block of the cache each block of a request's tokens lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from npusim.data.dtypes import DType

__all__ = [
    "LAYOUTS",
    "MASK_EXTENT",
    "Antiquant",
    "Attention",
    "Layout",
    "Paging",
    "Scales",
    "Side",
    "cumulated",
    "side_of",
]

Layout = Literal["BSH", "BSND", "BNSD", "BNSD_BSND", "TND", "NTD", "NTD_TND"]
"""The order of requests (B), heads (N), tokens (S), columns (D); H is N x D, T all tokens of all
requests; behind the underline that of the output, where it is another one."""
LAYOUTS: tuple[Layout, ...] = ("BSH", "BSND", "BNSD", "BNSD_BSND", "TND", "NTD", "NTD_TND")
MASK_EXTENT = 2048
"""Rows and columns of the mask that sparse modes 2, 3 and 4 take: a stencil, whatever the lengths
(op-plugin@517f2e7, torch_npu-npu_fused_infer_attention_score.md)."""


@dataclass(frozen=True, slots=True)
class Side:
    """Where the tokens of query, key, value or output lie, in elements."""

    name: str
    """The tensor, as programs call it."""
    heads: int
    starts: tuple[int, ...]
    """Of each request: head 0 of its first token."""
    head_pitch: int
    token_pitch: int

    def at(self, request: int, head: int, token: int) -> int:
        """Where *token* of *head* of *request* begins."""
        return self.starts[request] + head * self.head_pitch + token * self.token_pitch


@dataclass(frozen=True, slots=True)
class Paging:
    """A cache in blocks: key and value alike."""

    blocks: int
    block_size: int
    """Tokens of a block."""
    heads_first: bool
    """Whether a block is `(heads, tokens, columns)`, and not `(tokens, heads, columns)`."""
    tables: tuple[tuple[int, ...], ...]
    """Of each request: the blocks of its tokens, in order."""
    width: int
    """Columns of the block table: places for blocks of a request."""
    is_assumed: bool
    """Whether the table came without values, so that blocks are taken to follow each other."""


@dataclass(frozen=True, slots=True)
class Scales:
    """What keys, or values, of whole numbers are multiplied by."""

    name: str
    """The tensor."""
    dtype: DType
    per: Literal["tensor", "channel", "token"]
    """One number for all, for each column of each head, or for each token of each request."""
    first: int
    """Elements of the tensor before them: keys and values may share one."""
    tokens: int
    """Of each token: places of a request."""

    def place(self, request: int, head: int, token: int, head_size: int) -> int:
        """The element where those of *head* of *request* begin, from *token* on."""
        match self.per:
            case "tensor":
                return self.first
            case "channel":
                return self.first + head * head_size
            case "token":
                return self.first + request * self.tokens + token


@dataclass(frozen=True, slots=True)
class Antiquant:
    """Keys and values of whole numbers."""

    element: DType
    key: Scales
    value: Scales


@dataclass(frozen=True, slots=True)
class Attention:
    """What is asked for; values of tensors apart."""

    element: DType
    layout: Layout
    query_heads: int
    kv_heads: int
    head_size: int
    """Columns of a head of query, key and value."""
    query_lengths: tuple[int, ...]
    """Tokens of each request."""
    kv_lengths: tuple[int, ...]
    longest_query: int
    """Tokens that the layout has room for; of TND and NTD those of the longest request."""
    longest_kv: int
    scale: float
    sparse_mode: int
    """0 and 1: the mask as it is, 2: left-up causal, 3: right-down causal, 4: a band."""
    pre_tokens: int
    next_tokens: int
    has_mask: bool
    mask_shape: tuple[int, ...]
    inner_precise: int
    """Bit 0: high performance, bit 1: correct rows that see nothing."""
    returns_lse: bool
    paging: Paging | None
    antiquant: Antiquant | None = None
    """None for keys and values of the type of query."""

    @property
    def requests(self) -> int:
        return len(self.query_lengths)

    @property
    def group(self) -> int:
        """Query heads that share a head of the keys."""
        return self.query_heads // self.kv_heads

    @property
    def is_stencil(self) -> bool:
        """Whether lengths say what is hidden, and the mask is a stencil only."""
        return self.sparse_mode in (2, 3, 4)

    @property
    def query(self) -> Side:
        """Where query tokens lie."""
        lengths, longest = self.query_lengths, self.longest_query
        inner = self.layout.partition("_")[0]
        return side_of("query", inner, self.query_heads, self.head_size, lengths, longest)

    @property
    def output(self) -> Side:
        """Where what they attend to lies."""
        lengths, longest = self.query_lengths, self.longest_query
        inner, _, outer = self.layout.partition("_")
        return side_of("output", outer or inner, self.query_heads, self.head_size, lengths, longest)

    def keys(self, name: str) -> Side:
        """Where tokens of *name*, key or value, lie; in pages, from the start of any block."""
        heads, size, page = self.kv_heads, self.head_size, self.paging
        if page is not None:
            pitches = (page.block_size * size, size) if page.heads_first else (size, heads * size)
            return Side(name, heads, (0,) * self.requests, *pitches)
        inner = self.layout.partition("_")[0]
        return side_of(name, inner, heads, size, self.kv_lengths, self.longest_kv)

    def window(self, request: int) -> tuple[int | None, int | None]:
        """What query token i of *request* sees: keys i + first to i + last, None without a bound.

        Of a mask that is taken as it is, nothing is known: both are None.
        """
        apart = self.kv_lengths[request] - self.query_lengths[request]
        match self.sparse_mode:
            case 2:
                return None, 0
            case 3:
                return None, apart
            case 4:
                return apart - self.pre_tokens, apart + self.next_tokens
            case _:
                return None, None


def cumulated(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Where each of *lengths* begins, if they follow each other.

    >>> cumulated((3, 2, 4))
    (0, 3, 5)
    """
    return (0, *accumulate(lengths))[:-1]


def side_of(
    name: str,
    layout: str,
    heads: int,
    head_size: int,
    lengths: tuple[int, ...],
    longest: int,
) -> Side:
    """The tokens of tensor *name* in *layout*, without an underline.

    *longest* is how many tokens of a request the tensor has room for.
    """
    requests, row = len(lengths), heads * head_size
    padded = tuple(request * longest * row for request in range(requests))
    match layout:
        case "BSH" | "BSND":
            return Side(name, heads, padded, head_size, row)
        case "BNSD":
            return Side(name, heads, padded, longest * head_size, head_size)
        case "TND":
            starts = tuple(first * row for first in cumulated(lengths))
            return Side(name, heads, starts, head_size, row)
        case "NTD":
            starts = tuple(first * head_size for first in cumulated(lengths))
            return Side(name, heads, starts, sum(lengths) * head_size, head_size)
    raise ValueError(
        f"attention: a layout must be BSH, BSND, BNSD, TND or NTD, not {layout!r}; use one of these"
    )
