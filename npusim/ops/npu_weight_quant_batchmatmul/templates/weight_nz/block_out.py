"""A block of the output on its way from L0C to global memory."""

from __future__ import annotations

from npusim.data.dtypes import FLOAT16
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Copy, CopyL0c, Local
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.kernel.rows import Writer, pieces
from npusim.kernel.views import GmView

__all__ = ["BlockOut"]

OUT_BYTES = 32768
"""What is copied out of L0C at a time (assumed)."""
REPEAT_BLOCKS = 8


class BlockOut:
    """L0C to fp16 rows: converted into the buffer as Nz, turned into ND, stored."""

    def __init__(self, builder: Builder, spec: DeviceSpec, m: int, n: int, under: Slot) -> None:
        """Claim room for blocks of *m* x *n* on top of *under*."""
        self._builder = builder
        self._writer = Writer(builder, spec)
        rows_padded = align_up(m, FRACTAL_ROWS)
        max_columns = align_down(OUT_BYTES // FLOAT16.nbytes(rows_padded), FRACTAL_ROWS)
        self._max_columns = min(align_up(n, FRACTAL_ROWS), max(FRACTAL_ROWS, max_columns))
        nbytes = FLOAT16.nbytes(rows_padded * self._max_columns)
        with builder.on_top_of(under):
            self._nz = builder.claim("ub", nbytes)
            self._nd = builder.queue("ub", nbytes, "vector", "mte3")

    def drain(self, src: Local, output: GmView) -> None:
        """Copy the fp32 sums *src*, `(n / 16, m, 16)` in L0C, to *output* `(m, n)`."""
        rows_padded = align_up(output.rows, FRACTAL_ROWS)
        # A piece of less than a block would be stored over its neighbour.
        for column, columns in pieces(output.columns, self._max_columns, c0(FLOAT16)):
            count = rows_padded * align_up(columns, FRACTAL_ROWS)
            nz, part = self._nz.of(FLOAT16, count), src.at(rows_padded * column, count)
            step(self._builder, CopyL0c(nz, part, "cast", None, rows_padded))
            self._store(output[:, column : column + columns])
            self._builder.barrier("vector")

    def _store(self, output: GmView) -> None:
        """Turn the Nz tile of these columns into rows, and store them.

        The vendor's kernel multiplies by one (Muls), which takes as long as a Copy but would not
        leave infinities and NaN as they are where overflow saturates.
        """
        rows, blocks_n = output.rows, ceil_div(output.columns, c0(FLOAT16))
        rows_padded, slot = align_up(rows, FRACTAL_ROWS), self._nd.alloc()
        for first in range(0, blocks_n, REPEAT_BLOCKS):
            # A row a repeat: up to 8 blocks, rows_padded apart before and contiguous afterwards.
            blocks = min(REPEAT_BLOCKS, blocks_n - first)
            count, start = rows * blocks * c0(FLOAT16), first * BLOCK_BYTES
            nd = Local("ub", slot.offset_bytes + start, FLOAT16, count, 1, blocks_n, blocks)
            start *= rows_padded
            nz = Local("ub", self._nz.offset_bytes + start, FLOAT16, count, rows_padded, 1, blocks)
            self._builder.emit(Copy(nd, nz))
        self._writer.store(self._nd, slot, output, blocks_n * BLOCK_BYTES)
