"""Which core gets which tiles: runs of about the same cost.

.. code-block:: text

    cost of a tile = 6 x ceil(rows / 16) + 10 x ceil(keys / 64)

For every number of cores that could be worth it, each core in turn takes what is left of a head of
keys, then what is left of a row of tiles, then tile by tile, as long as that exceeds its share of
the cost that is left by no more than half of the last tile. The number of cores whose largest cost
is the smallest wins, the fewest cores if there are several. A row of tiles that several cores
share is combined afterwards.

ops-transformer@3a280bc attention/common/op_host/split_core.cpp. That shares are rounded down, and
that what a core before has left of a head or of a row counts as one piece, is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isqrt, sqrt
from typing import NamedTuple

from npusim.data.integers import ceil_div

__all__ = ["Costs", "Share", "cost", "split"]

ROW_COST, ROWS_OF_COST = 6, 16
KEY_COST, KEYS_OF_COST = 10, 64
TOLERANCE = 2
"""The part of its last tile's cost by which a core may exceed its share is one in so many."""


def cost(rows: int, keys: int) -> int:
    """The cost of a tile, without a unit.

    >>> cost(4, 8192)
    1286
    """
    return ROW_COST * ceil_div(rows, ROWS_OF_COST) + KEY_COST * ceil_div(keys, KEYS_OF_COST)


@dataclass(frozen=True)
class Costs:
    """The costs of the tiles of one head of keys, `tiles[row][tile]`; a row may have none."""

    tiles: tuple[tuple[int, ...], ...]

    @cached_property
    def rows(self) -> tuple[int, ...]:
        return tuple(sum(row) for row in self.tiles)

    @cached_property
    def total(self) -> int:
        return sum(self.rows)

    @cached_property
    def count(self) -> int:
        return sum(len(row) for row in self.tiles)

    def by_row(self) -> Costs:
        """Each row as one tile."""
        return Costs(tuple((sum(row),) if row else () for row in self.tiles))

    @cached_property
    def last(self) -> int:
        """The cost of the last tile."""
        return next((row[-1] for row in reversed(self.tiles) if row), 0)


class Share(NamedTuple):
    """Tiles [first, last) of a row of a head, which one core gets."""

    head: int
    row: int
    first: int
    last: int


def split(heads: Sequence[Costs], cores: int) -> list[list[Share]]:
    """The shares of each core that gets some; *heads* are those of all batches, in turn."""
    tiles = sum(head.count for head in heads)
    if not tiles:
        return []
    fewest = int(sqrt(tiles + 0.25) + 0.5)
    assert fewest >= isqrt(tiles)
    best: list[list[Share]] = []
    least: int | None = None
    for count in range(min(fewest, cores, tiles), min(cores, tiles) + 1):
        shares, largest = _Walk(heads).split(count)
        if least is None or largest < least:
            best, least = shares, largest
    return best


class _Walk:
    """Goes through all tiles in order, and hands them to one core after the other."""

    def __init__(self, heads: Sequence[Costs]) -> None:
        self._heads = heads
        self._left = sum(head.total for head in heads)
        self._head = self._row = self._tile = 0
        self._of_head = self._of_row = 0
        """What is left of the head and of the row."""
        self._shares: list[Share] = []
        self._enter_head()

    def split(self, cores: int) -> tuple[list[list[Share]], int]:
        """The shares of up to *cores*, and the largest cost of one of them."""
        found, largest = [], 0
        for core in range(cores):
            if not self._left:
                break
            self._shares = []
            taken = self._take(self._left // (cores - core))
            found.append(self._shares)
            largest = max(largest, taken)
        return found, largest

    def _take(self, budget: int) -> int:
        """Hand out the share of a core; how much it costs."""
        taken = 0
        while self._left:
            last = self._heads[self._head].last
            if taken + self._of_head > budget + last // TOLERANCE:
                break
            taken += self._take_head()
        while self._left:
            last = self._heads[self._head].tiles[self._row][-1]
            if taken + self._of_row > budget + last // TOLERANCE:
                break
            taken += self._take_row()
        while self._left:
            tile = self._heads[self._head].tiles[self._row][self._tile]
            if taken and taken + tile > budget + tile // TOLERANCE:
                break
            taken += self._take_tile()
        return taken

    def _take_head(self) -> int:
        taken, head = 0, self._head
        while self._left and self._head == head:
            taken += self._take_row()
        return taken

    def _take_row(self) -> int:
        row = self._heads[self._head].tiles[self._row]
        taken = self._of_row
        self._add(self._tile, len(row))
        self._spend(taken)
        self._enter_row(self._row + 1)
        return taken

    def _take_tile(self) -> int:
        row, tile = self._heads[self._head].tiles[self._row], self._tile
        self._add(tile, tile + 1)
        self._spend(row[tile])
        if tile + 1 < len(row):
            self._tile = tile + 1
        else:
            self._enter_row(self._row + 1)
        return row[tile]

    def _add(self, first: int, last: int) -> None:
        before = self._shares[-1] if self._shares else None
        if before is not None and before[:2] == (self._head, self._row) and before.last == first:
            self._shares[-1] = before._replace(last=last)
        else:
            self._shares.append(Share(self._head, self._row, first, last))

    def _spend(self, amount: int) -> None:
        self._left -= amount
        self._of_head -= amount
        self._of_row -= amount

    def _enter_row(self, row: int) -> None:
        """Go to the first tile of *row*, or of the next one that has any."""
        rows = self._heads[self._head].tiles
        while row < len(rows) and not rows[row]:
            row += 1
        if row < len(rows):
            self._row, self._tile = row, 0
            self._of_row = self._heads[self._head].rows[row]
        else:
            self._head += 1
            self._enter_head()

    def _enter_head(self) -> None:
        """Go to the first tile of this head, or of the next one that has any."""
        while self._head < len(self._heads) and not self._heads[self._head].count:
            self._head += 1
        if self._head < len(self._heads):
            self._of_head = self._heads[self._head].total
            self._enter_row(0)
