"""A cube core multiplies x by the blocks of the weight that its two vector cores dequantise.

A *strip* is some rows of x times the columns of one block, over the core's share of k: one block
after the other is loaded into L1, split for L0, and multiplied by every row tile of the strip, so
that each tile of L0C gets its steps of k in ascending order (ops-nn@e5c3fa9 matmul/
weight_quant_batch_matmul_v2/op_kernel, *_custom_nz_splitk.h, *_custom_mix_splitk.h).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.isa import Fixpipe, Local
from npusim.kernel.builder import Builder
from npusim.kernel.cube import GmFeed, GmMatrix, GmTile, L0Pair, L1Operand, l1_bytes
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView
from npusim.ops.npu_weight_quant_batchmatmul.templates.shared_k.ring import (
    FILLED,
    READ,
    Ring,
    WeightBlock,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.weight import MatrixTile

__all__ = ["StripTiles", "StripWriter"]


@dataclass(frozen=True, slots=True)
class StripTiles:
    """Sizes of what a cube core works on."""

    rows: int
    """Rows of x in a strip, at most."""
    m: int
    n: int
    k: int
    """L0A gets m x k, L0B k x n, L0C m x n."""
    load_n: int
    load_k: int
    """n and k of a copy of the weight into L1."""
    is_resident: bool
    """Whether x stays in L1, all of the core's k; its rows are then one strip."""
    l0c_depth: int
    """At least the tiles of a strip whose k is loaded in several copies."""


