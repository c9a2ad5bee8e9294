"""What a coupled core (310P) does in its unified buffer around a product.

It has no ND to Nz on the way into L1 and no fixpipe: the vector pipe turns rows into Nz for L1, and
copies L0C into the buffer (asc-devkit, docs/zh, NPU architecture 2002;
ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel/weight_nz_performance_base.h).
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, UINT8, DType
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.devices.schema import DeviceSpec, Pipe
from npusim.isa import (
    BLOCK_BYTES,
    BroadcastToL0c,
    Cast,
    Copy,
    CopyL0c,
    CopyToL1,
    Local,
    QuantMode,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.cube import GmMatrix, GmOperand, l1_rows
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, load, pieces
from npusim.kernel.views import GmView

__all__ = ["NdFeed", "NdOut", "RowTable"]

__kernel_vocabulary__ = True

STRIP_BYTES = 16384
"""What becomes Nz at a time; two strips of ND and two of Nz take a quarter of the buffer."""
TILE_BYTES = 65536
"""What is copied out of L0C at a time."""
WIDEST_BLOCKS = 31
"""A vector instruction strides over up to 255 blocks a repeat, eight rows of this width."""


def _column(slot: Slot, column: int, rows: int, pitch_bytes: int) -> Local:
    """Block *column* of *rows* rows that are *pitch_bytes* apart."""
    pitch = pitch_bytes // BLOCK_BYTES
    offset = slot.offset_bytes + column * BLOCK_BYTES
    return Local(slot.buffer, offset, FLOAT16, rows * 16, pitch, 8 * pitch)


class NdFeed(GmOperand):
    """An ND operand into L1 by way of the unified buffer: mte2, vector, mte3."""

    producer: Pipe = "mte3"

    def __init__(
        self,
        builder: Builder,
        spec: DeviceSpec,
        gm_matrix: GmMatrix,
        strip: tuple[int, int] | None = None,
    ) -> None:
        """Claim room for strips of that many rows and columns, or of up to STRIP_BYTES."""
        super().__init__(builder, gm_matrix)
        self._spec, self._strip = spec, strip
        nbytes = STRIP_BYTES
        if strip is not None:
            rows, columns = align_up(strip[0], FRACTAL_ROWS), align_up(strip[1], c0(self.dtype))
            nbytes = self.dtype.nbytes(rows * columns)
        self._nd = builder.queue("ub", nbytes, "mte2", "vector", 2)
        self._nz = builder.queue("ub", nbytes, "vector", "mte3", 2)

    def load(self, slot: Slot, k: int, count: int, extent: int) -> None:
        """As :class:`~npusim.kernel.cube.Feed` says, a strip that the buffer holds at a time."""
        gm_matrix, width = self.gm_matrix, c0(self.dtype)
        matrix = gm_matrix.view
        # (rows, columns) in global memory -> Nz (blocks_n, rows_padded, C0) in L1
        piece = (
            matrix[k : k + count, :extent] if self.k_is_first else matrix[:extent, k : k + count]
        )
        rows_padded = l1_rows(self.dtype, piece.rows, self.k_is_first)
        max_columns = self._strip[1] if self._strip else WIDEST_BLOCKS * width
        for column, columns in pieces(piece.columns, max_columns):
            blocks_n = ceil_div(columns, width)
            # As many whole fractals of rows as a strip holds.
            max_rows = STRIP_BYTES // (blocks_n * BLOCK_BYTES)
            step = self._strip[0] if self._strip else align_down(max_rows, FRACTAL_ROWS)
            for row, rows in pieces(piece.rows, step):
                # (rows, columns) -> (blocks_n, strip_rows, C0)
                nz = self._to_nz(piece[row : row + rows, column : column + columns])
                strip_bytes = align_up(rows, FRACTAL_ROWS) * BLOCK_BYTES
                offset_bytes = (column // width * rows_padded + row) * BLOCK_BYTES
                pitch_bytes = rows_padded * BLOCK_BYTES
                extent_bytes = (blocks_n - 1) * pitch_bytes + strip_bytes
                dst = slot.of(UINT8, extent_bytes, offset_bytes)
                src = nz.of(UINT8, strip_bytes * blocks_n)
                # One burst a column of blocks: strip_bytes each, rows_padded blocks apart in L1.
                self._builder.emit(
                    CopyToL1(dst, src, strip_bytes, blocks_n, strip_bytes, pitch_bytes)
                )
                self._nz.free(nz)

    def _to_nz(self, strip: GmView) -> Slot:
        """Load *strip* `(rows, columns)` into the buffer as Nz `(blocks_n, rows_padded, C0)`."""
        blocks_n = ceil_div(strip.columns, c0(self.dtype))
        pitch_bytes = blocks_n * BLOCK_BYTES
        slot = load(self._builder, self._spec, self._nd, strip, pitch_bytes)
        nz = self._nz.alloc()
        rows_padded = align_up(strip.rows, FRACTAL_ROWS)
        for block in range(blocks_n):
            # A column of blocks is a repeat stride apart before, and contiguous afterwards.
            dst = nz.of(FLOAT16, rows_padded * 16, block * rows_padded * BLOCK_BYTES)
            self._builder.emit(Copy(dst, _column(slot, block, rows_padded, pitch_bytes)))
        self._nd.free(slot)
        self._nz.enque(nz)
        return self._nz.deque()


class NdOut:
    """L0C to rows of global memory: converted into the buffer, Nz to ND, stored."""

    def __init__(
        self,
        builder: Builder,
        spec: DeviceSpec,
        m: int,
        n: int,
        dtype: DType,
        tile_bytes: int = TILE_BYTES,
    ) -> None:
        """Claim room for tiles of up to *m* x *n* of *dtype*, float16 or int8.

        About *tile_bytes* are copied out of L0C at a time.
        """
        self._builder, self.dtype = builder, dtype
        # Multiples of 32 columns are whole blocks of float16 and of int8.
        rows_padded = align_up(m, FRACTAL_ROWS)
        max_columns = align_down(tile_bytes // dtype.nbytes(rows_padded), 32)
        self._max_columns = min(align_up(n, 32), max(32, max_columns), 32 * (WIDEST_BLOCKS // 2))
        self.nz = builder.claim("ub", dtype.nbytes(rows_padded * self._max_columns))
        max_rows = align_down(STRIP_BYTES // dtype.nbytes(self._max_columns), FRACTAL_ROWS)
        self._max_rows = min(max_rows, rows_padded)
        nbytes = dtype.nbytes(self._max_rows * self._max_columns)
        self._rows = builder.queue("ub", nbytes, "vector", "mte3", 2)
        self._writer = Writer(builder, spec)

    def drain(
        self, src: Local, output: GmView, mode: QuantMode, scale: Local | int | None = None
    ) -> None:
        """Copy the (m, n) tile *src* from L0C to *output*.

        *scale* holds one parameter, or one a column of the tile.
        """
        rows_padded = align_up(output.rows, FRACTAL_ROWS)
        # A piece of less than a block would be stored over its neighbour.
        for column, columns in pieces(output.columns, self._max_columns, c0(self.dtype)):
            columns_padded = align_up(columns, FRACTAL_ROWS)
            start = src.offset_bytes + src.dtype.nbytes(rows_padded * column)
            part = Local(src.buffer, start, src.dtype, rows_padded * columns_padded)
            # A vector of parameters moves with the columns; one parameter serves all.
            of_part = scale
            if isinstance(scale, Local) and scale.count > 1:
                of_part = scale.at(column, columns_padded)
            # L0C (columns / 16, rows_padded, 16) -> UB (blocks_n, rows_padded, C0)
            dst = self.nz.of(self.dtype, rows_padded * align_up(columns, c0(self.dtype)))
            step(self._builder, CopyL0c(dst, part, mode, of_part, rows_padded))
            self._store(output[:, column : column + columns])
            self._builder.barrier("vector")

    def _store(self, output: GmView) -> None:
        """Turn the Nz tile of these columns into rows, and store them."""
        rows_padded = align_up(output.rows, FRACTAL_ROWS)
        blocks_n = ceil_div(output.columns, c0(self.dtype))
        pitch_bytes = blocks_n * BLOCK_BYTES
        for row, rows in pieces(output.rows, self._max_rows):
            slot = self._rows.alloc()
            strip_rows = align_up(rows, FRACTAL_ROWS)
            for block in range(blocks_n):
                # (strip_rows, 32 bytes) of a column of fractals -> one block of each row
                start = (block * rows_padded + row) * BLOCK_BYTES
                src = self.nz.of(FLOAT16, strip_rows * 16, start)
                self._builder.emit(Copy(_column(slot, block, strip_rows, pitch_bytes), src))
            self._writer.store(self._rows, slot, output[row : row + rows, :], pitch_bytes)


class RowTable:
    """A vector along n that sums in L0C start from: there is no bias table."""

    def __init__(
        self, builder: Builder, spec: DeviceSpec, n: int, dtype: DType, total: DType
    ) -> None:
        """Claim room for *n* elements of *dtype*; L0C holds *total*."""
        self._builder, self._spec, self._dtype, self._total = builder, spec, dtype, total
        columns_padded = align_up(n, FRACTAL_ROWS)
        self._loaded = builder.queue("ub", dtype.nbytes(columns_padded), "mte2", "vector")
        self._row: Slot | None = None
        if dtype is not total:
            self._row = builder.claim("ub", total.nbytes(columns_padded))

    def spread(self, vector: GmView, dst: Local, rows: int) -> None:
        """Write *vector* `(n,)` into each of *rows* rows of *dst* in L0C."""
        columns_padded = align_up(vector.columns, FRACTAL_ROWS)
        slot = load(self._builder, self._spec, self._loaded, vector)
        # (n,) float16, float32 or int32 -> (n,) in the type of the sums
        row = slot.of(self._dtype, columns_padded)
        if self._row is not None:
            src, row = row, self._row.of(self._total, columns_padded)
            step(self._builder, Cast(row, src, "none"))
        # (n,) -> (n / 16, rows, 16) in L0C, the same numbers in each row
        self._builder.emit(BroadcastToL0c(dst, row, rows))
        self._builder.barrier("vector")
        self._loaded.free(slot)
        self._builder.sync("vector", "cube")
