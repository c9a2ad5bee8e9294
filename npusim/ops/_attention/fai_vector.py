"""A vector core's work in FAI: softmax of a tile, and two tiles later its part of the output.

.. code-block:: text

    KiB    0  2 x 32  scores            64  2 x 16  probabilities, or 32 of the mask in fp32
          96      32  products         128      32  output, while it is summed up
         160       8  a block a row     then maxima and sums of rows, the mask in fp16

Rows are processed as many at a time as 32 KiB of scores hold, at most 64. They begin whole blocks
apart; an instruction covers 64 columns of all rows, a repeat one row, and reduces at least eight
rows. With inner_precise 1 everything is fp16, twice as many in a repeat, with no rounding between.

The mask of a tile is a piece of the stencil, which has ones above its diagonal: the piece with the
diagonal of the tile, from the last multiple of 32 columns before it on. For a band, whose rows do
not see the first keys either, zeros of another piece are used to hide them.

Sources: see :mod:`npusim.ops._attention.fai` (epilogue/block). Assumed: where the mask bytes are,
how zeros hide keys, that a task whose rows see no key gives zeros and such rows of other tasks are
cleared at the end, and for fp16 how many rows are processed and how they are summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8, DType, RoundMode
from npusim.data.integers import align_down, align_up
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Local
from npusim.kernel.rows import pieces
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, repeat
from npusim.kernel.wide_plane import WidePlane, by_rows, padded, reduce_by_repeat, spread
from npusim.ops._attention.fai_places import Places
from npusim.ops._attention.fai_tiling import SLOTS, Form, Part, Tile
from npusim.ops._attention.problem import MASK_EXTENT

AHEAD = 2
"""Tiles by which Q @ K^T is ahead of P @ V."""
SCORES_READY, PROBABILITIES_READY, PRODUCTS_READY = 1, 2, 3
"""Flags between the cores of a group."""
TILE_COUNT = 8192
"""fp32 elements of scores, and of the output, in the buffer."""
MOST_ROWS = 64
"""Most rows at a time, and of a vector core."""
BLOCK = 8
"""fp32 in a block; rows are reduced this many at a time."""
COLUMN_UNIT = 16
"""The pitch of rows of scores is a multiple of this many elements."""
MASK_UNIT = 32
"""Columns of the mask begin at a multiple of this, and their number is one."""
HIDDEN, HIDDEN_HALF = -3e38, -6e4
"""Added to a hidden score, and to a hidden fp16 score."""


Spans = tuple[tuple[int, int], ...]
"""First rows, and numbers of rows."""


def rows_at_a_time(columns: int, dtype: DType = FLOAT32) -> int:
    """Rows of that many columns in 32 KiB of fp32, or the same number of elements of *dtype*."""
    most = TILE_COUNT // align_up(columns, COLUMN_UNIT)
    return min(MOST_ROWS, align_down(most, BLOCK_BYTES // dtype.nbytes(1)))


def rounding_to(element: DType) -> RoundMode:
    """How fp32 is rounded to the query's type: ties to even, which CAST_NONE also does for fp16."""
    return "none" if element is FLOAT16 else "rint"


def plane_of(tile: Local, rows: int, columns: int, pitch: int | None = None) -> WidePlane:
    """*rows* x *columns* of *tile*, of which every step covers 64 columns of all rows."""
    return WidePlane(tile, rows, columns, pitch or columns, takes_rows=False)


def copy_out(core: VectorCore, tile: Local, view: GmView, pitch_bytes: int, row: int = 0) -> None:
    """Store rows of *tile* from *row* on, *pitch_bytes* apart, to *view*."""
    octets = tile.as_dtype(UINT8)
    src = octets.at(row * pitch_bytes, view.extent_bytes(pitch_bytes))
    core.data_copy(view.operand, src, pitch_bytes)


