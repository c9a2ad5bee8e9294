"""What each core of kernel FIA does: tiles of rows and keys, and pieces that are put together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from npusim.data.integers import ceil_div
from npusim.ops._attention.description import Attention
from npusim.ops._attention.fia.rows import Rows
from npusim.ops._attention.fia.split import Costs, Share, cost, split
from npusim.ops._attention.fia.tiles import TileSizes, tile_sizes

__all__ = ["Part", "Piece", "RowTile", "Schedule", "Tile", "schedule"]

SPLIT_CORES, SPLIT_PAGED_KEYS = 2, 1024
"""Of keys of whole numbers, cores share a row where there are that many cores for each head of each
request, and in pages only where the longest request has more keys."""
PART_ROWS = 8
"""Rows of a row of tiles that a vector core puts together at a time."""


class RowTile(NamedTuple):
    """Rows of a head of keys, and the tiles of keys that they see."""

    request: int
    head: int
    """Of the keys."""
    row: int
    rows: int
    first: int
    """Tiles [first, last) of keys, counted from key 0 on."""
    last: int


class Piece(NamedTuple):
    """Tiles [first, last) of a row of tiles, one after the other on one core."""

    row_tile: RowTile
    first: int
    last: int
    number: int | None
    """Where its results wait for those of the other pieces; None if it is the whole row."""


class Tile(NamedTuple):
    """What a core does at a time."""

    piece: Piece
    key: int
    """The first key; *keys* of them."""
    keys: int
    is_first: bool
    """Of its piece; *is_last* likewise."""
    is_last: bool
    turn: int
    """The number of its piece on its core."""


class Part(NamedTuple):
    """Rows of a split row of tiles, which a vector core puts together."""

    row_tile: RowTile
    row: int
    """The first one, counted from that of the row of tiles."""
    rows: int
    first: int
    """The number of the first of its pieces."""
    pieces: int


@dataclass(frozen=True)
class Schedule:
    """The pieces of all cores, and what follows."""

    rows: Rows
    sizes: TileSizes
    cores: tuple[tuple[Piece, ...], ...]
    empty: tuple[RowTile, ...]
    """Rows that see no key: zeros."""

    def tiles(self, core: int) -> Iterator[Tile]:
        """What *core* does, in order."""
        for turn, piece in enumerate(self.cores[core]):
            keys = self.rows.a.kv_lengths[piece.row_tile.request]
            for index in range(piece.first, piece.last):
                key = index * self.sizes.keys
                count = min(self.sizes.keys, keys - key)
                is_last = index == piece.last - 1
                yield Tile(piece, key, count, index == piece.first, is_last, turn)

    @cached_property
    def split_rows(self) -> tuple[tuple[Piece, ...], ...]:
        """The pieces of each row of tiles that several cores share, in order of keys."""
        found: dict[RowTile, list[Piece]] = {}
        for core in self.cores:
            for piece in core:
                if piece.number is not None:
                    found.setdefault(piece.row_tile, []).append(piece)
        return tuple(tuple(pieces) for pieces in found.values())

    @property
    def pieces(self) -> int:
        """Pieces that wait for others."""
        return sum(len(pieces) for pieces in self.split_rows)

    @cached_property
    def parts(self) -> tuple[tuple[Part, ...], ...]:
        """What each vector core puts together: runs of about as many pieces (assumed)."""
        every = [
            Part(
                row[0].row_tile, start, min(PART_ROWS, count - start), row[0].number or 0, len(row)
            )
            for row in self.split_rows
            for count in (row[0].row_tile.rows,)
            for start in range(0, count, PART_ROWS)
        ]
        workers = 2 * len(self.cores)
        each = ceil_div(sum(part.pieces for part in every), workers) if every else 1
        found: list[list[Part]] = [[] for _ in range(workers)]
        before = 0
        for part in every:
            found[min(before // each, workers - 1)].append(part)
            before += part.pieces
        return tuple(map(tuple, found))


@lru_cache(maxsize=4)
def schedule(a: Attention, cores: int) -> Schedule:
    """The schedule of *a* on a chip of so many cube *cores*."""
    rows = Rows(a)
    sizes = tile_sizes(rows)
    of_request = [tuple(_row_tiles(rows, sizes, request)) for request in range(a.requests)]
    costs = {request: _costs(rows, sizes, tiles) for request, tiles in enumerate(of_request)}
    heads = [(request, head) for request in range(a.requests) for head in range(a.kv_heads)]
    if a.antiquant is not None and not _splits_keys(a, cores):
        shares = _whole_rows(
            split([costs[request].by_row() for request, _ in heads], cores),
            [costs[request] for request, _ in heads],
        )
    else:
        shares = split([costs[request] for request, _ in heads], cores)
    return Schedule(rows, sizes, _pieces(heads, of_request, shares), _empty(heads, of_request))


def _splits_keys(a: Attention, cores: int) -> bool:
    """Whether cores may share a row of tiles of whole numbers.

    ops-transformer@3a280bc attention/incre_flash_attention/op_host,
    incre_flash_attention_tiling_check.cpp.
    """
    is_short = a.paging is not None and max(a.kv_lengths) <= SPLIT_PAGED_KEYS
    return not is_short and SPLIT_CORES * a.requests * a.kv_heads <= cores


def _whole_rows(shares: list[list[Share]], heads: list[Costs]) -> list[list[Share]]:
    """*shares* of rows that count as one tile each, with all tiles that these have."""
    return [
        [share._replace(last=len(heads[share.head].tiles[share.row])) for share in core]
        for core in shares
    ]


def _row_tiles(rows: Rows, sizes: TileSizes, request: int) -> Iterator[RowTile]:
    """The rows of tiles of head 0 of *request*."""
    count = rows.count(request)
    for row in range(0, count, sizes.rows):
        own = min(sizes.rows, count - row)
        start, end = rows.visible(request, *rows.tokens(request, row, own))
        first, last = (0, 0) if start >= end else (start // sizes.keys, ceil_div(end, sizes.keys))
        yield RowTile(request, 0, row, own, first, last)


def _costs(rows: Rows, sizes: TileSizes, tiles: tuple[RowTile, ...]) -> Costs:
    def keys(tile: RowTile, index: int) -> int:
        return min(sizes.keys, rows.a.kv_lengths[tile.request] - index * sizes.keys)

    return Costs(
        tuple(
            tuple(cost(tile.rows, keys(tile, index)) for index in range(tile.first, tile.last))
            for tile in tiles
        )
    )


def _pieces(
    heads: list[tuple[int, int]],
    of_request: list[tuple[RowTile, ...]],
    shares: list[list[Share]],
) -> tuple[tuple[Piece, ...], ...]:
    """The pieces of each core; those of split rows are numbered in order."""
    found, number = [], 0
    for core in shares:
        own = []
        for share in core:
            request, head = heads[share.head]
            tile = of_request[request][share.row]._replace(head=head)
            count = tile.last - tile.first
            is_whole = share.first == 0 and share.last == count
            first, last = tile.first + share.first, tile.first + share.last
            own.append(Piece(tile, first, last, None if is_whole else number))
            number += not is_whole
        found.append(tuple(own))
    return tuple(found)


def _empty(
    heads: list[tuple[int, int]], of_request: list[tuple[RowTile, ...]]
) -> tuple[RowTile, ...]:
    return tuple(
        tile._replace(head=head)
        for request, head in heads
        for tile in of_request[request]
        if tile.first == tile.last
    )