class StripWriter:
    """Writes strips for one cube core."""

    def __init__(
        self, builder: Builder, tiles: StripTiles, x: GmMatrix, ring: Ring, max_k: int
    ) -> None:
        """*max_k* is the largest share of a core. Raises ProgramError where buffers do not fit."""
        self._builder, self._tiles, self._ring = builder, tiles, ring
        self._x = GmFeed(builder, x)
        self._weights = [
            GmFeed(builder, ring.gm_matrix(f"ring{slot}")) for slot in range(ring.slots)
        ]
        # L1: x (rows, max_k) or two pieces (m, load_k); two pieces (load_n, load_k) of the weight
        if tiles.is_resident:
            self._resident = builder.claim("l1", l1_bytes(x.dtype, tiles.rows, max_k, False))
        else:
            nbytes = l1_bytes(x.dtype, tiles.m, tiles.load_k, False)
            self._left = builder.queue("l1", nbytes, "mte2", "mte1", 2)
        nbytes = l1_bytes(x.dtype, tiles.load_n, tiles.load_k, ring.layout == "ND")
        self._right = builder.queue("l1", nbytes, "mte2", "mte1", 2)
        self._l0 = L0Pair(builder, x.dtype, tiles.m, tiles.n, tiles.k)
        nbytes = FLOAT32.nbytes(_padded(tiles.m, tiles.n))
        self._l0c = builder.queue("l0c", nbytes, "cube", "fixpipe", tiles.l0c_depth)

    def fetch(self, x: GmTile) -> None:
        """Load the x that stays in L1."""
        self._x.load(self._resident, 0, x.k, x.extent)
        self._builder.sync("mte2", "mte1")

    def write(self, x: GmTile, out: GmView, first_k: int, k: int, slot: int) -> None:
        """`out = x @ weight` over *k*, added to what is there if *out* is fp32.

        *x* is all that L1 holds if x stays there; the strip's k begins at its *first_k*. The
        first block of the weight is in *slot* of the ring.
        """
        sums: dict[MatrixTile, Slot] = {}
        # sums: the L0C slot of each tile (m, n), open from its first k to its last
        for index, (block_k, depth) in enumerate(pieces(k, self._ring.depth)):
            feed = self._weights[(slot + index) % self._ring.slots]
            self._builder.cross_core_wait_flag("group", "mte2", FILLED)
            # (depth, columns) of a block -> pieces (load_k, load_n) for L1
            parts = [
                WeightBlock(n, columns, inner_k, count)
                for inner_k, count in pieces(depth, self._tiles.load_k)
                for n, columns in pieces(out.columns, self._tiles.load_n)
            ]
            for part in parts:
                weight = self._load_weight(feed, part, is_last=part is parts[-1])
                here = part._replace(k=block_k + part.k)
                self._multiply_rows(x, first_k, weight, here, out, sums, k)
                self._right.free(weight.slot)

    def _multiply_rows(
        self,
        x: GmTile,
        first_k: int,
        weight: L1Operand,
        part: WeightBlock,
        out: GmView,
        sums: dict[MatrixTile, Slot],
        k: int,
    ) -> None:
        """Multiply every row tile of the strip by *part* of its weight, which is in L1."""
        for row, rows in pieces(out.rows, self._tiles.m):
            left = self._load_x(x, row, rows, first_k + part.k, part.depth)
            for n, columns in pieces(part.columns, self._tiles.n):
                tile = MatrixTile(row, part.n + n, rows, columns)
                # The first piece of k opens the tile's sums, the last one stores them.
                if part.k == 0:
                    sums[tile] = self._l0c.alloc()
                total = sums[tile].of(FLOAT32, _padded(rows, columns))
                # (rows, depth) @ (depth, columns) += (rows, columns)
                self._multiply(total, left, replace(weight, origin=n), tile, part)
                if part.k + part.depth == k:
                    self._drain(sums[tile], total, tile, out)
            if not self._tiles.is_resident:
                self._left.free(left.slot)

    def _load_weight(self, feed: GmFeed, part: WeightBlock, is_last: bool) -> L1Operand:
        """*part* of a block into L1; after the last one the slot of the ring may be refilled."""
        slot = self._right.alloc()
        # (depth, columns) of the ring -> Nz in L1
        feed.load(slot, part.k, part.depth, part.columns, part.n)
        if is_last:
            self._builder.cross_core_set_flag("group", "mte2", READ)
        self._right.enque(slot)
        return L1Operand(self._right.deque(), feed, part.columns, part.depth)

    def _load_x(self, x: GmTile, row: int, rows: int, k: int, count: int) -> L1Operand:
        """*rows* of x and *count* of their k in L1, `(rows, count)`."""
        # x (rows, k of this core) is in L1: the part begins at row and k.
        if self._tiles.is_resident:
            return L1Operand(self._resident, self._x, x.extent, x.k, row, k)
        slot = self._left.alloc()
        self._x.load(slot, k, count, rows, row)
        self._left.enque(slot)
        return L1Operand(self._left.deque(), self._x, rows, count)

    def _multiply(
        self, total: Local, x: L1Operand, weight: L1Operand, tile: MatrixTile, part: WeightBlock
    ) -> None:
        """Add the product over the k of *part* to *total*, or begin it with the strip's first k."""
        for k, depth in pieces(part.depth, self._tiles.k):
            init: Literal["zero", "accumulate"] = "zero" if part.k + k == 0 else "accumulate"
            shape = tile.rows, tile.columns, depth
            self._l0.multiply(total, x.at_k(k), weight.at_k(k), shape, init)

    def _drain(self, slot: Slot, total: Local, tile: MatrixTile, out: GmView) -> None:
        """`(n / 16, m, 16)` fp32 in L0C to (m, n) of *out*."""
        self._l0c.enque(slot)
        slot = self._l0c.deque()
        row, column, rows, columns = tile
        dst = out[row : row + rows, column : column + columns].operand
        # fp32 sums of several cores are added in global memory; a lone core stores its output.
        is_added = out.dtype is FLOAT32
        self._builder.emit(
            Fixpipe(
                dst,
                total,
                rows,
                columns,
                align_up(rows, FRACTAL_ROWS),
                out.dtype,
                "none" if is_added else "cast",
                atomic=is_added,
            )
        )
        self._l0c.free(slot)


def _padded(m: int, n: int) -> int:
    """Elements of whole fractals in L0C."""
    return align_up(m, FRACTAL_ROWS) * align_up(n, FRACTAL_ROWS)
