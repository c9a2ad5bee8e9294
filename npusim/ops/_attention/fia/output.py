"""The second half of a vector core's work: products of tiles to the output.

.. code-block:: text

    o' = o * e + product              o of the tile before, through global memory
    out = o / l                       after the last tile

A piece of a row of tiles that cores share stores out, m and l for whoever puts them together
(ops-transformer@3a280bc attention/common/op_kernel/arch22, fia_block_vec_nonquant.h).
"""

from __future__ import annotations

from typing import NamedTuple

from npusim.data.dtypes import FLOAT32
from npusim.isa import Binary, Copy
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, load, repeat, store
from npusim.kernel.wide_plane import WidePlane, by_rows
from npusim.ops._attention.fia.buffers import Buffers, State
from npusim.ops._attention.fia.cube import PRODUCT_READY
from npusim.ops._attention.fia.finish import Finish, Written
from npusim.ops._attention.fia.places import Memory, joined
from npusim.ops._attention.fia.schedule import Tile
from npusim.ops._attention.fia.softmax import rows_of_half

__all__ = ["Form", "Output"]


class Form(NamedTuple):
    """What tells tiles of as many rows apart."""

    is_first: bool
    """Of its piece; *is_last* likewise."""
    is_last: bool
    parity: int
    """Which of two has its state."""
    sums: int
    """Where its sums lie in the workspace, in bytes; *before* where those of the tile before do."""
    before: int
    digit_bytes: int
    """From the product of a digit to that of the next, where there are several."""


