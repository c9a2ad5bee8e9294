"""What a coupled core (310P) does in its unified buffer around a product.

It has no ND to Nz on the way into L1 and no fixpipe: rows are turned into Nz by the vector pipe and
go on to L1, and L0C comes back through the vector pipe (asc-devkit, docs/zh, NPU architecture 2002;
ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel/weight_nz_performance_base.h).
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16, UINT8, DType
from npusim.data.integers import align_up, ceil_div
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
from npusim.kernel.rows import Rows, Writer, load, pieces

__all__ = ["NdFeed", "NdOut", "RowTable"]

__kernel_vocabulary__ = True

STRIP_BYTES = 16384
"""What is turned at a time; two of them come in and two go out, a quarter of the buffer."""
TILE_BYTES = 65536
"""What comes out of L0C at a time."""
WIDEST_BLOCKS = 31
"""A vector instruction strides over up to 255 blocks a repeat, eight rows of this width."""


def _column(slot: Slot, column: int, rows: int, pitch_bytes: int) -> Local:
    """Block *column* of *rows* rows that lie *pitch_bytes* apart."""
    pitch = pitch_bytes // BLOCK_BYTES
    offset = slot.offset_bytes + column * BLOCK_BYTES
    return Local(slot.buffer, offset, FLOAT16, rows * 16, pitch, 8 * pitch)


class NdFeed(GmOperand):
    """An ND operand into L1 by way of the unified buffer: mte2, vector, mte3."""

    producer: Pipe = "mte3"

    def __init__(self, builder: Builder, spec: DeviceSpec, gm_matrix: GmMatrix) -> None:
        super().__init__(builder, gm_matrix)
        self._spec = spec
        self._come = builder.queue("ub", STRIP_BYTES, "mte2", "vector", 2)
        self._turned = builder.queue("ub", STRIP_BYTES, "vector", "mte3", 2)

    def load(self, slot: Slot, k: int, count: int, extent: int) -> None:
        gm_matrix = self.gm_matrix
        rows, columns = (count, extent) if gm_matrix.k_is_first else (extent, count)
        height = l1_rows(gm_matrix.dtype, rows, gm_matrix.k_is_first)
        widest = WIDEST_BLOCKS * c0(gm_matrix.dtype)
        for column, width in pieces(columns, widest):
            across = ceil_div(width, c0(gm_matrix.dtype))
            tall = STRIP_BYTES // (across * BLOCK_BYTES) // FRACTAL_ROWS * FRACTAL_ROWS
            for row, high in pieces(rows, tall):
                start = gm_matrix.shift_k(k) + gm_matrix.dtype.nbytes(
                    row * gm_matrix.columns + column
                )
                nz = self._turn(start, high, width)
                strip_rows = align_up(high, FRACTAL_ROWS)
                at = (column // c0(gm_matrix.dtype) * height + row) * BLOCK_BYTES
                dst = slot.of(UINT8, strip_rows * BLOCK_BYTES, at)
                src = nz.of(UINT8, strip_rows * BLOCK_BYTES * across)
                pitch = strip_rows * BLOCK_BYTES
                copy = CopyToL1(dst, src, pitch, across, pitch, height * BLOCK_BYTES)
                self._builder.emit(copy)
                self._turned.free(nz)

    def _turn(self, start: int, rows: int, columns: int) -> Slot:
        """Bring *rows* x *columns* from byte *start* on into the buffer, as Nz."""
        gm_matrix = self.gm_matrix
        across = ceil_div(columns, c0(gm_matrix.dtype))
        pitch = across * BLOCK_BYTES
        slot = self._come.alloc()
        stride = gm_matrix.dtype.nbytes(gm_matrix.columns)
        place = Rows(gm_matrix.name, start, rows, gm_matrix.dtype.nbytes(columns), stride)
        load(self._builder, self._spec, slot, place, pitch)
        self._come.enque(slot)
        slot, nz = self._come.deque(), self._turned.alloc()
        high = align_up(rows, FRACTAL_ROWS)
        for column in range(across):
            dst = nz.of(FLOAT16, high * 16, column * high * BLOCK_BYTES)
            self._builder.emit(Copy(dst, _column(slot, column, high, pitch)))
        self._come.free(slot)
        self._turned.enque(nz)
        return self._turned.deque()


class NdOut:
    """L0C to rows of global memory: converted into the buffer, turned, stored."""

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

        About *tile_bytes* come out of L0C at a time.
        """
        self._builder, self.dtype = builder, dtype
        high = align_up(m, FRACTAL_ROWS)
        most = tile_bytes // dtype.nbytes(high) // 32 * 32
        self._wide = min(align_up(n, 32), max(32, most), 32 * (WIDEST_BLOCKS // 2))
        self.nz = builder.claim("ub", dtype.nbytes(high * self._wide))
        tall = STRIP_BYTES // dtype.nbytes(self._wide) // FRACTAL_ROWS * FRACTAL_ROWS
        self._strip = min(tall, high)
        nbytes = dtype.nbytes(self._strip * self._wide)
        self._rows = builder.queue("ub", nbytes, "vector", "mte3", 2)
        self._writer = Writer(builder, spec)

    def drain(
        self,
        src: Local,
        m: int,
        n: int,
        stride_bytes: int,
        mode: QuantMode,
        scale: Local | int | None = None,
    ) -> None:
        """Bring the (m, n) tile *src* from L0C to rows of `output`, *stride_bytes* apart.

        *scale* holds one parameter, or one a column of the tile.
        """
        high = align_up(m, FRACTAL_ROWS)
        # A piece of less than a block would be stored over what lies beside it.
        for column, width in pieces(n, self._wide, c0(self.dtype)):
            size = high * align_up(width, FRACTAL_ROWS)
            start = src.offset_bytes + src.dtype.nbytes(high * column)
            part = Local(src.buffer, start, src.dtype, size)
            of_part = scale
            if isinstance(scale, Local) and scale.count > 1:
                of_part = scale.at(column, align_up(width, FRACTAL_ROWS))
            dst = self.nz.of(self.dtype, high * align_up(width, c0(self.dtype)))
            step(self._builder, CopyL0c(dst, part, mode, of_part, high))
            self._store(column, m, width, stride_bytes)
            self._builder.barrier("vector")

    def _store(self, first: int, m: int, n: int, stride_bytes: int) -> None:
        """Turn and store what the buffer holds, columns from *first* on."""
        high = align_up(m, FRACTAL_ROWS)
        across = ceil_div(n, c0(self.dtype))
        pitch = across * BLOCK_BYTES
        for row, rows in pieces(m, self._strip):
            slot = self._rows.alloc()
            tall = align_up(rows, FRACTAL_ROWS)
            for column in range(across):
                start = (column * high + row) * BLOCK_BYTES
                src = self.nz.of(FLOAT16, tall * 16, start)
                self._builder.emit(Copy(_column(slot, column, tall, pitch), src))
            self._rows.enque(slot)
            slot = self._rows.deque()
            place = row * stride_bytes + self.dtype.nbytes(first)
            lines = Rows("output", place, rows, self.dtype.nbytes(n), stride_bytes)
            self._writer.store(slot, lines, pitch)
            self._rows.free(slot)


class RowTable:
    """A vector along n that sums in L0C start from: there is no bias table."""

    def __init__(
        self, builder: Builder, spec: DeviceSpec, n: int, dtype: DType, total: DType
    ) -> None:
        """Claim room for *n* elements of *dtype*; L0C holds *total*."""
        self._builder, self._spec, self._dtype, self._total = builder, spec, dtype, total
        wide = align_up(n, FRACTAL_ROWS)
        self._come = builder.queue("ub", dtype.nbytes(wide), "mte2", "vector")
        self._row = None if dtype is total else builder.claim("ub", total.nbytes(wide))

    def spread(self, name: str, n: int, dst: Local, rows: int) -> None:
        """Write *n* elements of tensor *name* into each of *rows* rows of *dst* in L0C."""
        wide = align_up(n, FRACTAL_ROWS)
        slot = self._come.alloc()
        nbytes = self._dtype.nbytes(n)
        load(
            self._builder,
            self._spec,
            slot,
            Rows(name, 0, 1, nbytes, nbytes),
            align_up(nbytes, BLOCK_BYTES),
        )
        self._come.enque(slot)
        slot = self._come.deque()
        row = slot.of(self._dtype, wide)
        if self._row is not None:
            src, row = row, self._row.of(self._total, wide)
            step(self._builder, Cast(row, src, "none"))
        self._builder.emit(BroadcastToL0c(dst, row, rows))
        self._builder.barrier("vector")
        self._come.free(slot)
        self._builder.sync("vector", "cube")
