"""The second half of a vector core's work in FIA: from products of tiles to the output.

.. code-block:: text

    o' = o * e + product              o of the previous tile, through global memory
    out = o / l                       after the last tile; fp16: ties away from zero, bf16: to even

A piece of a row of tiles that cores share stores out, m and l. Pieces are combined at the end:

.. code-block:: text

    M = max(m);  c = l * exp(m - M);  w = c / ((c0 + c1) + ...);  out = (w0 * o0 + w1 * o1) + ...

Sources: ops-transformer@3a280bc attention/common/op_kernel/arch22, fia_block_vec_nonquant.h and
fia_block_vec_flashdecode.h. Rows without visible keys due to pre_tokens or next_tokens give zeros;
with a mask that is used directly their logarithm is infinite only if it hides all keys of their
tiles. How rows that see nothing are found, and how outputs with non-contiguous rows are stored, is
assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, RoundMode
from npusim.data.integers import align_down, align_up
from npusim.isa import BLOCK_BYTES, Local, Store
from npusim.kernel.launch import VECTOR_CORES_OF_A_GROUP as VECTOR_CORES
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Column, Step, column_of
from npusim.kernel.views import GmView, repeat
from npusim.kernel.wide_plane import LANES, WidePlane, by_rows
from npusim.ops._attention.fia_tiling import Piece, RowTile
from npusim.ops._attention.fia_vector import (
    BEFORE,
    BLOCK,
    COUNT,
    PRODUCT_READY,
    SECOND,
    Vector,
    rows_of_half,
    step_of,
)
from npusim.ops._attention.places import Target, joined

LOOP_ROWS, MOST_ROWS = 8, 256
"""Loops take multiples of the first, up to the second: one block per row fits the output buffer."""
LOWEST = -3.4028234663852886e38
"""Initial value of the maximum of pieces: -FLT_MAX."""


class Finish:
    """Finishes rows: rounds and stores them, with the logarithms of their sums."""

    def __init__(self, vector: Vector) -> None:
        self._vector, self._core, self._a = vector, vector.core, vector.a
        self._rounding: RoundMode = "round" if self._a.rounds_away else "rint"
        a = self._a
        self._hides = bool(a.inner_precise & 2) and a.has_own_mask
        self._hides_sums = self._hides or (a.has_own_mask and min(a.pre_tokens, a.next_tokens) < 0)

    @property
    def loop_rows(self) -> int:
        return min(align_down(COUNT // self._vector.memory.width, LOOP_ROWS), MOST_ROWS)

    def rows(self, plane: WidePlane, target: Target, largest: Local, total: Local) -> None:
        """Round and store *plane*, and the logarithms of its sums.

        *largest* and *total* are those of the rows as stored in the state, or in blocks.
        """
        core, vector = self._core, self._vector
        if self._hides:
            self._empty_hidden(plane, self._blocks(largest, plane.rows))
        if target.blind:
            with core.independent():
                for first, rows in target.blind:
                    core.duplicate(plane.row(first, 0, rows * plane.pitch), 0.0)
        out = vector.wide_out.alloc()
        core.cast(out.as_dtype(self._a.element, plane.whole.count), plane.whole, self._rounding)
        self._store_rows(out, target)
        if self._a.is_training:
            self._store_each(plane.rows, target, {"softmax_max": largest, "softmax_sum": total})
        elif target.sums:
            self._store_sums(plane.rows, target, largest, total)

    def _blocks(self, row_values: Local, rows: int) -> Local:
        """The stored state of *rows* as one block per row."""
        return (
            row_values
            if row_values.count == rows * BLOCK
            else self._vector.state.blocks(row_values)
        )

    def _store_rows(self, out: Local, target: Target) -> None:
        """Store contiguous rows of the output, and free the tile *out*."""
        element, at = self._a.element, 0
        self._vector.wide_out.enque(out)
        out = self._vector.wide_out.deque()
        for view in map(joined, target.outputs):
            count = view.rows * view.columns
            src = out.as_dtype(element).at(at, count)
            self._core.data_copy(view.operand, src, view.row_bytes if view.rows > 1 else 0)
            at += count
        self._vector.wide_out.free(out)

    def _empty_hidden(self, plane: WidePlane, largest: Local) -> None:
        """Zero rows of which a mask hides all keys; *largest* is a block per row."""
        core, queue = self._core, self._vector.wide_out
        count, spread = align_up(plane.whole.count, LANES), queue.alloc()
        # (rows, 8) -> (rows, width), the row's maximum everywhere
        core.duplicate(spread[:count], float("-inf"))
        by_rows(core, "max", replace(plane, tile=spread), largest)
        bits = self._vector.mask_bits
        core.compare("ne", bits[: count // 8], spread[:count], self._a.hidden)
        core.select(plane.whole, bits[: plane.whole.count // 8], plane.whole, 0.0)
        queue.enque(spread)
        queue.free(queue.deque())

    def _store_sums(self, rows: int, target: Target, largest: Local, total: Local) -> None:
        """ln(total) + largest, 4 bytes per row."""
        core, bits, small = self._core, self._vector.mask_bits, self._vector.small_out.alloc()
        logs = small[: rows * BLOCK]
        core.copy(logs, self._blocks(total, rows))
        core.ln(logs, logs)
        maxima = self._blocks(largest, rows)
        core.add(logs, logs, maxima)
        if self._hides_sums:
            count = align_up(logs.count, LANES)
            core.compare("ne", bits[: count // 8], replace(maxima, count=count), self._a.hidden)
            core.select(logs, bits[: logs.count // 8], logs, float("inf"))
        if target.blind and not self._a.has_own_mask:
            with core.independent():
                for first, blind in target.blind:
                    core.duplicate(logs.at(first * BLOCK, blind * BLOCK), float("inf"))
        self._store_blocks(small, target, "softmax_lse")

    def _store_each(self, rows: int, target: Target, found: Mapping[str, Local]) -> None:
        """Store maxima and sums of *rows* as *found*, a block of eight per row."""
        core = self._core
        for name, row_values in found.items():
            small, (_, unseen) = self._vector.small_out.alloc(), self._a.sums[name]
            values = small[: rows * BLOCK]
            core.copy(values, self._blocks(row_values, rows))
            if self._hides and name == "softmax_sum":
                bits, count = self._vector.mask_bits, align_up(values.count, LANES)
                maxima = replace(self._blocks(found["softmax_max"], rows), count=count)
                core.compare("ne", bits[: count // 8], maxima, self._a.hidden)
                core.select(values, bits[: values.count // 8], values, unseen)
            if target.blind:
                with core.independent():
                    for first, blind in target.blind:
                        core.duplicate(values.at(first * BLOCK, blind * BLOCK), unseen)
            self._store_blocks(small, target, name)

    def _store_blocks(self, small: Local, target: Target, name: str) -> None:
        """Store tensor *name*'s part of each block of *small*, which is freed."""
        self._vector.small_out.enque(small)
        small = self._vector.small_out.deque()
        for first, every, view in target.sums:
            if view.name != name:
                continue
            src = small.at(first * BLOCK, (view.rows - 1) * every * BLOCK + view.columns)
            pitch_bytes = every * BLOCK_BYTES if view.rows > 1 else 0
            self._core.emit(Store(view.operand, src, pitch_bytes))
        self._vector.small_out.free(small)

    # ---- rows without keys ----

    def empty(self, tiles: tuple[RowTile, ...], cores: int) -> Step:
        """Zeros for all rows of *tiles*, and infinite logarithms, by *cores* in turn.

        The same for tokens that requests do not have.
        """
        memory = self._vector.memory
        parts = [
            (number % cores, rows, memory.target(tile, row, rows))
            for number, tile in enumerate(tiles)
            for row, rows in pieces(tile.rows, self.loop_rows)
        ]
        padding = enumerate(memory.padding(self.loop_rows))
        parts += [(number % cores, rows, target) for number, (rows, target) in padding]
        core, rows, targets = map(list, zip(*parts, strict=True)) if parts else ([], [], [])
        before = np.full(len(parts), BEFORE)
        return Step(self._empty, (rows, targets), np.array(core, np.int64), before)

    def _empty(self, rows: int, target: Target) -> None:
        core, vector, width = self._core, self._vector, self._vector.memory.width
        out = vector.wide_out.alloc()
        # Zero has the same bits in all types; bf16 has no Duplicate.
        core.duplicate(out.as_dtype(FLOAT16, rows * width), 0.0)
        self._store_rows(out, target)
        for name, (_, unseen) in vector.a.sums.items():
            small = vector.small_out.alloc()
            core.duplicate(small[: rows * BLOCK], unseen)
            self._store_blocks(small, target, name)