def store_heads(
    core: VectorCore,
    tile: Local,
    views: tuple[GmView, ...],
    first: int,
    rows: int,
    pitch_bytes: int = 0,
) -> None:
    """Store rows [first, first + rows) of a task from *tile*, *pitch_bytes* apart, to *views*.

    Views are per head. Without a pitch rows are as wide as those of the views.
    """
    for head, view in enumerate(views):
        start = head * view.rows
        top, bottom = max(start, first), min(start + view.rows, first + rows)
        if top < bottom:
            here = view[top - start : bottom - start, :]
            copy_out(core, tile, here, pitch_bytes or view.row_bytes, top - first)


def store_sums(
    core: VectorCore,
    blocks: Local,
    column: Local | None,
    views: tuple[GmView, ...],
    first: int = 0,
    blind: Spans = (),
) -> None:
    """Store *column*, or one block per row in *blocks*, to *views* of softmax_lse, head by head.

    The value for *blind* rows, first ones and counts, is infinite.
    """
    rows = sum(view.rows for view in views)
    if column is not None:
        spread(core, blocks, column)
        rows = column.count
    for row, count in blind:
        core.duplicate(blocks.at(row * BLOCK, count * BLOCK), inf)
    core.sync("vector", "mte3")
    store_heads(core, blocks, views, first, rows, BLOCK_BYTES)
    core.sync("mte3", "vector")


class Masked(NamedTuple):
    """Keys of a tile of which some are hidden, along a diagonal."""

    first: int
    """The key at which the mask starts."""
    keys: int
    """Number of mask columns."""
    is_start: bool
    """Whether zeros hide keys, those before a diagonal, rather than ones."""
    stencil: GmView
    """The piece of the stencil, `(tokens, columns)`."""


