"""A cube core multiplies x by the blocks of the weight that its two vector cores dequantise.

A *strip* is some rows of x times the columns of one block, over the core's share of k: one block
after the other is loaded into L1, split for L0, and multiplied by every row tile of the strip, so
that each tile of L0C gets its steps of k in ascending order (ops-nn@e5c3fa9 matmul/
weight_quant_batch_matmul_v2/op_kernel, *_custom_nz_splitk.h, *_custom_mix_splitk.h).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from npusim.data.dtypes import FLOAT32, DType
from npusim.isa import Local
from npusim.kernel.cube_core import CubeCore, L0Pair, MmadInit
from npusim.kernel.matrices import GmMatrix, GmTile, L1Matrix, l0c_elements
from npusim.kernel.program import Binding
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView
from npusim.ops._dequantised_weight import MatrixTile

FILLED, READ = 0, 1
"""Flags between a cube core and its vector cores: a block is in the ring; it was read."""


@dataclass(frozen=True, slots=True)
class StripTiles:
    """Sizes of the tiles of a cube core."""

    rows: int
    """The most rows of x in a strip."""
    m: int
    n: int
    k: int
    """L0A holds m x k, L0B k x n, L0C m x n."""
    load_n: int
    load_k: int
    """n and k of a copy of the weight into L1."""
    is_resident: bool
    """Whether x stays in L1 for all of the core's k; its rows then form one strip."""
    l0c_depth: int
    """At least the tiles of a strip whose k is loaded in several copies."""


class WeightBlock(NamedTuple):
    """Columns [n, n + columns) of rows [k, k + depth) of the weight `(k, n)`."""

    n: int
    columns: int
    k: int
    depth: int


@dataclass(frozen=True, slots=True)
class Ring:
    """Slots of one block each, for one cube core."""

    slots: int
    columns: int
    """Columns of the weight (n) in a block."""
    depth: int
    """Rows of the weight (k), in a block."""
    dtype: DType
    layout: Literal["ND", "FRACTAL_NZ"]
    """`(k, n)` as ND, or `(n, k)` as FRACTAL_NZ."""

    @property
    def slot_bytes(self) -> int:
        return self.dtype.nbytes(self.columns * self.depth)

    def gm_matrix(self, name: str) -> GmMatrix:
        """A block as an operand of the cube."""
        is_nd = self.layout == "ND"
        rows, columns = (self.depth, self.columns) if is_nd else (self.columns, self.depth)
        return GmMatrix(name, self.dtype, rows, columns, is_nd, self.layout)

    def bindings(self, group: int) -> dict[str, Binding]:
        """Bindings for the ring of cube core *group*, and for each of its slots."""
        # Groups are adjacent in the workspace, each with all its slots.
        first = group * self.slots * self.slot_bytes
        slots = {
            f"ring{slot}": Binding("ring", first + slot * self.slot_bytes)
            for slot in range(self.slots)
        }
        return {"ring": Binding("ring", first), **slots}


