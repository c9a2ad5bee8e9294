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
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.isa import Fixpipe, Local, QuantMode
from npusim.kernel.blocks import gm_matrix_a, gm_matrix_b
from npusim.kernel.builder import Builder
from npusim.kernel.cube import GmFeed, GmTile, L0Pair, L1Operand, MmadInit, Tables, l1_bytes
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, repeat
from npusim.ops.matmul.contract import Problem

__all__ = ["StripTiles", "StripWriter"]


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

    def __init__(self, builder: Builder, p: Problem, tiles: StripTiles, max_k: int) -> None:
        """*max_k* is the longest product. Raises ProgramError where buffers do not fit."""
        self._builder, self._tiles = builder, tiles
        a, b = GmFeed(builder, gm_matrix_a(p.product)), GmFeed(builder, gm_matrix_b(p.product))
        self._holder, self._passer = (a, b) if tiles.held == "a" else (b, a)
        dtype, chunk_k = a.dtype, min(tiles.chunk_k, max_k)
        # L1: (strip, chunk) of one operand; twice (base, piece) of the other
        nbytes = l1_bytes(dtype, tiles.strip, chunk_k, self._holder.k_is_first)
        self._held = builder.claim("l1", nbytes)
        nbytes = l1_bytes(
            dtype, tiles.passing_base, min(tiles.piece_k, chunk_k), self._passer.k_is_first
        )
        self._passing = builder.queue("l1", nbytes, "mte2", "mte1", 2)
        self._l0 = L0Pair(builder, dtype, tiles.m, tiles.n, tiles.k)
        nbytes = FLOAT32.nbytes(_padded(tiles.m, tiles.n))
        self._l0c = builder.queue("l0c", nbytes, "cube", "fixpipe", tiles.l0c_depth)
        self._tables = Tables(builder, tiles.n, None if p.bias is None else p.bias.element)

    def write(
        self, held: GmTile, passing: GmTile, out: GmView, bias: GmView | None, is_added: bool
    ) -> None:
        """Store `x1 @ x2 + bias` of one chunk to *out* `(rows, columns)`, or add it there.

        *held* is the strip's part of the chunk, *passing* that of all it is multiplied by; *bias*
        has the columns of *out*.
        """
        repeat(self._builder, self._fetch, held)
        shift = self._passer.gm_matrix.shift
        for origin, extent in pieces(passing.extent, self._tiles.passing_base):
            # A tile begins *origin* rows or columns behind the first that passes.
            tile = replace(
                passing, offset_bytes=passing.offset_bytes + shift(origin), extent=extent
            )
            part = slice(origin, origin + extent)
            if self._tiles.held == "a":
                here, columns = out[:, part], None if bias is None else bias[:, part]
            else:
                here, columns = out[part, :], bias
            repeat(self._builder, self._multiply, held.extent, tile, here, columns, is_added)

    def _fetch(self, held: GmTile) -> None:
        """Load a strip in the place of the one before."""
        self._builder.sync("mte1", "mte2")
        self._holder.load(self._held, 0, held.k, held.extent)
        self._builder.sync("mte2", "mte1")

    def _multiply(
        self, extent: int, tile: GmTile, out: GmView, bias: GmView | None, is_added: bool
    ) -> None:
        """Multiply the *extent* rows (or columns) of the strip by *tile*, for *out*."""
        blocks = tuple(self._blocks(extent, out, bias))
        sums: dict[int, Slot] = {}
        # sums: the L0C slot of each base tile, from its first piece of k to its last
        for k, count in pieces(tile.k, self._tiles.piece_k):
            slot = self._passing.alloc()
            self._passer.load(slot, k, count, tile.extent)
            self._passing.enque(slot)
            passing = L1Operand(self._passing.deque(), self._passer, tile.extent, count)
            held = L1Operand(self._held, self._holder, extent, tile.k, k=k)
            for block in blocks:
                if k == 0:
                    sums[block.origin] = self._l0c.alloc()
                self._add(block, sums[block.origin], replace(held, origin=block.origin), passing)
                if k + count == tile.k:
                    self._drain(sums[block.origin], block.out, is_added)
            self._passing.free(passing.slot)

    def _blocks(self, extent: int, out: GmView, bias: GmView | None) -> Iterator[_Block]:
        """The base tiles that a strip of *extent* makes with one tile of the other operand."""
        for origin, width in pieces(extent, self._tiles.held_base):
            part = slice(origin, origin + width)
            if self._tiles.held == "a":
                yield _Block(origin, out[part, :], bias)
            else:
                yield _Block(origin, out[:, part], None if bias is None else bias[:, part])

    def _add(self, block: _Block, sums: Slot, held: L1Operand, passing: L1Operand) -> None:
        """Add the product over a piece of k; the first one begins with the bias, or with zero."""
        rows, columns = block.out.rows, block.out.columns
        total = sums.of(FLOAT32, _padded(rows, columns))
        start: Local | None = None
        if held.k == 0 and block.bias is not None:
            start = self._tables.take_bias(block.bias)
        for k, depth in pieces(passing.count, self._tiles.k):
            init: MmadInit = "accumulate" if held.k + k else "bias" if start else "zero"
            pair = held.at_k(k), passing.at_k(k)
            a, b = pair if self._tiles.held == "a" else pair[::-1]
            # (rows, depth) @ (depth, columns) -> (rows, columns)
            shape = rows, columns, depth
            self._l0.multiply(total, a, b, shape, init, start if init == "bias" else None)
        self._tables.drop_bias()

    def _drain(self, sums: Slot, out: GmView, is_added: bool) -> None:
        """`(columns / 16, rows, 16)` fp32 in L0C to *out* `(rows, columns)`."""
        self._l0c.enque(sums)
        sums = self._l0c.deque()
        total = sums.of(FLOAT32, _padded(out.rows, out.columns))
        size = out.rows, out.columns, align_up(out.rows, FRACTAL_ROWS)
        mode: QuantMode = "none" if out.dtype is FLOAT32 else "cast"
        self._builder.emit(Fixpipe(out.operand, total, *size, out.dtype, mode, atomic=is_added))
        self._l0c.free(sums)


def _padded(m: int, n: int) -> int:
    """Elements of whole fractals in L0C."""
    return align_up(m, FRACTAL_ROWS) * align_up(n, FRACTAL_ROWS)
