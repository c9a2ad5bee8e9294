"""Products whose k is cut into chunks, for one cube core: the loop of the split-k kernels.

.. code-block:: text

    for strips of one operand, the held one:
        for chunks of k:
            the strip's part of the chunk to L1, once
            for tiles of the other operand, which pass:    the tile's part of the chunk to L1
                for base tiles of the strip:               sums of the chunk in L0C, to memory

The first chunk's sums are stored as fp32, those of the others are added to them in memory, by this
core alone and in its order. Only what passes is double buffered in L1 (ops-nn@e5c3fa9
matmul/mat_mul_v3, matmul_v3_base_tiling.cpp: depthA1 = stepM x stepKa, depthB1 = 2 x stepKb).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from npusim.data.dtypes import FLOAT32
from npusim.kernel import (
    BiasTable,
    CubeCore,
    GmTile,
    GmView,
    L0Pair,
    L1Matrix,
    Local,
    MmadInit,
    Piece,
    pieces,
    repeat,
)
from npusim.kernel.blocks import gm_matrix_a, gm_matrix_b
from npusim.kernel.matrices import l0c_elements
from npusim.ops.matmul.check import Problem


class _Block(NamedTuple):
    """A base tile of the output."""

    origin: int
    """Where it begins in the strip."""
    out: GmView
    bias: GmView | None
    """Of its columns, in the first chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StripTiles:
    """Sizes of what a cube core multiplies."""

    m: int
    n: int
    k: int
    """L0A gets m x k, L0B k x n, L0C m x n."""
    held: Literal["a", "b"] = "a"
    """The operand of which L1 holds a strip."""
    strip: int
    """Rows of x1, or columns of x2, in a strip."""
    chunk_k: int
    """k whose products are summed up in L0C."""
    piece_k: int
    """k of a load of the operand that passes; shorter than a chunk only if a strip is one tile."""
    l0c_depth: int = 2

    @property
    def held_base(self) -> int:
        """Rows or columns of a strip that L0 takes at a time."""
        return self.m if self.held == "a" else self.n

    @property
    def passing_base(self) -> int:
        """Columns or rows of the other operand that L0 takes at a time."""
        return self.n if self.held == "a" else self.m


