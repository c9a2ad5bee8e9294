"""How cube cores share a matrix product, and the pieces that pass through their buffers.

A core computes `base_m x base_n` of the output at a time, in L0C, from pieces of `base_k` in L0A
and L0B, which are double buffered. One load brings `step_ka` (`step_kb`) of them to L1, which holds
`depth_a` (`depth_b`): twice as many, or all of them if the operand is resident.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from math import lcm
from typing import Literal, NamedTuple

import numpy as np

from npusim.data.dtypes import Array, DType
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.kernel.launch import share
from npusim.kernel.product import Product
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Integers

__all__ = ["CubeTiles", "Order", "Piece", "Pieces", "whole_edges", "whole_steps", "work"]

__kernel_vocabulary__ = True

Order = Literal["row", "column", "diagonal"]


@dataclass(frozen=True, slots=True)
class CubeTiles:
    """One tiling; values count elements unless the name says otherwise."""

    base_m: int
    base_n: int
    base_k: int
    step_ka: int
    step_kb: int
    depth_a: int
    depth_b: int
    l0c_depth: int
    cores: int
    """Cube cores that have work."""
    schedule: Literal["contiguous", "round_robin", "grid"]
    """Each core gets a contiguous run of blocks, every *cores*-th block, or a grid rectangle."""
    order: Order
    """The order of the blocks within an L2 tile."""
    l2_m: int
    """Blocks of an L2 tile along m."""
    l2_n: int
    cores_m: int = 1
    """The grid: cores along m, cores along n, and groups of cores among which batches are split."""
    cores_n: int = 1
    cores_batch: int = 1
    resident_a: bool = False
    """Whether all of k stays in L1 while a core works through its blocks."""
    resident_b: bool = False

    def bypasses_l2(self, p: Product) -> bool:
        """Whether each weight is read only once, and therefore bypasses the L2.

        ops-nn@e5c3fa9: with one row of blocks, the cache is disabled for x2.
        """
        return p.m <= self.base_m

    def l1_bytes(self, p: Product) -> int:
        """Bytes of L1 that the pieces of both operands occupy."""
        a = self.depth_a * self.base_m * self.base_k
        b = self.depth_b * self.base_n * self.base_k
        return p.element.nbytes(a) + p.element.nbytes(b)


def whole_edges(base: int, extent: int, out: DType) -> int:
    """A width near *base* that splits rows of *extent* into pieces of at least 32 bytes.

    310P stores at least that much: a narrower piece would overwrite its neighbour.
    """
    least = 32 * 8 // out.bits
    smaller, larger = range(base, least - 1, -16), range(base + 16, base + 80, 16)
    width: int
    for width in (*smaller, *larger):
        if width >= extent or extent % width == 0 or extent % width >= least:
            return width
    return base


def whole_steps(a: int, b: int) -> tuple[int, int]:
    """Pieces of k of each operand in L1, the larger rounded down to a multiple of the smaller.

    >>> whole_steps(7, 2), whole_steps(3, 8)
    ((6, 2), (3, 6))
    """
    return (align_down(a, b), b) if a > b else (a, align_down(b, a))


class Piece(NamedTuple):
    """A block of the output: matrix, first row, first column, rows, columns."""

    matrix: int
    row: int
    column: int
    rows: int
    columns: int


def work(t: CubeTiles, p: Product) -> tuple[tuple[Piece, ...], ...]:
    """The pieces of each core, in order; together they cover the output exactly once."""
    if t.schedule == "grid":
        return tuple(tuple(_rectangle(t, p, core)) for core in range(t.cores))
    shares: list[list[Piece]] = [[] for _ in range(t.cores)]
    first = 0
    for matrix in range(p.matrices):
        for tile in _l2_tiles(t, p):
            for index in range(t.cores):
                if t.schedule == "contiguous":
                    run = share(len(tile), t.cores, index)
                    chosen = tile[run.start : run.stop]
                else:
                    chosen = tile[index :: t.cores]
                blocks = (_piece(t, p, matrix, i, j) for i, j in chosen)
                shares[(first + index) % t.cores].extend(blocks)
            # The next tile starts with the core after the last one that got an extra block.
            first = (first + len(tile)) % t.cores
    return tuple(map(tuple, shares))


def _piece(t: CubeTiles, p: Product, matrix: int, i: int, j: int) -> Piece:
    row, column = i * t.base_m, j * t.base_n
    return Piece(matrix, row, column, min(t.base_m, p.m - row), min(t.base_n, p.n - column))


def _rectangle(t: CubeTiles, p: Product, core: int) -> Iterator[Piece]:
    group, position = divmod(core, t.cores_m * t.cores_n)
    x, y = position % t.cores_m, position // t.cores_m
    blocks_m, blocks_n = ceil_div(p.m, t.base_m), ceil_div(p.n, t.base_n)
    rows, columns = ceil_div(blocks_m, t.cores_m), ceil_div(blocks_n, t.cores_n)
    share = ceil_div(p.matrices, t.cores_batch)
    for matrix in range(group * share, min((group + 1) * share, p.matrices)):
        for i in range(x * rows, min((x + 1) * rows, blocks_m)):
            for j in range(y * columns, min((y + 1) * columns, blocks_n)):
                yield _piece(t, p, matrix, i, j)


def _l2_tiles(t: CubeTiles, p: Product) -> Iterator[list[tuple[int, int]]]:
    """The blocks of each L2 tile in order; columns of tiles are traversed back and forth."""
    blocks_m, blocks_n = ceil_div(p.m, t.base_m), ceil_div(p.n, t.base_n)
    starts = range(0, blocks_n, t.l2_n)
    for band, top in enumerate(range(0, blocks_m, t.l2_m)):
        for left in starts if band % 2 == 0 else reversed(starts):
            rows, columns = min(t.l2_m, blocks_m - top), min(t.l2_n, blocks_n - left)
            yield [(top + i, left + j) for i, j in _walk(t.order, rows, columns)]


def _walk(order: Order, rows: int, columns: int) -> Iterator[tuple[int, int]]:
    for step in range(rows * columns):
        match order:
            case "row":
                yield divmod(step, columns)
            case "column":
                yield step % rows, step // rows
            case "diagonal":
                yield step % rows, (step + step // lcm(rows, columns)) % columns


@dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces of all cores as columns, `(pieces,)` each, core after core."""

    core: Integers
    matrix: Integers
    row: Integers
    column: Integers
    rows: Integers
    columns: Integers
    inside: Integers
    """Rows of its block that lie above it, where a block has more than one piece."""

    @staticmethod
    def of(t: CubeTiles, p: Product) -> Pieces:
        """The pieces that :func:`work` assigns."""
        return Pieces.dealt(work(t, p))

    @staticmethod
    def dealt(shares: Sequence[Sequence[Piece]]) -> Pieces:
        """The pieces of each core, in order."""
        core = np.repeat(np.arange(len(shares)), [len(share) for share in shares])
        found = np.array([piece for share in shares for piece in share], np.int64).reshape(-1, 5)
        matrix, row, column, rows, columns = found.T
        return Pieces(core, matrix, row, column, rows, columns, np.zeros_like(core))

    @property
    def index(self) -> Integers:
        """The index of each piece among those of its core."""
        numbers: Integers = np.arange(self.core.size) - np.searchsorted(self.core, self.core)
        return numbers

    def halved(self, upper: Integers) -> Pieces:
        """Split each piece for the two vector cores of a cube core: *upper* rows, and the rest.

        Cores are numbered two per group; a half may be empty.
        """
        both = replace(self, inside=upper).repeated(2)
        upper, is_second = both.inside, both.core % 2 == 1
        inside = np.where(is_second, upper, 0)
        rows = np.where(is_second, both.rows - upper, upper)
        return replace(both, row=both.row + inside, rows=rows, inside=inside)

    def repeated(self, times: int) -> Pieces:
        """All pieces of each core for *times* cores instead, the vector cores of its group."""
        cores = np.repeat(self.core * times, times) + np.tile(np.arange(times), self.core.size)
        order = np.argsort(cores, kind="stable")
        others = self.matrix, self.row, self.column, self.rows, self.columns, self.inside
        return Pieces(cores[order], *(np.repeat(each, times)[order] for each in others))

    def select(self, chosen: Array) -> Pieces:
        """The *chosen* pieces: a mask, or their indices."""
        return Pieces(*(getattr(self, each.name)[chosen] for each in fields(self)))

    def cut(self, most: int, unit: int) -> tuple[Pieces, Integers]:
        """Cut each piece into tiles; also return the index of the piece of each tile.

        A tile has as many whole rows, padded to whole *unit*, as fit in *most* elements; if a row
        is longer, it has *most* columns of one row.
        """
        found = [
            (number, row, column, rows, columns)
            for number, (height, width) in enumerate(zip(self.rows, self.columns, strict=True))
            for column, columns in pieces(int(width), most)
            for row, rows in pieces(int(height), most // align_up(columns, unit))
        ]
        number, row, column, rows, columns = np.array(found, np.int64).reshape(-1, 5).T
        own = self.select(number)
        tiles = replace(
            own, row=own.row + row, column=own.column + column, rows=rows, columns=columns
        )
        return tiles, number
