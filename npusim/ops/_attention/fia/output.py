"""The second half of a vector core's work: products of tiles to the output.

.. code-block:: text

    o' = o * e + product              o of the tile before, through global memory
    out = o / l                       after the last tile: fp16 ties away from zero, bf16 to even

A piece of a row of tiles that cores share stores out, m and l for whoever puts them together:

.. code-block:: text

    M = max(m);  c = l * exp(m - M);  w = c / ((c0 + c1) + ...);  out = (w0 * o0 + w1 * o1) + ...

(ops-transformer@3a280bc attention/common/op_kernel/arch22, fia_block_vec_nonquant.h and
fia_block_vec_flashdecode.h.) How rows are found that see nothing, and how outputs are stored whose
rows do not follow each other, is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8, RoundMode
from npusim.data.integers import align_down, align_up
from npusim.isa import (
    BLOCK_BYTES,
    Binary,
    Cast,
    CompareScalar,
    Copy,
    Duplicate,
    Global,
    Local,
    Select,
    Store,
    Unary,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, load, repeat, store
from npusim.ops._attention.description import Side
from npusim.ops._attention.fia.buffers import Buffers, State
from npusim.ops._attention.fia.cube import PRODUCT_READY
from npusim.ops._attention.fia.places import Memory, PlacedRun
from npusim.ops._attention.fia.planes import LANES, WidePlane, by_rows
from npusim.ops._attention.fia.schedule import Part, RowTile, Tile
from npusim.ops._attention.fia.softmax import HIDDEN, rows_of_half

__all__ = ["Output"]

NUMBERS = 8192
"""Of products at a time."""
LOOP_ROWS, MOST_ROWS = 8, 256
"""Multiples of the one are taken, up to the other: a block each fills what state leaves by."""
BLOCK = 8
"""float32 in a data block."""
LOWEST = -3.4028234663852886e38
"""Where the maximum of pieces begins: -FLT_MAX."""


class _Form(NamedTuple):
    """What tells tiles of as many rows apart."""

    is_first: bool
    """Of its piece; *is_last* likewise."""
    is_last: bool
    parity: int
    """Which of two has its state."""
    sums: int
    """Where its sums lie in the workspace, in bytes; *before* where those of the tile before do."""
    before: int


class Written(NamedTuple):
    """Rows on their way to the output."""

    runs: tuple[PlacedRun, ...]
    """Where they go, counted from *place* elements of the output."""
    place: int
    lse_runs: tuple[PlacedRun, ...]
    lse_place: int
    blind: tuple[tuple[int, int], ...]
    """First row and rows of those that see no key, whatever was computed for them."""

    def moved(self, other: Written) -> Written:
        """The same, counted from where *other* begins."""
        places = self.place - other.place, self.lse_place - other.lse_place
        return self._replace(place=places[0], lse_place=places[1])


class Output:
    """Writes the second half of tiles for a vector core, and what comes after all tiles."""

    def __init__(self, builder: Builder, memory: Memory, buffers: Buffers, state: State) -> None:
        self._builder, self._memory = builder, memory
        self._buffers, self._state = buffers, state
        self._a = memory.plan.rows.a
        self._rounding: RoundMode = "round" if self._a.element is FLOAT16 else "rint"
        self._hides = bool(self._a.inner_precise & 2) and memory.plan.rows.mask is not None

    # ---- what the caller wants written ----

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
        form = _Form(tile.is_first, tile.is_last, index % 2, sums.offset_bytes, before.offset_bytes)
        if not tile.is_last:
            repeat(self._builder, self._tile, form, product)
        elif piece.number is not None:
            names = ("piece_out", "piece_max", "piece_sum")
            views = [memory.of_piece(name, piece.number, first, rows) for name in names]
            repeat(self._builder, self._tile, form, product, *views)
        else:
            written = [
                self._written(row_tile, first + row, count)
                for row, count in pieces(rows, self._loop_rows)
            ]
            self._with_places(self._tile, written, form, product)

    def _with_places(
        self, stage: Callable[..., None], written: list[Written], *arguments: Hashable
    ) -> None:
        """Call `stage(*arguments, output, softmax_lse, *written)`, both from the first row on."""
        out: GmView | None = None
        lse: GmView | None = None
        if written:
            out = GmView.vector("output", self._a.element, 1)
            out = out.shifted_to(self._a.element.nbytes(written[0].place))
            if self._a.returns_lse:
                lse = GmView.vector("softmax_lse", FLOAT32, 1)
                lse = lse.shifted_to(FLOAT32.nbytes(written[0].lse_place))
        own = [each.moved(written[0]) for each in written]
        repeat(self._builder, stage, *arguments, out, lse, *own)

    @property
    def _loop_rows(self) -> int:
        return min(align_down(NUMBERS // self._memory.width, LOOP_ROWS), MOST_ROWS)

    def _written(self, row_tile: RowTile, row: int, rows: int) -> Written:
        """Rows [row, row + rows) of *row_tile*."""
        memory = self._memory
        place, runs = memory.placed(memory.output, row_tile, row, rows)
        lse_place = 0
        lse_runs: tuple[PlacedRun, ...] = ()
        if self._a.returns_lse:
            lse_place, lse_runs = memory.placed(memory.lse, row_tile, row, rows)
        return Written(runs, place, lse_runs, lse_place, tuple(self._blind(row_tile, row, rows)))

    def _blind(self, row_tile: RowTile, row: int, rows: int) -> Iterator[tuple[int, int]]:
        """Rows of tokens that see no key, counted from *row*."""
        every = self._memory.plan.rows
        low, high = every.blind(row_tile.request)
        for run in every.runs(row_tile.request, row_tile.row + row, rows):
            before = min(run.tokens, max(0, low - run.token))
            behind = min(run.tokens - before, max(0, run.token + run.tokens - high))
            if before:
                yield run.row, before * run.heads
            if behind:
                yield run.row + (run.tokens - behind) * run.heads, behind * run.heads

    # ---- a tile ----

    def _tile(
        self,
        form: _Form,
        product: GmView,
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
        for number, (row, rows) in enumerate(pieces(product.rows, self._loop_rows)):
            here = slice(row, row + rows)
            own = product[here, :]
            if written:
                out, lse = views[0], views[1] if len(views) > 1 else None
                self._call_rows(form, row, own, out, lse, written[number])
            else:
                parts = [view[here, :] for view in views]
                repeat(builder, self._rows, form, row, own, *parts)

    def _call_rows(
        self,
        form: _Form,
        row: int,
        product: GmView,
        out: GmView,
        lse: GmView | None,
        written: Written,
    ) -> None:
        """Write the call for rows that are done: *written* is counted from *out* and *lse*."""
        element = self._a.element
        out = out.shifted_to(out.offset_bytes + element.nbytes(written.place))
        if lse is not None:
            lse = lse.shifted_to(lse.offset_bytes + FLOAT32.nbytes(written.lse_place))
        plain = written.moved(written)
        repeat(self._builder, self._rows, form, row, product, out, lse, plain)

    def _rows(
        self, form: _Form, row: int, product: GmView, *places: GmView | Written | None
    ) -> None:
        """Some rows of a tile, from *row* on; *places* as those of a tile."""
        builder, buffers = self._builder, self._buffers
        slot = load(builder, buffers.wide_in, _joined(product))
        plane = WidePlane(slot, product.rows, product.columns, product.columns)
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
        buffers.wide_in.free(slot)

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
            self._finish(plane, written, largest, total, is_kept=True)
            return
        views = [view for view in places if isinstance(view, GmView)]
        out = buffers.wide_out.alloc()
        step(builder, Copy(out.of(FLOAT32, plane.whole.count), plane.whole))
        store(builder, buffers.wide_out, out, _joined(views[0]))
        for kept, view in ((largest, views[1]), (total, views[2])):
            blocks = state.blocks(kept)
            small = buffers.small_out.alloc()
            step(builder, Copy(small.of(FLOAT32, blocks.count), blocks))
            store(builder, buffers.small_out, small, _joined(view))

    # ---- rows that are done ----

    def _finish(
        self, plane: WidePlane, written: Written, largest: Local, total: Local, *, is_kept: bool
    ) -> None:
        """Round and store *plane*, and the logarithms of its sums.

        *largest* and *total* are a block a row, or *is_kept* in the form of the state.
        """
        builder, buffers, state = self._builder, self._buffers, self._state
        if self._hides:
            self._empty_hidden(plane, state.blocks(largest) if is_kept else largest)
        for first, rows in written.blind:
            builder.emit(Duplicate(plane.row(first, 0, rows * plane.pitch), 0.0))
        if written.blind:
            builder.barrier("vector")
        out = buffers.wide_out.alloc()
        self._round(out, plane)
        self._store_runs(out, written.runs)
        if self._a.returns_lse:
            self._store_lse(written, largest, total, is_kept=is_kept)

    def _round(self, out: Slot, plane: WidePlane) -> None:
        numbers = out.of(self._a.element, plane.whole.count)
        step(self._builder, Cast(numbers, plane.whole, self._rounding))

    def _store_runs(self, out: Slot, runs: tuple[PlacedRun, ...]) -> None:
        """Store rows of the output, and free the slot *out*."""
        builder, memory, width = self._builder, self._memory, self._memory.width
        element = self._a.element
        self._buffers.wide_out.enque(out)
        out = self._buffers.wide_out.deque()
        for placed in runs:
            for row, view in memory.views(memory.output, placed, joins_heads=True):
                view = _joined(view)
                src = out.of(element, view.rows * view.columns, element.nbytes(row * width))
                builder.store(view.operand, src, view.row_bytes if view.rows > 1 else 0)
        self._buffers.wide_out.free(out)

    def _empty_hidden(self, plane: WidePlane, largest: Local) -> None:
        """Zeros for rows of which a mask hides all keys; *largest* is a block a row."""
        builder, buffers = self._builder, self._buffers
        count = align_up(plane.whole.count, LANES)
        spread = buffers.wide_out.alloc()
        # (rows, 8) -> (rows, width), the row's maximum everywhere
        numbers = WidePlane(spread, plane.rows, plane.columns, plane.pitch)
        builder.emit(Duplicate(spread.of(FLOAT32, count), float("-inf")))
        builder.barrier("vector")
        by_rows(builder, "max", numbers, largest)
        bits = buffers.mask_bits.of(UINT8, count // 8)
        step(builder, CompareScalar("ne", bits, spread.of(FLOAT32, count), HIDDEN))
        own = Local("ub", bits.offset_bytes, UINT8, plane.whole.count // 8)
        step(builder, Select(plane.whole, own, plane.whole, 0.0))
        buffers.wide_out.enque(spread)
        buffers.wide_out.free(buffers.wide_out.deque())

    def _store_lse(self, written: Written, largest: Local, total: Local, *, is_kept: bool) -> None:
        """ln(total) + largest, 4 bytes a row."""
        builder, buffers, state = self._builder, self._buffers, self._state
        small = buffers.small_out.alloc()
        blocks = state.blocks(total) if is_kept else total
        logs = small.of(FLOAT32, blocks.count)
        step(builder, Copy(logs, blocks))
        step(builder, Unary("ln", logs, logs))
        maxima = state.blocks(largest) if is_kept else largest
        step(builder, Binary("add", logs, logs, maxima))
        if self._hides:
            count = align_up(logs.count, LANES)
            bits = buffers.mask_bits.of(UINT8, count // 8)
            padded = Local("ub", maxima.offset_bytes, FLOAT32, count)
            step(builder, CompareScalar("ne", bits, padded, HIDDEN))
            own = Local("ub", bits.offset_bytes, UINT8, logs.count // 8)
            step(builder, Select(logs, own, logs, float("inf")))
        for first, rows in written.blind:
            builder.emit(Duplicate(logs.at(first * BLOCK, rows * BLOCK), float("inf")))
        if written.blind:
            builder.barrier("vector")
        self._store_logs(small, written.lse_runs)

    def _store_logs(self, small: Slot, runs: tuple[PlacedRun, ...]) -> None:
        """The first number of each block of *small*, which is freed."""
        builder, side = self._builder, self._memory.lse
        self._buffers.small_out.enque(small)
        small = self._buffers.small_out.deque()
        for placed in runs:
            for first, every, count, offset, pitch in _columns(placed, side):
                where = Global(side.name, 4 * offset, 4, count, 4 * pitch if count > 1 else 0)
                blocks = (count - 1) * every * BLOCK + 1
                src = small.of(FLOAT32, blocks, first * BLOCK_BYTES)
                builder.emit(Store(where, src, every * BLOCK_BYTES if count > 1 else 0))
        self._buffers.small_out.free(small)

    # ---- rows that see no key ----

    def write_empty(self, tiles: tuple[RowTile, ...]) -> None:
        """Zeros for all rows of *tiles*, and infinite logarithms."""
        for tile in tiles:
            for row, rows in pieces(tile.rows, self._loop_rows):
                self._with_places(self._empty, [self._written(tile, row, rows)], rows)

    def _empty(self, rows: int, _: GmView, __: GmView | None, written: Written) -> None:
        builder, buffers = self._builder, self._buffers
        out = buffers.wide_out.alloc()
        # Zero has the same bits in all types; bf16 has no Duplicate of its own.
        step(builder, Duplicate(out.of(FLOAT16, rows * self._memory.width), 0.0))
        self._store_runs(out, written.runs)
        if self._a.returns_lse:
            small = buffers.small_out.alloc()
            step(builder, Duplicate(small.of(FLOAT32, rows * BLOCK), float("inf")))
            self._store_logs(small, written.lse_runs)

    # ---- pieces ----

    def combine(self, parts: tuple[Part, ...]) -> None:
        """Put the pieces of *parts* together."""
        names = ("piece_out", "piece_max", "piece_sum")
        for part in parts:
            views = [self._memory.of_piece(name, part.first, part.row, part.rows) for name in names]
            written = self._written(part.row_tile, part.row, part.rows)
            self._with_places(self._combine, [written], part.pieces, *views)

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
        self._finish(plane, written, largest, total, is_kept=False)
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
            slot = load(builder, buffers.wide_in, _joined(here))
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


def _joined(view: GmView) -> GmView:
    """*view* as one row where its rows follow each other."""
    if view.rows > 1 and view.pitch != view.columns:
        return view
    return GmView(view.name, view.dtype, 1, view.rows * view.columns, 0, view.offset_bytes)


def _columns(placed: PlacedRun, side: Side) -> Iterator[tuple[int, int, int, int, int]]:
    """Copies of one number a row: first row, rows from one to the next, count, offset and pitch."""
    run = placed.run
    if run.tokens >= run.heads:
        for head in range(run.heads):
            offset = placed.offset + head * side.head_pitch
            yield run.row + head, run.heads, run.tokens, offset, side.token_pitch
    else:
        for token in range(run.tokens):
            offset = placed.offset + token * side.token_pitch
            yield run.row + token * run.heads, 1, run.heads, offset, side.head_pitch
