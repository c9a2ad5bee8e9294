"""How FIA splits a call: tiles of rows and keys, and runs of similar cost for each core.

The rows of a call are queries that share a head of keys. They are ordered by token if the heads of
a token are adjacent in memory (BSH, BSND, TND), each token with its heads, and by head otherwise
(BNSD, NTD). In training they are ordered by head, and a row of tiles has rows of one head.

.. code-block:: text

    cost of a tile = 6 x ceil(rows / 16) + 10 x ceil(keys / 64)

For every number of cores that may be worth it, each core in turn takes the rest of a head of keys,
then the rest of a row of tiles, then tile by tile, as long as that exceeds its share of the
remaining cost by no more than half of the last tile. The number of cores with the smallest largest
cost wins, the fewest cores if there are several. A row of tiles that several cores share is
combined afterwards.

ops-transformer@3a280bc attention/common/op_host, arch22/fia_tiling_nonquant.cpp, split_core.cpp;
for training attention/flash_attention_score, whose tasks are tokens of a head. That shares are
rounded down, and that the rest of a head or a row left by the previous core counts as one unit, is
assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from math import sqrt
from typing import NamedTuple

from npusim.data.integers import ceil_div
from npusim.ops._attention.fia_sizes import TileSizes, tile_sizes
from npusim.ops._attention.problem import Attention

ROW_COST, ROWS_OF_COST = 6, 16
KEY_COST, KEYS_OF_COST = 10, 64
TOLERANCE = 2
"""A core may exceed its share by its last tile's cost divided by this."""
SPLIT_CORES, SPLIT_PAGED_KEYS = 2, 1024
"""With int8 keys, cores share a row if there are that many cores for each head of each request,
and in pages only if the longest request has more keys."""
COMBINED_ROWS = 8
"""Rows of a row of tiles that a vector core combines at a time."""


class Run(NamedTuple):
    """Evenly spaced rows: some heads of some tokens."""

    token: int
    tokens: int
    head: int
    """The first head, within the group; *heads* of each token."""
    heads: int

    @property
    def rows(self) -> int:
        return self.tokens * self.heads


class Mask(NamedTuple):
    """Layout of a call's mask, in bytes: nonzero hides a key."""

    pitch: int
    """From the row of a query token to the next."""
    request: int
    """From request to request."""


