"""Products with k split into chunks, on one cube core: the loop of the split-k kernels.

.. code-block:: text

    for strips of one operand, the resident one:
        for chunks of k:
            the strip's part of the chunk to L1, once
            for tiles of the other operand, which is streamed:   the tile's part of the chunk to L1
                for base tiles of the strip:                     sums of the chunk in L0C, to memory

The first chunk's sums are stored as fp32, those of the others are added to them in memory, by the
same core in order. Only the streamed operand is double buffered in L1 (ops-nn@e5c3fa9
matmul/mat_mul_v3, matmul_v3_base_tiling.cpp: depthA1 = stepM x stepKa, depthB1 = 2 x stepKb).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import FLOAT32
from npusim.kernel import (
    BiasTable,
    CubeCore,
    GmTile,
    GmView,
    GmViews,
    L0Pair,
    L1Matrix,
    Local,
    MmadInit,
    Pieces,
    Step,
    pieces,
)
from npusim.kernel.blocks import gm_matrix_a, gm_matrix_b
from npusim.kernel.matrices import l0c_elements
from npusim.kernel.steps import Integers
from npusim.ops.matmul.check import Problem

MOST_STEPS = 2**20
"""More steps than a core takes for a chunk: the distance of the orders of consecutive chunks."""


class _Block(NamedTuple):
    """A base tile of the output."""

    origin: int
    """Offset in the strip."""
    out: GmView
    bias: GmView | None
    """The bias of its columns, in the first chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StripTiles:
    """Sizes of the operands of a cube core."""

    m: int
    n: int
    k: int
    """L0A holds m x k, L0B k x n, L0C m x n."""
    held: Literal["a", "b"] = "a"
    """The operand of which L1 holds a strip."""
    strip: int
    """Rows of x1, or columns of x2, in a strip."""
    chunk_k: int
    """k that is summed in L0C."""
    piece_k: int
    """k per load of the streamed operand; less than a chunk only if a strip is one tile."""
    l0c_depth: int = 2

    @property
    def held_base(self) -> int:
        """Rows or columns of a strip in L0 at a time."""
        return self.m if self.held == "a" else self.n

    @property
    def passing_base(self) -> int:
        """Columns or rows of the other operand in L0 at a time."""
        return self.n if self.held == "a" else self.m


@dataclass(frozen=True, eq=False)
class Chunks:
    """Chunks of strips as columns, core after core, each in its order."""

    pieces: Pieces
    """The strip of each."""
    k: Integers
    count: Integers
    """Start of the chunk, and its k."""
    out: GmViews
    """Destination of the strip's sums."""
    is_added: NDArray[np.bool_]
    """Whether they are added to the contents."""

    @property
    def before(self) -> Integers:
        """Orders of steps of a core before the chunks."""
        orders: Integers = np.arange(self.k.size) * MOST_STEPS
        return orders

    @property
    def after(self) -> Integers:
        """Orders of steps of a core after the chunks."""
        return self.before + MOST_STEPS - 1


class StripWriter:
    """Writes chunks of strips for one cube core."""

    def __init__(self, core: CubeCore, p: Problem, tiles: StripTiles) -> None:
        """Claim the buffers; raises ProgramError if they do not fit."""
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

    def steps(self, chunks: Chunks) -> tuple[Step, ...]:
        """Store the sums of each of *chunks*, or add them to those of the previous chunks.

        `chunks.before` and `chunks.after` are orders for steps of a core around each of them.
        """
        piece, of_k = chunks.pieces, {"k": chunks.k, "count": chunks.count}
        x1 = self._a.tiles(piece.row, piece.rows, **of_k)
        x2 = self._b.tiles(piece.column, piece.columns, **of_k)
        holds_a = self._tiles.held == "a"
        held, passing = (x1, x2) if holds_a else (x2, x1)
        fetch = Step(self._fetch, (held,), piece.core, chunks.before + 1)
        # For each streamed tile: its chunk, and its offset among all streamed tiles.
        base = self._tiles.passing_base
        of = np.repeat(np.arange(chunks.k.size), -(-passing.extent // base))
        place = np.arange(of.size) - np.searchsorted(of, of)
        origin, extent = place * base, np.minimum(base, passing.extent[of] - place * base)
        start = (piece.column if holds_a else piece.row)[of] + origin
        tile = self._passer.tiles(start, extent, k=chunks.k[of], count=chunks.count[of])
        out = chunks.out.select(of)
        if holds_a:
            moved = out.offset_bytes + origin * out.dtype.bits // 8
            out = replace(out, columns=extent, offset_bytes=moved)
        else:
            moved = out.offset_bytes + origin * out.pitch * out.dtype.bits // 8
            out = replace(out, rows=extent, offset_bytes=moved)
        first = start if holds_a else piece.column[of]
        is_added, order = chunks.is_added[of], chunks.before[of] + 2 + place
        begins = np.full(of.size, False) if self._bias is None else chunks.k[of] == 0
        found = [fetch]
        for chosen in (begins, ~begins):
            bias = None
            if self._bias is not None and chosen is begins:
                bias = GmViews.of(self._bias, 0, first, 1, out.columns).select(chosen)
            arguments = (
                held.extent[of][chosen],
                tile.select(chosen),
                out.select(chosen),
                bias,
                is_added[chosen],
            )
            if chosen.any():
                found.append(Step(self._multiply, arguments, piece.core[of][chosen], order[chosen]))
        return tuple(found)

    def _fetch(self, held: GmTile) -> None:
        """Load a strip in place of the previous one."""
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
        """The base tiles of a strip of *extent* and one tile of the other operand."""
        for origin, width in pieces(extent, self._tiles.held_base):
            part = slice(origin, origin + width)
            if self._tiles.held == "a":
                yield _Block(origin, out[part, :], bias)
            else:
                yield _Block(origin, out[:, part], None if bias is None else bias[:, part])

    def _add(self, block: _Block, sums: Local, held: L1Matrix, passing: L1Matrix) -> None:
        """Add the product over a piece of k; the first one starts from the bias, or from zero."""
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
        """Store `(columns / 16, rows, 16)` fp32 in L0C to *out* `(rows, columns)`."""
        self._l0c.enque(sums)
        sums = self._l0c.deque()
        self._core.fixpipe(out, sums, atomic=is_added)
        self._l0c.free(sums)


def views_of(whole: GmView, pieces: Pieces) -> GmViews:
    """The rows and columns of *pieces* in *whole*, which covers all of them."""
    return GmViews.of(whole, pieces.row, pieces.column, pieces.rows, pieces.columns)


def output_of(p: Problem) -> GmView:
    """The whole output."""
    return GmView.of("output", p.output.element, p.product.m, p.product.n)
