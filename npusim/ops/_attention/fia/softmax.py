"""The first half of a vector core's work: scores to weights, and the state of their rows.

.. code-block:: text

    s = scores * scale, hidden ones -1e12        some rows at a time, 8192 numbers
    m' = max(m, max(s));  e = exp(m - m');  p = exp(s - m');  l' = e * l + sum(p)
    weights = p in 16 bits, ties away from zero

The steps are those of SoftmaxFlashV2 of asc-devkit (impl/adv_api/detail/activation/softmax) in
update mode; a mask becomes fp16, is compared with 0, and selects (SelectWithBytesMask there).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8
from npusim.data.integers import align_down, align_up
from npusim.isa import (
    Binary,
    BinaryScalar,
    Cast,
    CompareScalar,
    Copy,
    Duplicate,
    Local,
    Select,
    Unary,
)
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, load, repeat, store
from npusim.kernel.wide_plane import WidePlane, by_rows, reduce_rows
from npusim.ops._attention.description import MASK_EXTENT
from npusim.ops._attention.fia.buffers import Buffers, State
from npusim.ops._attention.fia.cube import SCORES_READY, WEIGHTS_READY
from npusim.ops._attention.fia.places import Memory, joined
from npusim.ops._attention.fia.rows import Run
from npusim.ops._attention.fia.schedule import Tile
from npusim.ops._attention.fia.tiles import KEYS_ALIGNED

__all__ = ["HIDDEN", "MaskStep", "Softmax", "rows_of_half"]

HIDDEN = -1e12
"""What a hidden score is replaced by (fia_block_vec_nonquant.h)."""
NUMBERS = 8192
"""Scores at a time."""
ROWS_OF_LOOP = 8
"""Where state is a number a row, loops take multiples of so many rows, whole blocks of state: an
assumed reading of the rule that tiles of many rows do."""
SPLIT_ROWS = 16
"""Rows that the two vector cores of a group do not share."""
COMPARED = 128
"""fp16 in a repeat, of which Compare takes whole ones."""
BLOCK = 8


def rows_of_half(rows: int, half: int) -> tuple[int, int]:
    """The first row of a tile of *rows* that vector core *half* has, and how many.

    >>> [rows_of_half(rows, 1) for rows in (16, 17, 512)]
    [(16, 0), (16, 1), (256, 256)]
    """
    first = rows
    if rows > SPLIT_ROWS:
        units = (rows + SPLIT_ROWS - 1) // SPLIT_ROWS
        first = (units + 1) // 2 * SPLIT_ROWS
    return (0, first) if half == 0 else (first, rows - first)


class MaskRun(NamedTuple):
    """Rows of a mask: *tokens* of them for *copies* rows of scores each."""

    row: int
    tokens: int
    copies: int
    offset: int
    """Bytes, counted from the first run."""


class MaskStep(NamedTuple):
    """Hide some of the scores of a loop."""

    visible: Literal["eq", "ne"]
    """Whether a key is visible where the mask is zero, or where it is not."""
    offset: int
    """Bytes to the first run."""
    runs: tuple[MaskRun, ...]
    pitch: int


@dataclass(frozen=True, slots=True)
class _Loop:
    """Rows that go through the unified buffer at a time."""

    row: int
    rows: int
    steps: tuple[MaskStep, ...] = ()
    mask: GmView | None = None
    """Where the first of the steps finds its first row."""

    def from_mask(self, nbytes: int) -> _Loop:
        """The same, its mask *nbytes* nearer."""
        if self.mask is None:
            return self
        return replace(self, mask=self.mask.shifted_to(self.mask.offset_bytes - nbytes))


class Softmax:
    """Writes the first half of tiles for a vector core."""

    def __init__(self, builder: Builder, memory: Memory, buffers: Buffers, state: State) -> None:
        self._builder, self._memory = builder, memory
        self._buffers, self._state = buffers, state

    def call(self, tile: Tile, index: int, half: int) -> None:
        """Write the call for tile number *index* of a core, its rows of *half*."""
        memory, row_tile = self._memory, tile.piece.row_tile
        first, rows = rows_of_half(row_tile.rows, half)
        scores = memory.slot("scores", index, row_tile.rows, tile.keys)[first : first + rows, :]
        weights = memory.slot("weights", index, row_tile.rows, tile.keys)[first : first + rows, :]
        shifts = {"scores": scores.offset_bytes, "weights": weights.offset_bytes}
        loops = list(self._loops(tile, first, rows))
        base = next((loop.mask.offset_bytes for loop in loops if loop.mask is not None), None)
        if base is not None:
            shifts["atten_mask"] = base
            loops = [loop.from_mask(base) for loop in loops]
        plain = tile.is_first, index % 2, scores.shifted_to(0), weights.shifted_to(0)
        key = *plain, tuple(loops)
        self._builder.call(("softmax", *key), shifts, partial(self._tile, *key))

    def _loops(self, tile: Tile, first: int, rows: int) -> Iterator[_Loop]:
        most = NUMBERS // align_up(tile.keys, KEYS_ALIGNED)
        if not self._memory.plan.sizes.is_eightfold:
            most = align_down(most, ROWS_OF_LOOP)
        for row, count in pieces(rows, max(1, most)):
            masks = tuple(self._masks(tile, first + row, count))
            if not masks:
                yield _Loop(row, count)
                continue
            # Offsets are counted from the first mask, which the view stands for.
            base = masks[0].offset
            steps = tuple(mask._replace(offset=mask.offset - base) for mask in masks)
            view = GmView("atten_mask", UINT8, 1, tile.keys, 0, base)
            yield _Loop(row, count, steps, view)

    # ---- masks ----

    def _masks(self, tile: Tile, row: int, count: int) -> Iterator[MaskStep]:
        """What hides scores of rows [row, row + count) of *tile*; nothing where all are seen."""
        plan, row_tile = self._memory.plan, tile.piece.row_tile
        request, place = row_tile.request, plan.rows.mask
        runs = tuple(plan.rows.runs(request, row_tile.row + row, count))
        if place is not None:
            start = request * place.request + tile.key
            offsets = [start + run.token * place.pitch for run in runs]
            yield _mask_step("eq", place.pitch, runs, offsets)
        before, after = plan.rows.window(request)
        if after is not None and min(run.token for run in runs) + after < tile.key + tile.keys - 1:
            offsets = [_stencil(run.token + after - tile.key, run, tile.keys) for run in runs]
            yield _mask_step("eq", MASK_EXTENT, runs, offsets)
        if before is not None:
            last = max(run.token + run.tokens - 1 for run in runs)
            if last + before > tile.key:
                edges = [run.token + before - 1 - tile.key for run in runs]
                offsets = [
                    _stencil(edge, run, tile.keys) for edge, run in zip(edges, runs, strict=True)
                ]
                yield _mask_step("ne", MASK_EXTENT, runs, offsets)

    def _hide(self, plane: WidePlane, mask: MaskStep, place: GmView) -> None:
        """Replace the scores of *plane* that *mask* hides."""
        builder, buffers = self._builder, self._buffers
        slot = buffers.mask_in.alloc()
        pitch = plane.pitch
        for run in mask.runs:
            offset = place.offset_bytes + mask.offset + run.offset
            view = GmView(place.name, UINT8, run.tokens, plane.columns, mask.pitch, offset)
            if run.copies == 1:
                _fill(builder, slot, run.row, view, pitch)
                continue
            for token in range(run.tokens):
                here = view[token : token + 1, :]
                _fill(builder, slot, run.row + token * run.copies, here, pitch)
        buffers.mask_in.enque(slot)
        slot = buffers.mask_in.deque()
        self._copy_rows(slot, mask, pitch)
        count = align_up(plane.rows * pitch, COMPARED)
        half = buffers.half_mask.of(FLOAT16, count)
        bits = buffers.mask_bits.of(UINT8, count // 8)
        step(builder, Cast(half, slot.of(UINT8, count), "none"))
        buffers.mask_in.free(slot)
        step(builder, CompareScalar(mask.visible, bits, half, 0.0))
        whole = plane.whole
        own = Local(bits.buffer, bits.offset_bytes, UINT8, whole.count // 8)
        step(builder, Select(whole, own, whole, HIDDEN))

    def _copy_rows(self, slot: Slot, mask: MaskStep, pitch: int) -> None:
        """The row of a token for its other heads."""
        copies = 0
        for run in mask.runs:
            for token in range(run.tokens):
                first = run.row + token * run.copies
                src = slot.of(FLOAT16, pitch // 2, first * pitch)
                for copy in range(1, run.copies):
                    dst = slot.of(FLOAT16, pitch // 2, (first + copy) * pitch)
                    self._builder.emit(Copy(dst, src))
                    copies += 1
        if copies:
            self._builder.barrier("vector")

    # ---- a tile ----

    def _tile(
        self,
        is_first: bool,
        parity: int,
        scores: GmView,
        weights: GmView,
        loops: tuple[_Loop, ...],
    ) -> None:
        """(rows, keys) of scores -> weights."""
        builder, state = self._builder, self._state
        builder.cross_core_wait_flag("group", "mte2", SCORES_READY)
        if is_first and scores.rows:
            largest = state.of("largest", parity, 0, scores.rows)
            total = state.of("total", parity, 0, scores.rows)
            builder.emit(Duplicate(largest, float("-inf")), Duplicate(total, 0.0))
            builder.barrier("vector")
        for loop in loops:
            rows = slice(loop.row, loop.row + loop.rows)
            states = parity, parity if is_first else 1 - parity
            here = loop.row, scores[rows, :], weights[rows, :]
            repeat(builder, self._loop, *states, *here, loop.steps, loop.mask)
        if not loops:
            # A core without rows must not get ahead of the cube either.
            builder.sync("mte2", "mte3")
        builder.cross_core_set_flag("group", "mte3", WEIGHTS_READY)

    def _loop(
        self,
        parity: int,
        before: int,
        row: int,
        scores: GmView,
        weights: GmView,
        steps: tuple[MaskStep, ...],
        mask: GmView | None,
    ) -> None:
        """Some rows of a tile, from *row* on; the state of the tile before is number *before*."""
        builder, buffers, a = self._builder, self._buffers, self._memory.plan.rows.a
        pitch = align_up(scores.columns, KEYS_ALIGNED)
        slot = load(builder, buffers.wide_in, joined(scores), pitch=pitch)
        plane = WidePlane(slot, scores.rows, scores.columns, pitch)
        step(builder, BinaryScalar("mul", plane.whole, plane.whole, a.scale))
        if mask is not None:
            for hiding in steps:
                self._hide(plane, hiding, mask)
        self._exponentials(row, parity, before, plane)
        out = buffers.wide_out.alloc()
        step(builder, Cast(out.of(a.element, plane.whole.count), plane.whole, "round"))
        store(builder, buffers.wide_out, out, joined(weights), pitch=pitch)
        self._add_sums(row, parity, before, plane)
        buffers.wide_in.free(slot)

    def _exponentials(self, row: int, parity: int, before: int, plane: WidePlane) -> None:
        """Scores of *plane* to exp(scores - the largest so far)."""
        builder, buffers, state = self._builder, self._buffers, self._state
        place = row, plane.rows
        # (rows, keys) -> (rows,), or (rows, 8) where state is kept so
        found = buffers.row.of(FLOAT32, plane.rows)
        reduce_rows(builder, "max", found, plane, buffers.lanes)
        largest = state.kept(found)
        old = state.of("largest", before, *place)
        faded = state.of("faded", parity, *place)
        step(builder, Binary("max", largest, old, largest))
        step(builder, Binary("sub", faded, old, largest))
        step(builder, Unary("exp", faded, faded))
        step(builder, Copy(state.of("largest", parity, *place), largest))
        by_rows(builder, "sub", plane, state.blocks(largest))
        step(builder, Unary("exp", plane.whole, plane.whole))

    def _add_sums(self, row: int, parity: int, before: int, plane: WidePlane) -> None:
        """The sums of rows, added to what is left of those before."""
        builder, buffers, state = self._builder, self._buffers, self._state
        place = row, plane.rows
        found = buffers.row.of(FLOAT32, plane.rows)
        reduce_rows(builder, "sum", found, plane, buffers.lanes)
        sums = state.kept(found)
        total, old = state.of("total", parity, *place), state.of("total", before, *place)
        step(builder, Binary("mul", total, state.of("faded", parity, *place), old))
        step(builder, Binary("add", total, total, sums))


def _fill(builder: Builder, slot: Slot, row: int, view: GmView, pitch: int) -> None:
    """*view* into rows from *row* on of *slot*, *pitch* bytes apart."""
    dst = slot.of(UINT8, (view.rows - 1) * pitch + view.columns, row * pitch)
    builder.data_copy(dst, view.operand, pitch if view.rows > 1 else 0)


def _stencil(edge: int, run: Run, keys: int) -> int:
    """Where in the triangle a run begins whose first token sees keys up to *edge* of a tile.

    Beyond the triangle's end there is a row that hides none of the tile, or a column that hides
    all of it from all tokens of the run.
    """
    if edge >= 0:
        return min(edge, MASK_EXTENT - run.tokens) * MASK_EXTENT
    return min(-edge, MASK_EXTENT - keys)


def _mask_step(
    visible: Literal["eq", "ne"], pitch: int, runs: tuple[Run, ...], offsets: list[int]
) -> MaskStep:
    first = offsets[0]
    found = tuple(
        MaskRun(run.row, run.tokens, run.heads, offset - first)
        for run, offset in zip(runs, offsets, strict=True)
    )
    return MaskStep(visible, first, found, pitch)
