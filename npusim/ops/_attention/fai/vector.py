"""What a vector core does in FAI: softmax of a tile, and two tiles later its part of the output.

.. code-block:: text

    KiB    0  2 x 32  scores            64  2 x 16  probabilities, or 32 of the mask in fp32
          96      32  products         128      32  output, while it is summed up
         160       8  numbers spread over blocks    then maxima and sums of rows, the mask in fp16

Rows are taken as many at a time as 32 KiB of scores hold, 64 at most.

Sources: see :mod:`npusim.ops._attention.fai` (epilogue/block). Assumed: where the mask lies as
bytes, and that a task whose request has no keys gives zeros.
"""

from __future__ import annotations

from math import inf

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8, RoundMode
from npusim.data.integers import align_down, align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Binary, BinaryScalar, Cast, Copy, Duplicate, Local, Unary
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.kernel.rows import fill, pieces
from npusim.kernel.views import GmView, repeat
from npusim.ops._attention.description import Attention
from npusim.ops._attention.fai.cube import (
    AHEAD,
    PROBABILITIES_READY,
    PRODUCTS_READY,
    SCORES_READY,
)
from npusim.ops._attention.fai.masks import Masked, MaskRows
from npusim.ops._attention.fai.numbers import Rows, by_row, reduce_rows, spread
from npusim.ops._attention.fai.places import Places
from npusim.ops._attention.fai.tasks import Form, Part, Tile
from npusim.ops._attention.fai.tiling import SLOTS, Workspaces

__all__ = ["VectorCore"]

TILE_BYTES = 32768
"""Of scores, and of the output, in the buffer."""
TILE_NUMBERS = TILE_BYTES // 4
MOST_ROWS = 64
"""At a time, and of a vector core."""
ROW_UNIT = 8
"""Rows are reduced eight at a time."""
SPREAD_BYTES = 8192
VECTOR_BYTES = 4 * MOST_ROWS
COLUMN_UNIT = 16
"""Rows of scores begin a multiple of so many numbers apart."""