class StripWriter:
    """Writes chunks of strips for one cube core."""

    def __init__(self, core: CubeCore, p: Problem, tiles: StripTiles) -> None:
        """Claim the buffers; raises ProgramError where they do not fit."""
        self._core, self._tiles = core, tiles
        self._a, self._b = gm_matrix_a(p.product), gm_matrix_b(p.product)
        pair = self._a, self._b
        self._holder, self._passer = pair if tiles.held == "a" else pair[::-1]
        chunk_k = min(tiles.chunk_k, p.product.k)
        # L1: (strip, chunk) of one operand; twice (base, piece) of the other
        self._held = core.l1_tile(self._holder, tiles.strip, chunk_k)
        piece_k = min(tiles.piece_k, chunk_k)
        self._passing = core.l1_queue(self._passer, tiles.passing_base, piece_k)
        self._l0 = L0Pair(core, self._a.dtype, tiles.m, tiles.n, tiles.k)
        self._l0c = core.l0c_queue(FLOAT32, tiles.m, tiles.n, tiles.l0c_depth)
        self._table = self._bias = None
        if p.bias_type is not None:
            self._table = BiasTable(core, tiles.n, p.bias_type)
            self._bias = GmView.vector("bias", p.bias_type, p.product.n)

    def write(self, piece: Piece, k: int, count: int, out: GmView, *, is_added: bool) -> None:
        """Store the sums of a chunk of *piece* to *out* `(rows, columns)`, or add them there.

        The chunk is *count* of k from *k* on; the first one begins with the bias.
        """
        x1 = self._a.tile(piece.row, piece.rows, k, count)
        x2 = self._b.tile(piece.column, piece.columns, k, count)
        bias = None
        if self._bias is not None and k == 0:
            bias = self._bias[:, piece.column : piece.column + piece.columns]
        held, passing = (x1, x2) if self._tiles.held == "a" else (x2, x1)
        repeat(self._core, self._fetch, held)
        for origin, extent in pieces(passing.extent, self._tiles.passing_base):
            # A tile begins *origin* rows or columns behind the first that passes.
            offset_bytes = passing.offset_bytes + self._passer.shift(origin)
            tile = replace(passing, offset_bytes=offset_bytes, extent=extent)
            part = slice(origin, origin + extent)
            if self._tiles.held == "a":
                here, columns = out[:, part], None if bias is None else bias[:, part]
            else:
                here, columns = out[part, :], bias
            repeat(self._core, self._multiply, held.extent, tile, here, columns, is_added)

    def _fetch(self, held: GmTile) -> None:
        """Load a strip in the place of the one before."""
        self._core.sync("mte1", "mte2")
        self._core.load_matrix(self._held, self._holder, held.extent, held.k)
        self._core.sync("mte2", "mte1")

    def _multiply(
        self, extent: int, tile: GmTile, out: GmView, bias: GmView | None, is_added: bool
    ) -> None:
        """Multiply the *extent* rows (or columns) of the strip by *tile*, for *out*."""
        blocks = tuple(self._blocks(extent, out, bias))
        held = L1Matrix(self._held, extent, tile.k, self._holder.k_is_first)
        sums: dict[int, Local] = {}
        # sums: those of each base tile in L0C, from its first piece of k to its last
        for k, count in pieces(tile.k, self._tiles.piece_k):
            piece = self._passing.alloc()
            passing = self._core.load_matrix(piece, self._passer, tile.extent, count, k)
            self._passing.enque(piece)
            self._passing.deque()
            for block in blocks:
                if k == 0:
                    sums[block.origin] = self._l0c.alloc()
                self._add(block, sums[block.origin], held.at(k, block.origin), passing)
                if k + count == tile.k:
                    self._store(sums[block.origin], block.out, is_added)
            self._passing.free(piece)

    def _blocks(self, extent: int, out: GmView, bias: GmView | None) -> Iterator[_Block]:
        """The base tiles that a strip of *extent* makes with one tile of the other operand."""
        for origin, width in pieces(extent, self._tiles.held_base):
            part = slice(origin, origin + width)
            if self._tiles.held == "a":
                yield _Block(origin, out[part, :], bias)
            else:
                yield _Block(origin, out[:, part], None if bias is None else bias[:, part])

    def _add(self, block: _Block, sums: Local, held: L1Matrix, passing: L1Matrix) -> None:
        """Add the product over a piece of k; the first one begins with the bias, or with zero."""
        rows, columns = block.out.rows, block.out.columns
        total = sums[: l0c_elements(rows, columns)]
        start: Local | None = None
        if held.k == 0 and block.bias is not None and self._table is not None:
            start = self._table.take(block.bias)
        for k, depth in pieces(passing.count, self._tiles.k):
            init: MmadInit = "accumulate" if held.k + k else "bias" if start else "zero"
            pair = held.at(k), passing.at(k)
            a, b = pair if self._tiles.held == "a" else pair[::-1]
            # (rows, depth) @ (depth, columns) -> (rows, columns)
            shape = rows, columns, depth
            self._l0.multiply(total, a, b, shape, init, start if init == "bias" else None)
        if start is not None and self._table is not None:
            self._table.drop(start)

    def _store(self, sums: Local, out: GmView, is_added: bool) -> None:
        """`(columns / 16, rows, 16)` fp32 in L0C to *out* `(rows, columns)`."""
        self._l0c.enque(sums)
        sums = self._l0c.deque()
        self._core.fixpipe(out, sums, atomic=is_added)
        self._l0c.free(sums)


def part_of(whole: GmView, piece: Piece) -> GmView:
    """The rows and columns of *piece* in *whole*, which has those of all pieces."""
    rows = slice(piece.row, piece.row + piece.rows)
    return whole[rows, piece.column : piece.column + piece.columns]


def output_of(p: Problem) -> GmView:
    """All of the output."""
    return GmView.of("output", p.output.element, p.product.m, p.product.n)