class Form(NamedTuple):
    """The properties that distinguish tiles with equal rows."""

    is_first: bool
    """Whether it is the first of its piece; *is_last* likewise."""
    is_last: bool
    parity: int
    """Which of two slots holds its state, and its sums."""
    own: int
    """The row where its sums begin in the workspace."""
    digit_bytes: int
    """Distance from the product of one digit to that of the next, if there are several."""


Loaded = Callable[[Form, int, GmView, GmView | None], WidePlane]
"""Loads a plane of rows of a product, from a row of the core on, with a scale."""


class Output:
    """Writes the second half of tiles for a vector core, and combines pieces."""

    def __init__(
        self,
        vector: Vector,
        finish: Finish,
        loaded: Loaded | None = None,
        scale: Callable[..., GmView | None] | None = None,
    ) -> None:
        """*scale* gives the factors of the columns of a tile, if *loaded* multiplies by them."""
        self._vector, self._core, self._memory = vector, vector.core, vector.memory
        self._finish, self._loaded, self._scale = finish, loaded or self._load, scale

    def step(self) -> Step:
        """The second half of all tiles."""
        memory, parts = self._memory, self._vector.parts
        keys = [(*x.ends, x.tile.number % 2, x.tile.piece.row_tile.rows, x.half) for x in parts]
        scale = None if self._scale is None else memory.by_keys(self._scale, parts)
        arguments = column_of(keys, self._form), memory.slots("product", parts), scale
        return step_of(parts, SECOND, VECTOR_CORES, self._tile, *arguments, self.targets())

    def _form(self, is_first: bool, is_last: bool, parity: int, rows: int, half: int) -> Form:
        memory = self._memory
        # Each vector core has its own rows of sums, however many a tile has: otherwise one core
        # could write the next row of tiles while the other one still reads.
        own, _ = rows_of_half(memory.max_rows, half)
        digit_bytes = rows * FLOAT32.nbytes(memory.width) if memory.copies > 1 else 0
        return Form(is_first, is_last, parity, own, digit_bytes)

    def _sums(self, parity: int, row: int, rows: int) -> GmView:
        # Not an argument of the stage, so that the call does not shift it: mte3 stores what mte2
        # loads, and if all calls use the same bytes, the order is checked only once.
        return self._memory.slot("sums", parity, rows, self._memory.width, row).flat

    def targets(self) -> Column:
        """The destinations of the rows of each part, by loop; none before its last tile."""
        return column_of(
            [(x.tile.piece, x.row, x.rows) if x.tile.is_last else () for x in self._vector.parts],
            self._targets,
        )

    def _targets(
        self, piece: Piece | None = None, first: int = 0, rows: int = 0
    ) -> tuple[Target | tuple[GmView, ...], ...]:
        """The destinations of rows [first, first + rows) of *piece*, for each loop."""
        memory, loops = self._memory, pieces(rows, self._finish.loop_rows)
        if piece is None or piece.number is None:
            return tuple(memory.target(piece.row_tile, first + x, n) for x, n in loops if piece)
        return tuple(memory.of_piece(piece.number, first + x, n) for x, n in loops)

    def _tile(
        self,
        form: Form,
        product: GmView,
        scale: GmView | None,
        targets: tuple[Target | tuple[GmView, ...], ...],
    ) -> None:
        """Add (rows, width) of a product to the previous sums, or by loop to *targets*.

        For a piece these are three views of its results.
        """
        core = self._core
        core.cross_core_wait_flag("group", "scalar", PRODUCT_READY)
        if not form.is_first and product.rows:
            # Data stored by the previous tile is loaded again.
            core.sync("mte3", "mte2")
        for number, (row, rows) in enumerate(pieces(product.rows, self._finish.loop_rows)):
            target = targets[number] if targets else ()
            repeat(core, self._rows, form, row, product[row : row + rows, :], scale, target)

    def _load(self, _: Form, __: int, product: GmView, ___: GmView | None) -> WidePlane:
        """Load rows of *product* unchanged."""
        tile = self._core.load_rows(self._vector.wide_in, joined(product))
        return WidePlane(tile, product.rows, product.columns, product.columns)

    def _rows(
        self,
        form: Form,
        row: int,
        product: GmView,
        scale: GmView | None,
        target: Target | tuple[GmView, ...],
    ) -> None:
        """Process some rows of a tile, from *row* on."""
        core, vector, state = self._core, self._vector, self._vector.state
        plane = self._loaded(form, row, product, scale)
        at = form.own + row, plane.rows
        if not form.is_first:
            # plane = previous sums x factor of the row + plane
            tile = core.load_rows(vector.wide_in, self._sums(1 - form.parity, *at))
            old = replace(plane, tile=tile)
            faded = state.of("faded", form.parity, row, plane.rows)
            by_rows(core, "mul", old, state.blocks(faded))
            core.add(plane.whole, old.whole, plane.whole)
            vector.wide_in.free(tile)
        if not form.is_last:
            self._store_plane(plane, self._sums(form.parity, *at))
        else:
            total = state.of("total", form.parity, row, plane.rows)
            by_rows(core, "div", plane, state.blocks(total))
            self.leave(plane, form.parity, row, target)
        vector.wide_in.free(plane.tile)

    def leave(
        self, plane: WidePlane, parity: int, row: int, target: Target | tuple[GmView, ...]
    ) -> None:
        """Store finished rows, from *row* on, to *target*, with their maxima and sums."""
        core, vector, state = self._core, self._vector, self._vector.state
        largest, total = (state.of(name, parity, row, plane.rows) for name in ("largest", "total"))
        if isinstance(target, Target):
            self._finish.rows(plane, target, largest, total)
            return
        self._store_plane(plane, joined(target[0]))
        for row_values, view in zip((largest, total), target[1:], strict=True):
            blocks = state.blocks(row_values)
            small = vector.small_out.alloc()
            core.copy(small[: blocks.count], blocks)
            core.store_rows(vector.small_out, small, joined(view))

    def _store_plane(self, plane: WidePlane, view: GmView) -> None:
        out = self._vector.wide_out.alloc()
        self._core.copy(out[: plane.whole.count], plane.whole)
        self._core.store_rows(self._vector.wide_out, out, view)

    # ---- combining pieces ----

    def combine(self, order: int) -> Step:
        """Combine pieces, up to 8 rows at a time."""
        memory, every = self._memory, self._memory.plan.combined
        parts = [part for own in every for part in own]
        core = np.repeat(np.arange(len(every)), [len(own) for own in every])
        targets = [memory.target(part.row_tile, part.row, part.rows) for part in parts]
        views = zip(*(memory.of_piece(x.first, x.row, x.rows) for x in parts), strict=True)
        arguments = [part.pieces for part in parts], targets, *map(list, views)
        return Step(self._combine, arguments, core, np.full(core.size, order))

    def _combine(
        self, count: int, target: Target, outs: GmView, maxima: GmView, sums: GmView
    ) -> None:
        """Combine *count* pieces of up to 8 rows: see the module."""
        core, vector, size = self._core, self._vector, outs.rows * BLOCK
        # (pieces, rows, 8) of maxima and of sums
        of_max = core.load_rows(vector.mask_in, self._every(maxima, count))
        of_sum = core.load_rows(vector.second_in, self._every(sums, count))
        m, c = of_max[: count * size], of_sum[: count * size]
        each = [slice(index * size, (index + 1) * size) for index in range(count)]
        largest, total = vector.blocks[:size], vector.lanes[:size]
        core.duplicate(largest, LOWEST)
        for piece in each:
            core.max(largest, largest, m[piece])
        with core.independent():
            for piece in each:
                core.sub(m[piece], m[piece], largest)
        core.exp(m, m)
        core.mul(c, c, m)
        core.duplicate(total, 0.0)
        for piece in each:
            core.add(total, total, c[piece])
        with core.independent():
            for piece in each:
                core.div(c[piece], c[piece], total)
        plane = self._weighted(outs, [c[piece] for piece in each])
        self._finish.rows(plane, target, largest, total)
        vector.mask_in.free(of_max)
        vector.second_in.free(of_sum)
        vector.wide_in.free(plane.tile)

    def _weighted(self, outs: GmView, weights: list[Local]) -> WidePlane:
        """(rows, width): the sum of weight x output of all pieces, in order."""
        core, queue, width = self._core, self._vector.wide_in, self._memory.width
        found: list[WidePlane] = []
        for index, weight in enumerate(weights):
            nbytes = index * self._memory.max_rows * outs.row_bytes
            here = outs.shifted_to(outs.offset_bytes + nbytes)
            plane = WidePlane(core.load_rows(queue, joined(here)), outs.rows, width, width)
            by_rows(core, "mul", plane, weight)
            found.append(plane)
            if index:
                core.add(found[0].whole, found[0].whole, plane.whole)
                queue.free(plane.tile)
        return found[0]

    def _every(self, view: GmView, count: int) -> GmView:
        """The same rows of *count* pieces."""
        columns, pitch = view.rows * view.columns, self._memory.max_rows * view.columns
        return GmView(view.name, FLOAT32, count, columns, pitch, view.offset_bytes)