def rows_at_a_time(columns: int) -> int:
    """Rows of so many columns that 32 KiB of fp32 hold."""
    return min(MOST_ROWS, align_down(TILE_NUMBERS // align_up(columns, COLUMN_UNIT), ROW_UNIT))


class VectorCore:
    """The buffers of a vector core, and how it works on its part of a task."""

    def __init__(self, builder: Builder, spec: DeviceSpec, a: Attention, places: Places) -> None:
        self._builder, self._spec, self._a, self._places = builder, spec, a, places
        self._work = Workspaces(a)
        queue, claim = builder.queue, builder.claim
        self._scores = queue("ub", TILE_BYTES, "mte2", "vector", 2)
        region = claim("ub", TILE_BYTES)
        with builder.on_top_of(region):
            self._probabilities = queue("ub", TILE_BYTES // 2, "vector", "mte3", 2)
        self._products = queue("ub", TILE_BYTES, "mte2", "vector")
        self._output = queue("ub", TILE_BYTES, "mte2", "mte3")
        self._blocks = claim("ub", SPREAD_BYTES)
        names = ("of_tile", "now", "largest", "of_tile_sum", "total")
        self._vectors = {name: claim("ub", VECTOR_BYTES) for name in names}
        self._shrink = [claim("ub", VECTOR_BYTES) for _ in range(SLOTS)]
        self._mask = MaskRows(builder, places, region) if a.has_mask else None
        self._rounding: RoundMode = "none" if a.element is FLOAT16 else "rint"

    def task(self, form: Form, half: int) -> None:
        """Write the part of vector core *half* in a task of *form*, at the first places."""
        part = form.part(half)
        if form.keys == 0:
            if part.rows:
                self._write_zeros(part)
            return
        tiles = list(form.tiles)
        for index in range(len(tiles) + AHEAD):
            if index < len(tiles):
                self._softmax(part, tiles[index], is_first=index == 0)
            if index >= AHEAD:
                self._update(form, part, tiles, index - AHEAD)

    def _vector(self, name: str, row: int, rows: int) -> Local:
        """The numbers of *rows* from *row* on in the vector *name*."""
        return self._vectors[name].of(FLOAT32, rows, FLOAT32.nbytes(row))

    # ---- softmax ----

    def _softmax(self, part: Part, tile: Tile, *, is_first: bool) -> None:
        """Scores of *tile* to probabilities, from slot to slot."""
        rows = slice(part.row, part.row + part.rows)
        last = part.row + part.rows
        scores = self._work.scores(tile.index, last, tile.keys)[rows, :]
        probabilities = self._work.probabilities(tile.index, last, tile.keys)[rows, :]
        masks = self._mask.of_tile(part, tile) if self._mask is not None else []
        repeat(
            self._builder,
            self._write_softmax,
            scores,
            probabilities,
            tile.index % SLOTS,
            is_first,
            tuple((mask.first, mask.keys, mask.is_start) for mask in masks),
            *(mask.view for mask in masks),
        )

    def _write_softmax(
        self,
        scores: GmView,
        probabilities: GmView,
        slot: int,
        is_first: bool,
        hidden: tuple[tuple[int, int, bool], ...],
        *views: GmView,
    ) -> None:
        """Scores `(rows, keys)` to *probabilities* of the same shape.

        *hidden* and *views* are what masks there are, see :class:`~.masks.Masked`.
        """
        masks = [
            Masked(first, view, keys, is_start)
            for (first, keys, is_start), view in zip(hidden, views, strict=True)
        ]
        builder, columns = self._builder, scores.columns
        wait = builder.cross_core_wait_flag
        if scores.rows == 0:
            # The other core has all rows; this one must not set flags ahead of it.
            wait("group", "mte2", SCORES_READY)
            builder.sync("mte2", "mte3")
        width = max(columns, *(view.columns for view in views), 0)
        for row, rows in pieces(scores.rows, rows_at_a_time(width)):
            if masks and self._mask is not None:
                self._mask.load(masks[0].view, row, rows)
            if row == 0:
                wait("group", "mte2", SCORES_READY)
            here = slice(row, row + rows)
            loaded = self._load_scores(scores[here, :])
            pitch = align_up(columns, COLUMN_UNIT)
            plane = Rows(loaded.of(FLOAT32, 1), rows, columns, pitch)
            whole = plane.whole()
            # Scores times scale, hidden ones - 3e38
            step(builder, BinaryScalar("mul", whole, whole, float(np.float32(self._a.scale))))
            for number, mask in enumerate(masks):
                assert self._mask is not None
                if number:
                    self._mask.load(mask.view, row, rows)
                self._mask.add(plane, mask)
            self._softmax_rows(plane, probabilities[here, :], slot, is_first, row)
            self._scores.free(loaded)
        builder.cross_core_set_flag("group", "mte3", PROBABILITIES_READY)

    def _load_scores(self, scores: GmView) -> Slot:
        """Rows of *scores*, a multiple of 16 numbers apart."""
        slot, pitch = self._scores.alloc(), align_up(scores.columns, COLUMN_UNIT)
        fill(self._builder, self._spec, slot, scores, FLOAT32.nbytes(pitch))
        self._scores.enque(slot)
        return self._scores.deque()

    def _softmax_rows(
        self, plane: Rows, probabilities: GmView, slot: int, is_first: bool, row: int
    ) -> None:
        """Some rows, the first of which is *row* of the core's."""
        builder, rows, whole = self._builder, plane.rows, plane.whole()
        self._find_largest(plane, slot, is_first, row)
        # Probabilities: exp of what they are below the largest
        by_row(builder, "sub", plane, spread(builder, self._blocks, self._vector("now", row, rows)))
        step(builder, Unary("exp", whole, whole))
        narrow = self._probabilities.alloc()
        step(builder, Cast(narrow.of(self._a.element, whole.count), whole, self._rounding))
        self._probabilities.enque(narrow)
        narrow = self._probabilities.deque()
        self._store(narrow, probabilities, self._a.element.nbytes(plane.pitch))
        self._probabilities.free(narrow)
        self._add_up(plane, slot, is_first, row)

    def _find_largest(self, plane: Rows, slot: int, is_first: bool, row: int) -> None:
        """The largest score of each row so far to `now` and `largest`, and by what sums shrink."""
        builder, rows = self._builder, plane.rows
        padded = align_up(rows, ROW_UNIT)
        of_tile, now, largest = (
            self._vector(name, row, rows) for name in ("of_tile", "now", "largest")
        )
        reduce_rows(builder, "max", of_tile, plane, self._blocks)
        if is_first:
            step(builder, Copy(_padded(now, padded), _padded(of_tile, padded)))
        else:
            shrink = self._shrink[slot].of(FLOAT32, rows, FLOAT32.nbytes(row))
            step(builder, Binary("max", now, largest, of_tile))
            step(builder, Binary("sub", shrink, largest, now))
            step(builder, Unary("exp", shrink, shrink))
        step(builder, Copy(_padded(largest, padded), _padded(now, padded)))

    def _add_up(self, plane: Rows, slot: int, is_first: bool, row: int) -> None:
        """The sum of each row so far to `total`."""
        builder, rows = self._builder, plane.rows
        of_tile, total = (self._vector(name, row, rows) for name in ("of_tile_sum", "total"))
        reduce_rows(builder, "sum", of_tile, plane, self._blocks)
        if is_first:
            padded = align_up(rows, ROW_UNIT)
            step(builder, Copy(_padded(total, padded), _padded(of_tile, padded)))
            return
        shrink = self._shrink[slot].of(FLOAT32, rows, FLOAT32.nbytes(row))
        step(builder, Binary("mul", total, shrink, total))
        step(builder, Binary("add", total, total, of_tile))

    def _store(self, slot: Slot, view: GmView, pitch_bytes: int, row: int = 0) -> None:
        """Rows of *slot* from *row* on, *pitch_bytes* apart, to *view*."""
        count = view.extent_bytes(pitch_bytes)
        src = slot.of(UINT8, count, row * pitch_bytes)
        self._builder.data_copy(view.operand, src, pitch_bytes)

    # ---- output ----

    def _update(self, form: Form, part: Part, tiles: list[Tile], number: int) -> None:
        """Add the products of tile *number*; after the last one divide and store the output."""
        tile, is_last = tiles[number], number == len(tiles) - 1
        rows = slice(part.row, part.row + part.rows)
        products = self._work.products(tile.index, part.row + part.rows)[rows, :]
        keeps = part.rows <= rows_at_a_time(self._a.head_size)
        write = self._update_kept if keeps else self._update_stored
        between = [] if keeps else [self._work.updated(part.row + part.rows)[rows, :]]
        outputs: list[GmView] = []
        sums: list[GmView] = []
        if is_last and form.is_piece:
            outputs, sums = ([view] for view in self._places.of_piece(part))
        elif is_last:
            outputs = [view for _, view in self._places.outputs(part)]
            sums = [view for _, view in self._places.sums(part)] if self._a.returns_lse else []
        repeat(
            self._builder,
            write,
            products,
            tile.index % SLOTS,
            number == 0,
            len(outputs),
            *between,
            *outputs,
            *sums,
            keeps_slots=True,
        )

    def _update_kept(
        self,
        products: GmView,
        slot: int,
        is_first: bool,
        count: int,
        *views: GmView,
    ) -> None:
        """Products `(rows, columns)` onto the output, which stays in the buffer between tiles.

        *views* are *count* heads of the output, if it is finished, and of softmax_lse.
        """
        builder = self._builder
        builder.cross_core_wait_flag("group", "mte2", PRODUCTS_READY)
        if products.rows == 0:
            return
        if is_first:
            output = self._output.alloc()
            self._load(output, products)
            builder.sync("mte2", "vector")
        else:
            (output,) = self._output.in_use
            self._shrink_and_add(output, products, slot, 0)
        if count:
            self._finish(output, 0, products.rows, views[:count])
            self._output.free(output)
            self._finish_sums(products.rows, views[count:])

    def _update_stored(
        self,
        products: GmView,
        slot: int,
        is_first: bool,
        count: int,
        every: GmView,
        *views: GmView,
    ) -> None:
        """The same where the output of all rows does not fit: it is stored to *every* and back."""
        builder = self._builder
        builder.cross_core_wait_flag("group", "mte2", PRODUCTS_READY)
        for row, rows in pieces(products.rows, rows_at_a_time(self._a.head_size)):
            here = slice(row, row + rows)
            output = self._output.alloc()
            self._load(output, products[here, :] if is_first else every[here, :])
            builder.sync("mte2", "vector")
            if not is_first:
                self._shrink_and_add(output, products[here, :], slot, row)
            if count:
                self._finish(output, row, rows, views[:count])
            else:
                builder.sync("vector", "mte3")
                self._store(output, every[here, :], FLOAT32.nbytes(every.columns))
            self._output.free(output)
        if count:
            self._finish_sums(products.rows, views[count:])

    def _load(self, slot: Slot, view: GmView) -> None:
        """fp32 *view* `(rows, columns)` into *slot*, rows behind each other."""
        fill(self._builder, self._spec, slot, view, view.row_bytes)

    def _shrink_and_add(self, output: Slot, products: GmView, slot: int, row: int) -> None:
        """`O = O * shrink + products`, for rows of the core's from *row* on."""
        builder, rows, columns = self._builder, products.rows, products.columns
        loaded = self._products.alloc()
        self._load(loaded, products)
        self._products.enque(loaded)
        loaded = self._products.deque()
        plane = Rows(output.of(FLOAT32, 1), rows, columns, columns)
        shrink = self._shrink[slot].of(FLOAT32, rows, FLOAT32.nbytes(row))
        by_row(builder, "mul", plane, spread(builder, self._blocks, shrink))
        whole = plane.whole()
        step(builder, Binary("add", whole, whole, loaded.of(FLOAT32, whole.count)))
        self._products.free(loaded)

    def _finish(self, output: Slot, row: int, rows: int, views: tuple[GmView, ...]) -> None:
        """Divide the output of *rows* of the core's from *row* on, and store it head by head."""
        builder, size = self._builder, self._a.head_size
        plane = Rows(output.of(FLOAT32, 1), rows, size, size)
        blocks = spread(builder, self._blocks, self._vector("total", row, rows))
        by_row(builder, "div", plane, blocks)
        if views[0].dtype is not FLOAT32:
            # fp32 -> the type of the query, where it lies
            narrow = output.of(self._a.element, rows * size)
            step(builder, Cast(narrow, plane.whole(), self._rounding))
        builder.sync("vector", "mte3")
        for head, view in enumerate(views):
            first = head * view.rows
            top, bottom = max(first, row), min(first + view.rows, row + rows)
            if top < bottom:
                here = view[top - first : bottom - first, :]
                self._store(output, here, view.row_bytes, top - row)

    def _finish_sums(self, rows: int, views: tuple[GmView, ...]) -> None:
        """softmax_lse, ln of the sum and the largest score of each row, head by head."""
        if not views:
            return
        builder = self._builder
        found, total, largest = (
            self._vector(name, 0, rows) for name in ("of_tile", "total", "largest")
        )
        step(builder, Unary("ln", found, total))
        step(builder, Binary("add", found, found, largest))
        if views[0].pitch == 0:
            # Those of a piece lie together.
            builder.sync("vector", "mte3")
            source = self._vectors["of_tile"].of(UINT8, views[0].row_bytes)
            builder.data_copy(views[0].operand, source)
            builder.sync("mte3", "vector")
            return
        spread(builder, self._blocks, found)
        self._store_sums(views)

    def _store_sums(self, views: tuple[GmView, ...]) -> None:
        """The numbers of rows that are spread over blocks, to softmax_lse."""
        builder = self._builder
        builder.sync("vector", "mte3")
        for head, view in enumerate(views):
            self._store(self._blocks, view, BLOCK_BYTES, head * view.rows)
        builder.sync("mte3", "vector")

    def _write_zeros(self, part: Part) -> None:
        """The output of rows without keys."""
        outputs = [view for _, view in self._places.outputs(part)]
        sums = [view for _, view in self._places.sums(part)] if self._a.returns_lse else []
        repeat(self._builder, self._zeros, part.rows, len(outputs), *outputs, *sums)

    def _zeros(self, rows: int, count: int, *views: GmView) -> None:
        builder, size = self._builder, self._a.head_size
        output = self._output.alloc()
        builder.sync("mte2", "vector")
        numbers = output.of(self._a.element, rows * size)
        step(builder, Duplicate(numbers, 0.0))
        builder.sync("vector", "mte3")
        for head, view in enumerate(views[:count]):
            self._store(output, view, view.row_bytes, head * view.rows)
        self._output.free(output)
        if views[count:]:
            step(builder, Duplicate(self._blocks.of(FLOAT32, 8 * rows), inf))
            self._store_sums(views[count:])


def _padded(numbers: Local, count: int) -> Local:
    """*numbers* with those that fill its last block."""
    return Local(numbers.buffer, numbers.offset_bytes, numbers.dtype, count)