class StripWriter:
    """Writes strips for one cube core."""

    def __init__(
        self, core: CubeCore, tiles: StripTiles, x: GmMatrix, ring: Ring, max_k: int
    ) -> None:
        """*max_k* is the largest share of a core. Raises ProgramError if buffers do not fit."""
        self.core, self.tiles, self.ring, self.x = core, tiles, ring, x
        self.weights = [ring.gm_matrix(f"ring{slot}") for slot in range(ring.slots)]
        # L1: x (rows, max_k) or two pieces (m, load_k); two pieces (load_n, load_k) of the weight
        if tiles.is_resident:
            self.resident = core.l1_tile(x, tiles.rows, max_k)
        else:
            self.left = core.l1_queue(x, tiles.m, tiles.load_k)
        self.right = core.l1_queue(self.weights[0], tiles.load_n, tiles.load_k)
        self.l0 = L0Pair(core, x.dtype, tiles.m, tiles.n, tiles.k)
        self.l0c = core.l0c_queue(FLOAT32, tiles.m, tiles.n, tiles.l0c_depth)

    def fetch(self, x: GmTile) -> None:
        """Load the x that stays in L1."""
        self.core.load_matrix(self.resident, self.x, x.extent, x.k)
        self.core.sync("mte2", "mte1")

    def write(self, x: GmTile, out: GmView, first_k: int, k: int, slot: int) -> None:
        """`out = x @ weight` over *k*, added to the stored values if *out* is fp32.

        *x* is all that L1 holds if x stays there; the strip's k starts at its *first_k*. The first
        block of the weight is in *slot* of the ring.
        """
        sums: dict[MatrixTile, Local] = {}
        # sums: the L0C of each tile (m, n), open from its first k to its last
        for index, (block_k, depth) in enumerate(pieces(k, self.ring.depth)):
            matrix = self.weights[(slot + index) % self.ring.slots]
            self.core.cross_core_wait_flag("group", "mte2", FILLED)
            # (depth, columns) of a block -> pieces (load_k, load_n) for L1
            parts = [
                WeightBlock(n, columns, inner_k, count)
                for inner_k, count in pieces(depth, self.tiles.load_k)
                for n, columns in pieces(out.columns, self.tiles.load_n)
            ]
            for part in parts:
                weight = self._load_weight(matrix, part, is_last=part is parts[-1])
                here = part._replace(k=block_k + part.k)
                self._multiply_rows(x, first_k, weight, here, out, sums, k)
                self.right.free(weight.tile)

    def _multiply_rows(
        self,
        x: GmTile,
        first_k: int,
        weight: L1Matrix,
        part: WeightBlock,
        out: GmView,
        sums: dict[MatrixTile, Local],
        k: int,
    ) -> None:
        """Multiply every row tile of the strip by *part* of its weight, which is in L1."""
        for row, rows in pieces(out.rows, self.tiles.m):
            left = self._load_x(x, row, rows, first_k + part.k, part.depth)
            for n, columns in pieces(part.columns, self.tiles.n):
                tile = MatrixTile(row, part.n + n, rows, columns)
                # The first piece of k starts the tile's sums, the last one stores them.
                if part.k == 0:
                    sums[tile] = self.l0c.alloc()[: l0c_elements(rows, columns)]
                # (rows, depth) @ (depth, columns) += (rows, columns)
                for start, depth in pieces(part.depth, self.tiles.k):
                    init: MmadInit = "zero" if part.k + start == 0 else "accumulate"
                    a, b = left.at(k=start), weight.at(k=start, origin=n)
                    self.l0.multiply(sums[tile], a, b, (rows, columns, depth), init)
                if part.k + part.depth == k:
                    self._drain(sums[tile], tile, out)
            if not self.tiles.is_resident:
                self.left.free(left.tile)

    def _load_weight(self, matrix: GmMatrix, part: WeightBlock, is_last: bool) -> L1Matrix:
        """Load *part* of a block into L1; after the last part the ring's slot may be refilled."""
        tile = self.right.alloc()
        # (depth, columns) of the ring -> Nz in L1
        piece = self.core.load_matrix(tile, matrix, part.columns, part.depth, part.k, part.n)
        if is_last:
            self.core.cross_core_set_flag("group", "mte2", READ)
        self.right.enque(tile)
        self.right.deque()
        return piece

    def _load_x(self, x: GmTile, row: int, rows: int, k: int, count: int) -> L1Matrix:
        """*rows* of x and *count* of their k in L1, `(rows, count)`."""
        # x (rows, k of this core) is in L1: the part starts at row and k.
        if self.tiles.is_resident:
            return L1Matrix(self.resident, x.extent, x.k, origin=row, k=k)
        tile = self.left.alloc()
        piece = self.core.load_matrix(tile, self.x, rows, count, k, row)
        self.left.enque(tile)
        self.left.deque()
        return piece

    def _drain(self, sums: Local, tile: MatrixTile, out: GmView) -> None:
        """Store `(n / 16, m, 16)` fp32 in L0C to (m, n) of *out*."""
        self.l0c.enque(sums)
        self.l0c.deque()
        row, column, rows, columns = tile
        # fp32 sums of several cores are added in global memory; a single core stores its output.
        here = out[row : row + rows, column : column + columns]
        self.core.fixpipe(here, sums, atomic=out.dtype is FLOAT32)
        self.l0c.free(sums)