class Vector:
    """The buffers of a vector core, and the stages of its part of a task."""

    def __init__(self, spec: DeviceSpec, places: Places) -> None:
        a = places.a
        # The vendor's tensors occupy the whole unified buffer.
        self.core = core = VectorCore("fai", spec, "aiv", alone=True)
        self._places, self._a = places, a
        self._type = a.work_type
        self._scores = core.vecin(self._type, TILE_COUNT, 2)
        region = core.claim("ub", FLOAT32.nbytes(TILE_COUNT))
        with core.on_top_of(region):
            self._probabilities = core.vecout(a.element, TILE_COUNT, 2)
        self._wide_mask = region.of(FLOAT32, TILE_COUNT)
        self._products = core.vecin(self._type, TILE_COUNT)
        self._output = core.tiles(self._type, TILE_COUNT, "mte2", "mte3")
        self._blocks = core.tile(FLOAT32, 2048)
        column = [core.tile(self._type, MOST_ROWS) for _ in range(5)]
        self._of_tile, self._now, self._largest, self._of_tile_sum, self._total = column
        self._shrink = [core.tile(self._type, MOST_ROWS) for _ in range(SLOTS)]
        self._scratch = self._blocks.as_dtype(self._type, 2048)
        self._mask = core.vecin(FLOAT16, TILE_COUNT) if a.has_mask else None
        self._sums = core.tile(FLOAT32, MOST_ROWS) if self._type is FLOAT16 else None
        self._rounding = rounding_to(a.element)

    def task(self, form: Form, half: int, *_: GmView) -> None:
        """Write the part of vector core *half* in a task of *form*, at offset 0."""
        part = form.part(half)
        if form.keys == 0:
            if part.rows:
                views = self._places.outputs(part), self._places.sums(part)
                repeat(self.core, self._zeros, part.rows, *views)
            return
        tiles = list(form.tiles)
        for index in range(len(tiles) + AHEAD):
            if index < len(tiles):
                self._softmax(part, tiles[index], is_first=index == 0)
            if index >= AHEAD:
                self._update(form, part, tiles, index - AHEAD)

    # ---- masks ----

    def _masks(self, part: Part, tile: Tile) -> Iterator[Masked]:
        """The hidden keys of *tile* for the tokens of *part*, at its end and at its start."""
        if self._mask is not None and tile.diagonal is not None:
            first = max(0, tile.diagonal - 1) // MASK_UNIT * MASK_UNIT
            yield self._masked(part, tile.diagonal, first, tile.keys - first)
        if self._mask is not None and tile.start_diagonal is not None:
            keys = min(tile.keys, tile.start_diagonal + part.token + part.tokens - 1)
            if keys > 0:
                yield self._masked(part, tile.start_diagonal, 0, keys, is_start=True)

    def _masked(
        self, part: Part, diagonal: int, first: int, keys: int, *, is_start: bool = False
    ) -> Masked:
        """The piece of the stencil whose first row has zeros before key *diagonal*."""
        # The first one in row i of the stencil is at i + 1.
        shift = diagonal - 1 - first
        columns = align_up(keys, MASK_UNIT)
        # Far above its diagonal the stencil is all ones.
        top, left = max(0, shift) + part.token, min(max(0, -shift), MASK_EXTENT - columns)
        stencil = self._places.mask[top : top + part.tokens, left : left + columns]
        return Masked(first, keys, is_start, stencil)

    def _load_mask(self, mask: GmView, row: int, rows: int) -> None:
        """Load the *mask* of *rows* rows from *row*, the tokens of one head after another."""
        assert self._mask is not None
        tile, pitch = self._mask.alloc(), mask.columns
        octets = tile.as_dtype(UINT8)[TILE_COUNT:]
        done = 0
        while done < rows:
            token = (row + done) % mask.rows
            count = min(mask.rows - token, rows - done)
            here = mask[token : token + count, :]
            self.core.data_copy(octets.at(done * pitch, count * pitch), here.operand, pitch)
            done += count
        self._mask.enque(tile)

    def _add_mask(self, plane: WidePlane, mask: Masked) -> None:
        """Add the loaded *mask* to the scores *plane*."""
        core, queue, pitch = self.core, self._mask, mask.stencil.columns
        assert queue is not None
        tile, count = queue.deque(), plane.rows * pitch
        half, wide = tile[:count], self._wide_mask.as_dtype(self._type, count)
        # 0 or 1: uint8 -> fp16 -> fp32
        core.cast(half, tile.as_dtype(UINT8)[TILE_COUNT : TILE_COUNT + count], "none")
        # Wait until earlier data has been stored from there.
        core.sync("mte3", "vector")
        core.convert(wide, half)
        queue.free(tile)
        if mask.is_start:
            # 1 where the stencil has 0
            core.mul(wide, wide, -1.0)
            core.add(wide, wide, 1.0)
        core.mul(wide, wide, HIDDEN if self._type is FLOAT32 else HIDDEN_HALF)
        other = plane_of(wide, plane.rows, mask.keys, pitch)
        with core.independent():
            for column, columns in pieces(mask.keys, plane.lanes):
                here = plane.block(mask.first + column, columns)
                core.add(here, here, other.block(column, columns))

    # ---- softmax ----

    def _softmax(self, part: Part, tile: Tile, *, is_first: bool) -> None:
        """Convert scores of *tile* to probabilities, from slot to slot."""
        rows = slice(part.row, part.row + part.rows)
        size = tile.index, rows.stop, tile.keys
        views = self._places.scores(*size)[rows, :], self._places.probabilities(*size)[rows, :]
        state = tile.index % SLOTS, is_first, tuple(self._masks(part, tile))
        repeat(self.core, self._write_softmax, *views, *state)

    def _write_softmax(
        self,
        scores: GmView,
        probabilities: GmView,
        slot: int,
        is_first: bool,
        masks: tuple[Masked, ...],
    ) -> None:
        """Write *probabilities* for scores `(rows, keys)` of the same shape."""
        core, columns = self.core, scores.columns
        pitch = align_up(columns, COLUMN_UNIT)
        if scores.rows == 0:
            # The other core has all rows; this one must not set flags ahead of it.
            core.cross_core_wait_flag("group", "scalar", SCORES_READY)
            core.sync("mte2", "mte3")
        width = max(columns, *(mask.stencil.columns for mask in masks), 0)
        for row, rows in pieces(scores.rows, rows_at_a_time(width, self._type)):
            if masks:
                self._load_mask(masks[0].stencil, row, rows)
            if row == 0:
                core.cross_core_wait_flag("group", "scalar", SCORES_READY)
            here = slice(row, row + rows)
            loaded = core.load(self._scores, scores[here, :], pitch)
            plane = plane_of(loaded, rows, columns, pitch)
            # Scores times scale, with 3e38 subtracted from hidden ones
            core.mul(plane.whole, plane.whole, float(np.float32(self._a.scale)))
            for number, mask in enumerate(masks):
                if number:
                    self._load_mask(mask.stencil, row, rows)
                self._add_mask(plane, mask)
            self._softmax_rows(plane, probabilities[here, :], slot, is_first, row)
            self._scores.free(loaded)
        core.cross_core_set_flag("group", "mte3", PROBABILITIES_READY)

    def _softmax_rows(
        self, plane: WidePlane, probabilities: GmView, slot: int, is_first: bool, row: int
    ) -> None:
        """Process some rows, from row *row* of the core on."""
        core, rows, whole = self.core, plane.rows, plane.whole
        self._find_largest(plane, slot, is_first, row)
        # Probabilities: exp of the difference to the maximum
        by_rows(core, "sub", plane, spread(core, self._scratch, self._now.at(row, rows)))
        core.exp(whole, whole)
        narrow = self._probabilities.alloc()
        core.convert(narrow[: whole.count], whole, self._rounding)
        self._probabilities.enque(narrow)
        narrow = self._probabilities.deque()
        copy_out(core, narrow, probabilities, self._a.element.nbytes(plane.pitch))
        self._probabilities.free(narrow)
        self._add_up(plane, slot, is_first, row)

    def _find_largest(self, plane: WidePlane, slot: int, is_first: bool, row: int) -> None:
        """Write the running maximum of each row to `now` and `largest`, and the factor of sums."""
        core, rows = self.core, plane.rows
        of_tile, now, largest, shrink = (
            column.at(row, rows)
            for column in (self._of_tile, self._now, self._largest, self._shrink[slot])
        )
        reduce_by_repeat(core, "max", of_tile, plane, self._scratch)
        if is_first:
            core.copy(padded(now), padded(of_tile))
        else:
            core.max(now, largest, of_tile)
            core.sub(shrink, largest, now)
            core.exp(shrink, shrink)
        core.copy(padded(largest), padded(now))

    def _add_up(self, plane: WidePlane, slot: int, is_first: bool, row: int) -> None:
        """Update the running sum of each row in `total`."""
        core, rows = self.core, plane.rows
        of_tile, total = self._of_tile_sum.at(row, rows), self._total.at(row, rows)
        reduce_by_repeat(core, "sum", of_tile, plane, self._scratch)
        if is_first:
            core.copy(padded(total), padded(of_tile))
            return
        core.mul(total, self._shrink[slot].at(row, rows), total)
        core.add(total, total, of_tile)

    # ---- output ----

    def _update(self, form: Form, part: Part, tiles: list[Tile], number: int) -> None:
        """Add the products of tile *number*; after the last one divide and store the output."""
        tile, places = tiles[number], self._places
        rows = slice(part.row, part.row + part.rows)
        products = places.products(tile.index, rows.stop)[rows, :]
        keeps = part.rows <= rows_at_a_time(self._a.head_size, self._type)
        every = None if keeps else places.updated(rows.stop)[rows, :]
        outputs: tuple[GmView, ...] = ()
        sums: tuple[GmView, ...] = ()
        blind: Spans = ()
        if number == len(tiles) - 1:
            outputs, sums = places.outputs(part), places.sums(part)
            blind = tuple(form.blind(part))
            if form.is_piece:
                outputs, sums = ((view,) for view in places.of_piece(part))
        state = tile.index % SLOTS, number == 0, every, outputs, sums, blind
        repeat(self.core, self._write_update, products, *state, keeps_slots=True)

    def _write_update(
        self,
        products: GmView,
        slot: int,
        is_first: bool,
        every: GmView | None,
        outputs: tuple[GmView, ...],
        sums: tuple[GmView, ...],
        blind: Spans,
    ) -> None:
        """Add products `(rows, columns)` to the output; *outputs* and *sums* are given at the end.

        The output stays in the buffer between tiles, or is stored to *every* and reloaded if the
        output of all rows does not fit.
        """
        core = self.core
        core.cross_core_wait_flag("group", "scalar", PRODUCTS_READY)
        for row, rows in pieces(products.rows, rows_at_a_time(self._a.head_size, self._type)):
            here = slice(row, row + rows)
            if is_first or every is not None:
                output = self._output.alloc()
                before = products if is_first or every is None else every
                core.fill(output, before[here, :], products.columns)
                core.sync("mte2", "vector")
            else:
                (output,) = self._output.in_use
            if not is_first:
                self._shrink_and_add(output, products[here, :], slot, row)
            if outputs:
                self._finish(output, row, rows, outputs, blind)
            elif every is not None:
                core.sync("vector", "mte3")
                copy_out(core, output, every[here, :], every.row_bytes)
            if outputs or every is not None:
                self._output.free(output)
        if outputs and products.rows:
            self._finish_sums(products.rows, sums, blind)

    def _shrink_and_add(self, output: Local, products: GmView, slot: int, row: int) -> None:
        """`O = O * shrink + products`, for rows of the core from *row* on."""
        core, rows, columns = self.core, products.rows, products.columns
        loaded = core.load(self._products, products, columns)
        plane = plane_of(output, rows, columns)
        by_rows(core, "mul", plane, spread(core, self._scratch, self._shrink[slot].at(row, rows)))
        core.add(plane.whole, plane.whole, loaded[: plane.whole.count])
        self._products.free(loaded)

    def _finish(
        self, output: Local, row: int, rows: int, views: tuple[GmView, ...], blind: Spans
    ) -> None:
        """Divide the output of *rows* rows of the core, from *row* on; store it head by head."""
        core, plane = self.core, plane_of(output, rows, self._a.head_size)
        by_rows(core, "div", plane, spread(core, self._scratch, self._total.at(row, rows)))
        for first, count in blind:
            start, stop = max(first - row, 0), min(first + count - row, rows)
            if start < stop:
                core.duplicate(plane.row(start, 0, (stop - start) * plane.pitch), 0.0)
        if views[0].dtype is not self._type:
            # fp32 -> the type of the query, in place
            narrow = output.as_dtype(self._a.element, plane.whole.count)
            core.cast(narrow, plane.whole, self._rounding)
        core.sync("vector", "mte3")
        store_heads(core, output, views, row, rows)

    def _finish_sums(self, rows: int, views: tuple[GmView, ...], blind: Spans) -> None:
        """Store softmax_lse, ln of the sum plus the maximum of each row, head by head."""
        if not views:
            return
        core, found = self.core, self._of_tile[:rows]
        core.ln(found, self._total[:rows])
        core.add(found, found, self._largest[:rows])
        if views[0].pitch:
            if self._sums is not None:
                core.cast(self._sums[:rows], found, "none")
                found = self._sums[:rows]
            store_sums(core, self._blocks, found, views, blind=blind)
            return
        # Those of a piece are contiguous.
        core.sync("vector", "mte3")
        copy_out(core, self._of_tile, views[0], 0)
        core.sync("mte3", "vector")

    def _zeros(self, rows: int, outputs: tuple[GmView, ...], sums: tuple[GmView, ...]) -> None:
        """Store the output of rows without keys, and their softmax_lse."""
        core, output = self.core, self._output.alloc()
        core.sync("mte2", "vector")
        core.duplicate(output.as_dtype(self._a.element, rows * self._a.head_size), 0.0)
        core.sync("vector", "mte3")
        store_heads(core, output, outputs, 0, rows)
        self._output.free(output)
        if sums:
            core.duplicate(self._blocks[: BLOCK * rows], inf)
            store_sums(core, self._blocks, None, sums)