@dataclass(frozen=True)
class Rows:
    """The rows of *a*, and the keys each of them may see."""

    a: Attention

    @cached_property
    def by_token(self) -> bool:
        """Whether the heads of a token are consecutive; else the tokens of a head."""
        is_adjacent = self.a.layout.partition("_")[0] in ("BSH", "BSND", "SBH", "TND")
        return is_adjacent and not self.a.is_training

    @cached_property
    def mask(self) -> Mask | None:
        """A mask that is used directly, `(requests or 1, tokens, keys)`."""
        a = self.a
        if not a.has_own_mask:
            return None
        *outer, rows, keys = a.mask_shape
        if not outer:
            # (tokens, keys), or (requests, keys) if each request has one token.
            return Mask(keys, 0 if a.longest_query > 1 else keys)
        return Mask(keys, rows * keys if outer[0] == a.requests else 0)

    def reach(self, request: int) -> tuple[int | None, int | None]:
        """Keys `token + first` to `token + last` have their tiles processed; None: no bound."""
        a = self.a
        if a.prefixes and a.has_own_mask:
            return None, a.kv_lengths[request] - a.query_lengths[request]
        # Within a tile only the mask itself hides keys.
        return (-a.pre_tokens, a.next_tokens) if a.has_own_mask else a.window(request)

    def visible(self, request: int, row: int, rows: int) -> tuple[int, int]:
        """The keys `[start, end)` that some of the rows [row, row + rows) may see."""
        first, last = self._tokens(request, row, rows)
        before, after = self.reach(request)
        keys = self.a.kv_lengths[request]
        if before is not None and after is not None and before > after:
            return 0, 0
        start = 0 if before is None else max(0, first + before)
        end = keys if after is None else min(keys, last + after + 1)
        return min(start, keys), max(end, 0, self.prefix(request))

    def prefix(self, request: int) -> int:
        """Keys that all tokens see."""
        return self.a.prefixes[request] if self.a.prefixes else 0

    def blind(self, request: int) -> tuple[int, int]:
        """Tokens before the first number, and from the second one on, give zeros."""
        before, after = self.reach(request)
        queries, keys = self.a.query_lengths[request], self.a.kv_lengths[request]
        if self.prefix(request) or (self.a.prefixes and self.a.has_own_mask):
            return 0, queries
        first = 0 if after is None else min(queries, max(0, -after))
        # With such a mask the end is relative to the last token.
        end = queries if self.a.has_own_mask else keys
        last = queries if before is None else min(queries, max(0, end - before))
        return (first, last) if first < last and keys else (queries, queries)

    def cut(self, request: int, most: int) -> Iterator[tuple[int, int]]:
        """First row and row count of the rows of tiles of a head of keys, *most* rows at a time."""
        count, heads = self.a.query_lengths[request], self.a.group
        if not self.a.is_training:
            count, heads = count * heads, 1
        for head in range(heads):
            for row in range(0, count, most):
                yield head * count + row, min(most, count - row)

    def _tokens(self, request: int, row: int, rows: int) -> tuple[int, int]:
        """The first and the last token of rows [row, row + rows)."""
        if self.by_token:
            return row // self.a.group, (row + rows - 1) // self.a.group
        queries = self.a.query_lengths[request]
        if row // queries != (row + rows - 1) // queries:
            return 0, queries - 1
        return row % queries, (row + rows - 1) % queries

    def runs(self, request: int, row: int, rows: int) -> Iterator[Run]:
        """Rows [row, row + rows) of a head of keys, in as few runs as possible."""
        inner = self.a.group if self.by_token else self.a.query_lengths[request]
        end = row + rows
        while row < end:
            outer, first = divmod(row, inner)
            count = min(inner - first, end - row)
            if not self.by_token:
                run = Run(first, count, outer, 1)
            elif first or count < inner:
                run = Run(outer, 1, first, count)
            else:
                run = Run(outer, (end - row) // inner, 0, inner)
            yield run
            row += run.rows


# ---- tiles ----


class RowTile(NamedTuple):
    """Rows of a head of keys, and the tiles of keys that they see."""

    request: int
    head: int
    """The head of the keys."""
    row: int
    rows: int
    first: int
    """Tiles [first, last) of keys, starting from key 0."""
    last: int


class Piece(NamedTuple):
    """Tiles [first, last) of a row of tiles, processed in order on one core."""

    row_tile: RowTile
    first: int
    last: int
    number: int | None
    """The slot in which its results wait for the other pieces; None if it is the whole row."""


class Tile(NamedTuple):
    """The unit of work of a core."""

    piece: Piece
    key: int
    """The first key, of *keys*."""
    keys: int
    is_first: bool
    """Whether it is the first of its piece; *is_last* likewise."""
    is_last: bool
    turn: int
    """The index of its piece on its core, and its own *number* there."""
    number: int
    core: int


class Combined(NamedTuple):
    """Rows of a split row of tiles, which a vector core combines."""

    row_tile: RowTile
    row: int
    """The first one, relative to the row of tiles."""
    rows: int
    first: int
    """The number of the first of its pieces."""
    pieces: int


# ---- cores ----


class Share(NamedTuple):
    """Tiles [first, last) of a row of a head, assigned to one core."""

    head: int
    row: int
    first: int
    last: int


Costs = Sequence[Sequence[int]]
"""Costs of the tiles of one head of keys, `[row][tile]`; a row may be empty."""


def cost(rows: int, keys: int) -> int:
    """The cost of a tile, without a unit.

    >>> cost(4, 8192)
    1286
    """
    return ROW_COST * ceil_div(rows, ROWS_OF_COST) + KEY_COST * ceil_div(keys, KEYS_OF_COST)


def split(heads: Sequence[Costs], cores: int) -> list[list[Share]]:
    """The shares of each core that gets some; *heads* are those of all batches, in order."""
    rows = [Share(x, y, 0, len(row)) for x, head in enumerate(heads) for y, row in enumerate(head)]
    costs = list(chain.from_iterable(chain.from_iterable(heads)))
    if not costs:
        return []
    upto = [0, *accumulate(costs)]
    # For each tile, the end of its row and of its head.
    row_ends = _ends([len(row) for head in heads for row in head])
    head_ends = _ends([sum(map(len, head)) for head in heads])
    fewest = int(sqrt(len(costs) + 0.25) + 0.5)
    best: list[int] = []
    least: int | None = None
    for count in range(min(fewest, cores, len(costs)), min(cores, len(costs)) + 1):
        ends = _walk(costs, upto, (head_ends, row_ends), count)
        largest = max(upto[end] - upto[start] for start, end in zip([0, *ends], ends, strict=False))
        if least is None or largest < least:
            best, least = ends, largest
    return _shares(rows, best)


def _ends(sizes: list[int]) -> list[int]:
    """For each item of consecutive runs of these *sizes*, the end of its run."""
    ends = accumulate(sizes)
    return [end for size, end in zip(sizes, ends, strict=True) for _ in range(size)]


def _walk(
    costs: list[int], upto: list[int], ends: tuple[list[int], list[int]], cores: int
) -> list[int]:
    """The end of the tiles of each of up to *cores*; *ends* are those of heads and of rows."""
    found, at = [], 0
    for core in range(cores):
        if at == len(costs):
            break
        start, budget = at, (upto[-1] - upto[at]) // (cores - core)
        for of_unit in ends:
            while at < len(costs):
                end = of_unit[at]
                if upto[end] - upto[start] > budget + costs[end - 1] // TOLERANCE:
                    break
                at = end
        while at < len(costs):
            exceeds = upto[at + 1] - upto[start] > budget + costs[at] // TOLERANCE
            if at > start and exceeds:
                break
            at += 1
        found.append(at)
    return found


def _shares(rows: list[Share], ends: list[int]) -> list[list[Share]]:
    """The parts of *rows* of each core, whose tiles, counted over all rows, end at *ends*."""
    found: list[list[Share]] = [[] for _ in ends]
    core = at = 0
    for row in rows:
        first = 0
        while first < row.last:
            count = min(ends[core] - at, row.last - first)
            found[core].append(row._replace(first=first, last=first + count))
            at, first = at + count, first + count
            core += at == ends[core]
    return found


@dataclass(frozen=True)
class Schedule:
    """The pieces of all cores, and the combination that follows."""

    rows: Rows
    sizes: TileSizes
    cores: tuple[tuple[Piece, ...], ...]
    empty: tuple[RowTile, ...]
    """Rows that see no key: zeros."""

    @cached_property
    def tiles(self) -> tuple[Tile, ...]:
        """The tiles of core after core, each in its order."""
        found: list[Tile] = []
        for core, own in enumerate(self.cores):
            before = len(found)
            for turn, piece in enumerate(own):
                keys = self.rows.a.kv_lengths[piece.row_tile.request]
                for index in range(piece.first, piece.last):
                    key = index * self.sizes.keys
                    count, number = min(self.sizes.keys, keys - key), len(found) - before
                    ends = index == piece.first, index == piece.last - 1
                    found.append(Tile(piece, key, count, *ends, turn, number, core))
        return tuple(found)

    @cached_property
    def split_rows(self) -> tuple[tuple[Piece, ...], ...]:
        """The pieces of each row of tiles that several cores share, in order of keys."""
        found: dict[RowTile, list[Piece]] = {}
        for piece in chain.from_iterable(self.cores):
            if piece.number is not None:
                found.setdefault(piece.row_tile, []).append(piece)
        return tuple(map(tuple, found.values()))

    @property
    def pieces(self) -> int:
        """Number of pieces that are combined with others."""
        return sum(map(len, self.split_rows))

    @cached_property
    def combined(self) -> tuple[tuple[Combined, ...], ...]:
        """The rows that each vector core combines: runs of about equally many pieces (assumed)."""
        every = [
            Combined(tile, row, min(COMBINED_ROWS, tile.rows - row), own[0].number or 0, len(own))
            for own in self.split_rows
            for tile in (own[0].row_tile,)
            for row in range(0, tile.rows, COMBINED_ROWS)
        ]
        workers = 2 * len(self.cores)
        each = ceil_div(sum(part.pieces for part in every), workers) if every else 1
        found: list[list[Combined]] = [[] for _ in range(workers)]
        before = 0
        for part in every:
            found[min(before // each, workers - 1)].append(part)
            before += part.pieces
        return tuple(map(tuple, found))


@lru_cache(maxsize=4)
def schedule(a: Attention, cores: int) -> Schedule:
    """The schedule of *a* on a chip of that many cube *cores*."""
    rows = Rows(a)
    sizes = tile_sizes(a, cores)
    tiles: list[list[RowTile]] = []
    costs: list[Costs] = []
    shares_rows = a.antiquant is None or (a.has_digits and _splits_keys(a, cores))
    shares_rows = shares_rows and not a.is_training
    for request, keys in enumerate(a.kv_lengths):
        own = list(_row_tiles(rows, sizes, request))
        each: Costs = [
            [
                cost(tile.rows, min(sizes.keys, keys - index * sizes.keys))
                for index in range(tile.first, tile.last)
            ]
            for tile in own
        ]
        if not shares_rows:
            # Treat a row as one tile.
            each = [[sum(row)] if row else [] for row in each]
        costs += [each] * a.kv_heads
        tiles += [[tile._replace(head=head) for tile in own] for head in range(a.kv_heads)]
    found, number = [], 0
    for core in split(costs, cores):
        pieces = []
        for share in core:
            tile = tiles[share.head][share.row]
            is_whole = share.last - share.first == len(costs[share.head][share.row])
            first, last = tile.first + share.first, tile.first + share.last
            if is_whole:
                first, last = tile.first, tile.last
            pieces.append(Piece(tile, first, last, None if is_whole else number))
            number += not is_whole
        found.append(tuple(pieces))
    empty = tuple(tile for head in tiles for tile in head if tile.first == tile.last)
    return Schedule(rows, sizes, tuple(found), empty)


def _splits_keys(a: Attention, cores: int) -> bool:
    """Whether cores may share a row of tiles with int8 keys.

    ops-transformer@3a280bc attention/incre_flash_attention/op_host,
    incre_flash_attention_tiling_check.cpp.
    """
    is_short = a.paging is not None and max(a.kv_lengths) <= SPLIT_PAGED_KEYS
    return not is_short and SPLIT_CORES * a.requests * a.kv_heads <= cores


def _row_tiles(rows: Rows, sizes: TileSizes, request: int) -> Iterator[RowTile]:
    """The rows of tiles of head 0 of *request*."""
    for row, own in rows.cut(request, sizes.rows):
        start, end = rows.visible(request, row, own)
        first, last = (0, 0) if start >= end else (start // sizes.keys, ceil_div(end, sizes.keys))
        yield RowTile(request, 0, row, own, first, last)
