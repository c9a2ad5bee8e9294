"""AI cores of Atlas inference (310P), where the vector and the cube unit share one core.

Such a core has no ND to Nz on the way into L1 and no fixpipe: the vector pipe turns rows into Nz
for L1, and copies L0C into the unified buffer (asc-devkit, docs/zh, NPU architecture 2002;
ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel/weight_nz_performance_base.h).
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, UINT8, DType
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.devices.schema import Pipe
from npusim.isa import BLOCK_BYTES, BroadcastToL0c, Copy, CopyL0c, CopyToL1, Local, QuantMode
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.matmul import GmOperand
from npusim.kernel.matrices import GmMatrix, l1_rows
from npusim.kernel.rows import pieces
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView

__all__ = ["AiCore", "NdFeed", "NdOut", "RowTable"]

__kernel_vocabulary__ = True

STRIP_BYTES = 16384
"""What becomes Nz at a time; two strips of ND and two of Nz take a quarter of the buffer."""
TILE_BYTES = 65536
"""What is copied out of L0C at a time."""
WIDEST_BLOCKS = 31
"""Blocks in a row of a tile: eight such rows are within the 255 blocks of a repeat stride."""


class AiCore(VectorCore, CubeCore):
    """A core with the verbs of both units."""

    def copy_to_l1(
        self,
        dst: Local,
        src: Local,
        burst_bytes: int,
        bursts: int,
        src_pitch_bytes: int,
        dst_pitch_bytes: int,
    ) -> None:
        """Pieces of the unified buffer to L1, the pitches from start to start (DataCopy)."""
        self.emit(CopyToL1(dst, src, burst_bytes, bursts, src_pitch_bytes, dst_pitch_bytes))

    def copy_l0c(
        self,
        dst: Local,
        src: Local,
        rows: int,
        mode: QuantMode = "none",
        scale: Local | int | None = None,
    ) -> None:
        """*src* of L0C, Nz of *rows* rows, to the unified buffer (DataCopy, CO1 to CO2)."""
        self.step(CopyL0c(dst, src, mode, scale, rows))

    def broadcast_to_l0c(self, dst: Local, src: Local, rows: int) -> None:
        """The vector *src* `(n,)` to each of *rows* rows of L0C (BroadCastVecToMM)."""
        self.step(BroadcastToL0c(dst, src, rows))


def _block_column(tile: Local, column: int, rows: int, pitch_bytes: int) -> Local:
    """Block *column* of *rows* rows that are *pitch_bytes* apart."""
    pitch = pitch_bytes // BLOCK_BYTES
    offset = tile.offset_bytes + column * BLOCK_BYTES
    return Local(tile.buffer, offset, FLOAT16, rows * 16, pitch, 8 * pitch)


class NdFeed(GmOperand):
    """An ND operand into L1 by way of the unified buffer: mte2, vector, mte3."""

    producer: Pipe = "mte3"

    def __init__(
        self, core: AiCore, matrix: GmMatrix, strip: tuple[int, int] | None = None
    ) -> None:
        """Claim room for strips of that many rows and columns, or of up to STRIP_BYTES."""
        super().__init__(matrix)
        self._core, self._strip = core, strip
        count = STRIP_BYTES * 8 // self.dtype.bits
        if strip is not None:
            count = align_up(strip[0], FRACTAL_ROWS) * align_up(strip[1], c0(self.dtype))
        self._nd = core.vecin(self.dtype, count, depth=2)
        self._nz = core.vecout(self.dtype, count, depth=2)

    def load(self, tile: Local, k: int, count: int, extent: int) -> None:
        """Load the piece into *tile*, a strip that the unified buffer holds at a time."""
        width, whole = c0(self.dtype), self.matrix.view
        # (rows, columns) in global memory -> Nz (blocks_n, rows_padded, C0) in L1
        piece = whole[k : k + count, :extent] if self.k_is_first else whole[:extent, k : k + count]
        rows_padded = l1_rows(self.dtype, piece.rows, self.k_is_first)
        max_columns = self._strip[1] if self._strip else WIDEST_BLOCKS * width
        for column, columns in pieces(piece.columns, max_columns):
            # As many whole fractals of rows as a strip holds.
            max_rows = STRIP_BYTES // (ceil_div(columns, width) * BLOCK_BYTES)
            step = self._strip[0] if self._strip else align_down(max_rows, FRACTAL_ROWS)
            for row, rows in pieces(piece.rows, step):
                strip = piece[row : row + rows, column : column + columns]
                self._load_strip(tile, strip, column // width * rows_padded + row, rows_padded)

    def _load_strip(self, tile: Local, strip: GmView, first: int, rows_padded: int) -> None:
        """Load *strip* to block *first* of *tile*, Nz of *rows_padded* rows in L1."""
        # (rows, columns) -> (blocks_n, strip_rows, C0)
        nz = self._to_nz(strip)
        blocks_n = ceil_div(strip.columns, c0(self.dtype))
        strip_bytes = align_up(strip.rows, FRACTAL_ROWS) * BLOCK_BYTES
        pitch_bytes = rows_padded * BLOCK_BYTES
        start, extent_bytes = first * BLOCK_BYTES, (blocks_n - 1) * pitch_bytes + strip_bytes
        dst = tile.as_dtype(UINT8)[start : start + extent_bytes]
        src = nz.as_dtype(UINT8)[: strip_bytes * blocks_n]
        # One burst a column of blocks: strip_bytes each, rows_padded blocks apart in L1.
        self._core.copy_to_l1(dst, src, strip_bytes, blocks_n, strip_bytes, pitch_bytes)
        self._nz.free(nz)

    def _to_nz(self, strip: GmView) -> Local:
        """Load *strip* `(rows, columns)` into the buffer as Nz `(blocks_n, rows_padded, C0)`."""
        width = c0(self.dtype)
        blocks_n, rows_padded = ceil_div(strip.columns, width), align_up(strip.rows, FRACTAL_ROWS)
        nd = self._core.load(self._nd, strip, blocks_n * width)
        nz = self._nz.alloc()
        for block in range(blocks_n):
            # A column of blocks is a repeat stride apart before, and contiguous afterwards.
            half = nz.as_dtype(FLOAT16)
            dst = half[block * rows_padded * 16 : (block + 1) * rows_padded * 16]
            src = _block_column(nd, block, rows_padded, blocks_n * BLOCK_BYTES)
            self._core.emit(Copy(dst, src))
        self._nd.free(nd)
        self._nz.enque(nz)
        return self._nz.deque()


class NdOut:
    """L0C to rows of global memory: converted into the buffer, Nz to ND, stored."""

    def __init__(
        self, core: AiCore, m: int, n: int, dtype: DType, tile_bytes: int = TILE_BYTES
    ) -> None:
        """Claim room for tiles of up to *m* x *n* of *dtype*, float16 or int8.

        About *tile_bytes* are copied out of L0C at a time. Claims what `core.store` needs, too.
        """
        self._core, self.dtype = core, dtype
        # Multiples of 32 columns are whole blocks of float16 and of int8.
        rows_padded = align_up(m, FRACTAL_ROWS)
        max_columns = align_down(tile_bytes // dtype.nbytes(rows_padded), 32)
        self._max_columns = min(align_up(n, 32), max(32, max_columns), 32 * (WIDEST_BLOCKS // 2))
        self.nz = core.tile(dtype, rows_padded * self._max_columns)
        max_rows = align_down(STRIP_BYTES // dtype.nbytes(self._max_columns), FRACTAL_ROWS)
        self._max_rows = min(max_rows, rows_padded)
        self._rows = core.vecout(dtype, self._max_rows * self._max_columns, depth=2)
        core.claim_tails()

    def store(
        self,
        output: GmView,
        sums: Local,
        mode: QuantMode = "cast",
        scale: Local | int | None = None,
    ) -> None:
        """Copy the (m, n) tile *sums* from L0C to *output*.

        *scale* holds one parameter, or one a column of the tile.
        """
        rows_padded = align_up(output.rows, FRACTAL_ROWS)
        # A piece of less than a block would be stored over its neighbour.
        for column, columns in pieces(output.columns, self._max_columns, c0(self.dtype)):
            columns_padded = align_up(columns, FRACTAL_ROWS)
            part = sums.at(rows_padded * column, rows_padded * columns_padded)
            # A vector of parameters moves with the columns; one parameter serves all.
            of_part = scale
            if isinstance(scale, Local) and scale.count > 1:
                of_part = scale.at(column, columns_padded)
            # L0C (columns / 16, rows_padded, 16) -> UB (blocks_n, rows_padded, C0)
            dst = self.nz[: rows_padded * align_up(columns, c0(self.dtype))]
            self._core.copy_l0c(dst, part, rows_padded, mode, of_part)
            self._store(output[:, column : column + columns])
            self._core.barrier("vector")

    def _store(self, output: GmView) -> None:
        """Turn the Nz tile of these columns into rows, and store them."""
        width = c0(self.dtype)
        rows_padded = align_up(output.rows, FRACTAL_ROWS)
        blocks_n = ceil_div(output.columns, width)
        for row, rows in pieces(output.rows, self._max_rows):
            tile = self._rows.alloc()
            strip_rows = align_up(rows, FRACTAL_ROWS)
            for block in range(blocks_n):
                # (strip_rows, 32 bytes) of a column of fractals -> one block of each row
                src = self.nz.as_dtype(FLOAT16).at(
                    (block * rows_padded + row) * 16, strip_rows * 16
                )
                dst = _block_column(tile, block, strip_rows, blocks_n * BLOCK_BYTES)
                self._core.emit(Copy(dst, src))
            self._core.store(self._rows, tile, output[row : row + rows, :], blocks_n * width)


class RowTable:
    """A vector along n that sums in L0C start from: there is no bias table."""

    def __init__(self, core: AiCore, n: int, dtype: DType, sums: DType) -> None:
        """Claim room for *n* elements of *dtype*; L0C holds *sums*."""
        self._core = core
        columns_padded = align_up(n, FRACTAL_ROWS)
        self._loaded = core.vecin(dtype, columns_padded)
        self._row = None if dtype is sums else core.tile(sums, columns_padded)

    def spread(self, vector: GmView, dst: Local, rows: int) -> None:
        """Write *vector* `(n,)` into each of *rows* rows of *dst* in L0C."""
        columns_padded = align_up(vector.columns, FRACTAL_ROWS)
        loaded = self._core.load(self._loaded, vector)
        # (n,) float16, float32 or int32 -> (n,) in the type of the sums
        row = loaded[:columns_padded]
        if self._row is not None:
            row = self._row[:columns_padded]
            self._core.cast(row, loaded[:columns_padded], "none")
        # (n,) -> (n / 16, rows, 16) in L0C, the same elements in each row
        self._core.broadcast_to_l0c(dst, row, rows)
        self._loaded.free(loaded)
        self._core.sync("vector", "cube")
