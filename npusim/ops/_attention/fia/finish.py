"""Rows of kernel FIA that are done: rounded and stored, with the logarithms of their sums.

fp16 is rounded with ties away from zero, bf16 to even (ops-transformer@3a280bc
attention/common/op_kernel/arch22, fia_block_vec_nonquant.h). How rows are found that see nothing,
and how outputs are stored whose rows do not follow each other, is assumed.
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
from npusim.kernel.views import GmView, repeat
from npusim.kernel.wide_plane import LANES, WidePlane, by_rows
from npusim.ops._attention.description import Side
from npusim.ops._attention.fia.buffers import Buffers, State
from npusim.ops._attention.fia.places import Memory, PlacedRun, joined
from npusim.ops._attention.fia.schedule import RowTile
from npusim.ops._attention.fia.softmax import HIDDEN

__all__ = ["Finish", "Written"]

NUMBERS = 8192
"""Of products at a time."""
LOOP_ROWS, MOST_ROWS = 8, 256
"""Multiples of the one are taken, up to the other: a block each fills what state leaves by."""
BLOCK = 8
"""float32 in a data block."""


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


class Finish:
    """Writes the end of rows for a vector core."""

    def __init__(self, builder: Builder, memory: Memory, buffers: Buffers, state: State) -> None:
        self._builder, self._memory = builder, memory
        self._buffers, self._state = buffers, state
        self._a = memory.plan.rows.a
        self._rounding: RoundMode = "round" if self._a.element is FLOAT16 else "rint"
        self._hides = bool(self._a.inner_precise & 2) and memory.plan.rows.mask is not None

    # ---- where rows go ----

    @property
    def loop_rows(self) -> int:
        return min(align_down(NUMBERS // self._memory.width, LOOP_ROWS), MOST_ROWS)

    def written(self, row_tile: RowTile, row: int, rows: int) -> Written:
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

    def with_places(
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

    # ---- rows that are done ----

    def finish(
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
                view = joined(view)
                src = out.of(element, view.rows * view.columns, element.nbytes(row * width))
                builder.data_copy(view.operand, src, view.row_bytes if view.rows > 1 else 0)
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
            for row, rows in pieces(tile.rows, self.loop_rows):
                self.with_places(self._empty, [self.written(tile, row, rows)], rows)

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
