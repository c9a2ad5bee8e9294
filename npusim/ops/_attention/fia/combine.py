"""Pieces of rows of tiles that cores of kernel FIA share, put together by their vector cores.

.. code-block:: text

    M = max(m);  c = l * exp(m - M);  w = c / ((c0 + c1) + ...);  out = (w0 * o0 + w1 * o1) + ...

of the output o, the maximum m and the sum l of each piece (ops-transformer@3a280bc
attention/common/op_kernel/arch22, fia_block_vec_flashdecode.h).
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.isa import Binary, Duplicate, Local, Unary
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.views import GmView, load
from npusim.kernel.wide_plane import WidePlane, by_rows
from npusim.ops._attention.fia.buffers import Buffers
from npusim.ops._attention.fia.finish import Finish, Written
from npusim.ops._attention.fia.places import Memory, joined
from npusim.ops._attention.fia.schedule import Part

__all__ = ["Combiner"]

BLOCK = 8
"""float32 in a data block."""
LOWEST = -3.4028234663852886e38
"""Where the maximum of pieces begins: -FLT_MAX."""


class Combiner:
    """Writes the last stage of a vector core."""

    def __init__(self, builder: Builder, memory: Memory, buffers: Buffers, finish: Finish) -> None:
        self._builder, self._memory = builder, memory
        self._buffers, self._finish = buffers, finish

    def combine(self, parts: tuple[Part, ...]) -> None:
        """Put the pieces of *parts* together."""
        names = ("piece_out", "piece_max", "piece_sum")
        for part in parts:
            views = [self._memory.of_piece(name, part.first, part.row, part.rows) for name in names]
            written = self._finish.written(part.row_tile, part.row, part.rows)
            self._finish.with_places(self._combine, [written], part.pieces, *views)

    def _combine(
        self,
        count: int,
        outs: GmView,
        maxima: GmView,
        sums: GmView,
        _: GmView,
        __: GmView | None,
        written: Written,
    ) -> None:
        """*count* pieces of up to 8 rows: see the module."""
        builder, buffers, rows = self._builder, self._buffers, outs.rows
        size = rows * BLOCK
        # (pieces, rows, 8) of maxima and of sums
        of_max = load(builder, buffers.mask_in, self._every(maxima, count))
        of_sum = load(builder, buffers.second_in, self._every(sums, count))
        m, c = of_max.of(FLOAT32, count * size), of_sum.of(FLOAT32, count * size)
        largest = buffers.blocks.of(FLOAT32, size)
        step(builder, Duplicate(largest, LOWEST))
        for index in range(count):
            step(builder, Binary("max", largest, largest, m.at(index * size, size)))
        for index in range(count):
            own = m.at(index * size, size)
            builder.emit(Binary("sub", own, own, largest))
        builder.barrier("vector")
        step(builder, Unary("exp", m, m))
        step(builder, Binary("mul", c, c, m))
        total = buffers.lanes.of(FLOAT32, size)
        step(builder, Duplicate(total, 0.0))
        for index in range(count):
            step(builder, Binary("add", total, total, c.at(index * size, size)))
        for index in range(count):
            own = c.at(index * size, size)
            builder.emit(Binary("div", own, own, total))
        builder.barrier("vector")
        plane = self._weighted(count, outs, c)
        self._finish.finish(plane, written, largest, total, is_kept=False)
        buffers.mask_in.free(of_max)
        buffers.second_in.free(of_sum)
        buffers.wide_in.free(plane.slot)

    def _weighted(self, count: int, outs: GmView, weights: Local) -> WidePlane:
        """(rows, width): the sum of weight x output of all pieces, in order."""
        builder, buffers, width = self._builder, self._buffers, self._memory.width
        found: WidePlane | None = None
        size = outs.rows * BLOCK
        for index in range(count):
            nbytes = index * self._memory.max_rows * outs.row_bytes
            here = outs.shifted_to(outs.offset_bytes + nbytes)
            slot = load(builder, buffers.wide_in, joined(here))
            plane = WidePlane(slot, outs.rows, width, width)
            by_rows(builder, "mul", plane, weights.at(index * size, size))
            if found is None:
                found = plane
                continue
            step(builder, Binary("add", found.whole, found.whole, plane.whole))
            buffers.wide_in.free(slot)
        assert found is not None
        return found

    def _every(self, view: GmView, count: int) -> GmView:
        """The same rows of *count* pieces."""
        pitch = self._memory.max_rows * view.columns
        columns = view.rows * view.columns
        return GmView(view.name, FLOAT32, count, columns, pitch, view.offset_bytes)
