"""The rows of a call: queries that share a head of keys, in the order in which tiles take them.

They come token by token where the heads of a token are neighbours in memory (BSH, BSND, TND), each
token with its heads, and head by head otherwise (BNSD, NTD): ops-transformer@3a280bc
attention/common/op_host, arch22/fia_tiling_nonquant.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from npusim.ops._attention.description import Attention

__all__ = ["Mask", "Rows", "Run"]


class Run(NamedTuple):
    """Rows that lie at even distances: some heads of some tokens."""

    row: int
    """The first one, counted from the rows that were asked for."""
    token: int
    tokens: int
    head: int
    """The first head, counted in the group; *heads* of each token."""
    heads: int

    @property
    def rows(self) -> int:
        return self.tokens * self.heads


@dataclass(frozen=True, slots=True)
class Mask:
    """Where the mask of a call lies, in bytes: nonzero hides a key."""

    pitch: int
    """From the row of a query token to that of the next."""
    request: int
    """From request to request."""


@dataclass(frozen=True)
class Rows:
    """The rows of *a*, and which keys each of them may see."""

    a: Attention

    @cached_property
    def by_token(self) -> bool:
        """Whether a token's heads come one after the other; else a head's tokens."""
        return self.a.layout in ("BSH", "BSND", "TND")

    @cached_property
    def is_packed(self) -> bool:
        """Whether the tokens of all requests follow each other (TND, NTD)."""
        return self.a.layout in ("TND", "NTD", "NTD_TND")

    @cached_property
    def has_stencil(self) -> bool:
        """Whether lengths say what is hidden: for one token a request the mode does not count."""
        return self.a.is_stencil and (self.is_packed or self.a.longest_query > 1)

    @cached_property
    def mask(self) -> Mask | None:
        """A mask that is taken as it is, `(requests or 1, tokens, keys)`."""
        a = self.a
        if not a.has_mask or a.is_stencil:
            return None
        *_, rows, keys = a.mask_shape
        if len(a.mask_shape) == 2:
            # (tokens, keys), or (requests, keys) where each request has one token.
            is_shared = a.longest_query > 1 or rows != a.requests
            return Mask(keys, 0 if is_shared else keys)
        is_shared = a.mask_shape[0] != a.requests
        return Mask(keys, 0 if is_shared else rows * keys)

    def count(self, request: int) -> int:
        """Rows of each head of keys."""
        return self.a.group * self.a.query_lengths[request]

    def window(self, request: int) -> tuple[int | None, int | None]:
        """Keys `token + first` to `token + last` that a token sees, None without a bound."""
        return self.a.window(request) if self.has_stencil else (None, None)

    def visible(self, request: int, first: int, last: int) -> tuple[int, int]:
        """The keys `[start, end)` that some of the tokens *first* to *last* may see."""
        before, after = self.window(request)
        keys = self.a.kv_lengths[request]
        if before is not None and after is not None and before > after:
            return 0, 0
        start = 0 if before is None else max(0, first + before)
        end = keys if after is None else min(keys, last + after + 1)
        return min(start, keys), max(end, 0)

    def blind(self, request: int) -> tuple[int, int]:
        """Tokens up to the first number, and from the second one on, see no key at all."""
        before, after = self.window(request)
        queries, keys = self.a.query_lengths[request], self.a.kv_lengths[request]
        first = 0 if after is None else min(queries, max(0, -after))
        last = queries if before is None else min(queries, max(0, keys - before))
        return (first, last) if first < last and keys else (queries, queries)

    def tokens(self, request: int, row: int, rows: int) -> tuple[int, int]:
        """The first and the last token of rows [row, row + rows)."""
        if self.by_token:
            return row // self.a.group, (row + rows - 1) // self.a.group
        queries = self.a.query_lengths[request]
        if row // queries != (row + rows - 1) // queries:
            return 0, queries - 1
        return row % queries, (row + rows - 1) % queries

    def runs(self, request: int, row: int, rows: int) -> Iterator[Run]:
        """Rows [row, row + rows) of a head of keys, as few runs as possible."""
        inner = self.a.group if self.by_token else self.a.query_lengths[request]
        end, at = row + rows, row
        while at < end:
            outer, first = divmod(at, inner)
            count = min(inner - first, end - at)
            if not self.by_token:
                yield Run(at - row, first, count, outer, 1)
            elif first or count < inner:
                yield Run(at - row, outer, 1, first, count)
            else:
                tokens = (end - at) // inner
                count = tokens * inner
                yield Run(at - row, outer, tokens, 0, inner)
            at += count