class Output:
    """Writes the second half of tiles for a vector core."""

    def __init__(
        self, builder: Builder, memory: Memory, buffers: Buffers, state: State, finish: Finish
    ) -> None:
        self._builder, self._memory = builder, memory
        self._buffers, self._state, self._finish = buffers, state, finish

    def call(self, tile: Tile, index: int, half: int) -> None:
        """Write the call for tile number *index* of a core, its rows of *half*."""
        memory, piece, width = self._memory, tile.piece, self._memory.width
        row_tile = piece.row_tile
        first, rows = rows_of_half(row_tile.rows, half)
        here = slice(first, first + rows)
        product = memory.slot("product", index, row_tile.rows, width)[here, :]
        # Each vector core has its own rows of these, however many a tile has: nothing else keeps
        # one from the next row of tiles while the other one still reads.
        own, _ = rows_of_half(memory.max_rows, half)
        every = [memory.slot("sums", number, own + rows, width) for number in (index, index - 1)]
        sums, before = (view[own:, :] for view in every)
        # Where sums lie is told as a number, so that the call does not move them on: mte3 stores
        # what mte2 loads, and where all calls find such bytes in one place, order is found once.
        places = sums.offset_bytes, before.offset_bytes
        digit_bytes = self.digit_bytes(row_tile.rows)
        form = Form(tile.is_first, tile.is_last, index % 2, *places, digit_bytes)
        scale = self.scale(tile)
        if not tile.is_last:
            repeat(self._builder, self._tile, form, product, scale)
        elif piece.number is not None:
            names = ("piece_out", "piece_max", "piece_sum")
            views = [memory.of_piece(name, piece.number, first, rows) for name in names]
            repeat(self._builder, self._tile, form, product, scale, *views)
        else:
            written = [
                self._finish.written(row_tile, first + row, count)
                for row, count in pieces(rows, self._finish.loop_rows)
            ]
            self._finish.with_places(self._tile, written, form, product, scale)

    # ---- what a product is made of ----

    def digit_bytes(self, _: int) -> int:
        """From the product of a digit of some rows to that of the next: there is one."""
        return 0

    def scale(self, _: Tile) -> GmView | None:
        """What columns of a tile are multiplied by: nothing."""
        return None

    def loaded(self, _: Form, __: int, product: GmView, ___: GmView | None) -> WidePlane:
        """Rows of *product*, from some row of the core's on."""
        slot = load(self._builder, self._buffers.wide_in, joined(product))
        return WidePlane(slot, product.rows, product.columns, product.columns)

    # ---- a tile ----

    def _tile(
        self,
        form: Form,
        product: GmView,
        scale: GmView | None,
        *places: GmView | Written | None,
    ) -> None:
        """(rows, width) of a product onto the sums before, or to *places*.

        These are views of what a piece leaves; or those of the output and of softmax_lse, and what
        is to be written there, loop by loop.
        """
        builder = self._builder
        builder.cross_core_wait_flag("group", "mte2", PRODUCT_READY)
        if not form.is_first and product.rows:
            # What the tile before has stored is loaded again.
            builder.sync("mte3", "mte2")
        written = [place for place in places if isinstance(place, Written)]
        views = [place for place in places if isinstance(place, GmView)]
        for number, (row, rows) in enumerate(pieces(product.rows, self._finish.loop_rows)):
            here = slice(row, row + rows)
            own = product[here, :]
            if written:
                out, lse = views[0], views[1] if len(views) > 1 else None
                self._call_rows(form, row, own, scale, out, lse, written[number])
            else:
                parts = [view[here, :] for view in views]
                repeat(builder, self._rows, form, row, own, scale, *parts)

    def _call_rows(
        self,
        form: Form,
        row: int,
        product: GmView,
        scale: GmView | None,
        out: GmView,
        lse: GmView | None,
        written: Written,
    ) -> None:
        """Write the call for rows that are done: *written* is counted from *out* and *lse*."""
        element = self._memory.plan.rows.a.element
        out = out.shifted_to(out.offset_bytes + element.nbytes(written.place))
        if lse is not None:
            lse = lse.shifted_to(lse.offset_bytes + FLOAT32.nbytes(written.lse_place))
        plain = written.moved(written)
        repeat(self._builder, self._rows, form, row, product, scale, out, lse, plain)

    def _rows(
        self,
        form: Form,
        row: int,
        product: GmView,
        scale: GmView | None,
        *places: GmView | Written | None,
    ) -> None:
        """Some rows of a tile, from *row* on; *places* as those of a tile."""
        builder, buffers = self._builder, self._buffers
        plane = self.loaded(form, row, product, scale)
        start = FLOAT32.nbytes(row * product.columns)
        sums = GmView.vector("sums", FLOAT32, plane.whole.count)
        if not form.is_first:
            self._add_before(plane, sums.shifted_to(form.before + start), form.parity, row)
        if not form.is_last:
            out = buffers.wide_out.alloc()
            step(builder, Copy(out.of(FLOAT32, plane.whole.count), plane.whole))
            store(builder, buffers.wide_out, out, sums.shifted_to(form.sums + start))
        else:
            total = self._state.of("total", form.parity, row, plane.rows)
            by_rows(builder, "div", plane, self._state.blocks(total))
            self._store_last(plane, form.parity, row, places)
        buffers.wide_in.free(plane.slot)

    def _add_before(self, plane: WidePlane, before: GmView, parity: int, row: int) -> None:
        """`plane = sums before x factor of the row + plane`."""
        builder, state = self._builder, self._state
        slot = load(builder, self._buffers.wide_in, before)
        old = WidePlane(slot, plane.rows, plane.columns, plane.pitch)
        by_rows(builder, "mul", old, state.blocks(state.of("faded", parity, row, plane.rows)))
        step(builder, Binary("add", plane.whole, old.whole, plane.whole))
        self._buffers.wide_in.free(slot)

    def _store_last(
        self, plane: WidePlane, parity: int, row: int, places: tuple[GmView | Written | None, ...]
    ) -> None:
        """Store rows that are done, or those of a piece."""
        builder, buffers, state = self._builder, self._buffers, self._state
        largest = state.of("largest", parity, row, plane.rows)
        total = state.of("total", parity, row, plane.rows)
        written = places[-1]
        if isinstance(written, Written):
            self._finish.finish(plane, written, largest, total, is_kept=True)
            return
        views = [view for view in places if isinstance(view, GmView)]
        out = buffers.wide_out.alloc()
        step(builder, Copy(out.of(FLOAT32, plane.whole.count), plane.whole))
        store(builder, buffers.wide_out, out, joined(views[0]))
        for kept, view in ((largest, views[1]), (total, views[2])):
            blocks = state.blocks(kept)
            small = buffers.small_out.alloc()
            step(builder, Copy(small.of(FLOAT32, blocks.count), blocks))
            store(builder, buffers.small_out, small, joined(view))
