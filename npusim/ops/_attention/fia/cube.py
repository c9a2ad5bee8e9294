"""What the cube cores of kernel FIA do: scores of a tile, and the product of weights and values.

.. code-block:: text

    query (rows, width) @ key (keys, width).T     -> scores (rows, keys), fp32, to the workspace
    weights (rows, keys) @ value (keys, width)    -> product (rows, width), fp32, to the workspace

A core computes the scores of a tile before it multiplies the weights of the one before, which
vector cores have made meanwhile. In L1 are the queries of a row of tiles (256 of them are a
slice), slices of 256 keys or of 128 x 256 weights, three at a time, and two of 256 values, which
stay there where a tile has no more; in L0 128 x 128 x 128 (ops-transformer@3a280bc
attention/common/op_kernel/arch22/fia_block_cube_nonquant_gqa.h). Assumed: heads that are no 64 or
128 wide go through the same cube in slices that fit, though the vendor has another one for them;
all queries in L1 share one flag, and where not all rows of a tile fit, keys are loaded for each
part of them; each token's heads are loaded by themselves where tokens do not follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from npusim.data.dtypes import INT32
from npusim.data.integers import align_down, align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Fixpipe, Global, LoadNd2Nz, ScalarLoadGlobal
from npusim.kernel.builder import Builder
from npusim.kernel.cube import GmFeed, GmMatrix, L0Pair, L1Operand, l1_rows
from npusim.kernel.program import Program
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, repeat
from npusim.ops._attention.fia.places import Chunk, Memory, PlacedRun
from npusim.ops._attention.fia.schedule import Tile

__all__ = ["PRODUCT_READY", "SCORES_READY", "WEIGHTS_READY", "CubeCore"]

SCORES_READY, WEIGHTS_READY, PRODUCT_READY = 7, 8, 9
"""Flags: the cube to the vector cores, these to the cube, the cube to them again."""
QUERY_BYTES, QUERY_ROWS, QUERY_SLICES = 96 * 1024, 256, 2
SLICE_BYTES, SLICE_KEYS = 64 * 1024, 256
NARROW, WIDE_KEYS = 128, 128
"""Up to so many numbers a head, a slice has 256 keys, else 128."""
KEY_SLICES, VALUE_SLICES = 3, 2
L0 = 128
"""Rows, columns and k of a product in L0."""
LINE_ENTRIES = 16
"""int32 of the block table in a line of the scalar unit's cache."""


class CubeCore:
    """Writes the programs of cube cores."""

    def __init__(self, spec: DeviceSpec, memory: Memory) -> None:
        self._memory, a = memory, memory.plan.rows.a
        self._element, self._width = memory.factor, a.head_size
        self._builder = builder = Builder("fia", spec.cores["aic"], spec.sync, alone=True)
        row_bytes = self._element.nbytes(self._width)
        fits = align_down(SLICE_BYTES // row_bytes, FRACTAL_ROWS)
        self._slice_keys = min(fits, SLICE_KEYS if self._width <= NARROW else WIDE_KEYS)
        self._slice_values = min(fits, SLICE_KEYS)
        rows = align_down(QUERY_BYTES // row_bytes, FRACTAL_ROWS)
        self._slice_rows = min(rows, QUERY_ROWS)
        nbytes = QUERY_SLICES * QUERY_BYTES
        self._queries = builder.queue("l1", nbytes, "mte2", "mte1")
        self._values = builder.queue("l1", SLICE_BYTES, "mte2", "mte1", VALUE_SLICES)
        self._slices = builder.queue("l1", SLICE_BYTES, "mte2", "mte1", KEY_SLICES)
        self._l0 = L0Pair(builder, self._element, L0, L0, L0)
        self._sums = memory.sum_type
        self._l0c = builder.queue("l0c", self._sums.nbytes(L0 * L0), "cube", "fixpipe", 2)
        # What lies in L1: k is the second axis of queries, keys and weights, the first of values.
        self._by_row = GmFeed(builder, GmMatrix("", self._element, 0, 0, k_is_first=False))
        self._by_column = GmFeed(builder, GmMatrix("", self._element, 0, 0, k_is_first=True))

    def program(self, core: int) -> Program:
        """The program of cube core number *core*."""
        before: Tile | None = None
        last, plan = 0, self._memory.plan
        for index, tile in enumerate(plan.tiles(core) if plan.cores else ()):
            self._call_scores(tile, index)
            if before is not None:
                self._call_product(before, index - 1)
            before, last = tile, index
        if before is not None:
            self._call_product(before, last)
        return self._builder.build()

    # ---- scores ----

    def _call_scores(self, tile: Tile, index: int) -> None:
        row_tile, memory = tile.piece.row_tile, self._memory
        place, runs = memory.placed(memory.query, row_tile, 0, row_tile.rows)
        scores = memory.slot("scores", index, row_tile.rows, tile.keys)
        shifts = {"query": self._element.nbytes(place), "scores": scores.offset_bytes}
        key_shifts, chunks = self._relative("key", tile)
        form = runs, tile.is_first, tile.is_last
        self._builder.call_part(
            ("scores", form, chunks, scores.shifted_to(0)),
            shifts | key_shifts,
            partial(self._scores, form, chunks, scores.shifted_to(0)),
        )

    def _relative(self, name: str, tile: Tile) -> tuple[dict[str, int], tuple[Chunk, ...]]:
        """The chunks of *tile* from where its first one begins, and how far that is."""
        chunks = self._memory.keys(name, tile)
        first = chunks[0]
        shifts = {name: self._element.nbytes(first.offset)}
        line = 0
        if first.entry is not None:
            # Which entries begin a line of the cache is part of what is written.
            line = first.entry // LINE_ENTRIES * LINE_ENTRIES
            shifts["block_table"] = INT32.nbytes(line)
        return shifts, tuple(
            chunk._replace(
                offset=chunk.offset - first.offset,
                entry=None if chunk.entry is None else chunk.entry - line,
            )
            for chunk in chunks
        )

    def _scores(
        self,
        form: tuple[tuple[PlacedRun, ...], bool, bool],
        chunks: tuple[Chunk, ...],
        scores: GmView,
    ) -> None:
        """(rows, width) @ (keys, width).T -> (rows, keys), a slice of keys at a time."""
        runs, is_first, is_last = form
        builder = self._builder
        for first, rows in pieces(scores.rows, QUERY_SLICES * self._slice_rows):
            # All rows of a tile stay in L1 until the last of its keys, if they fit.
            stays = rows == scores.rows
            if is_first or not stays:
                self._load_queries(runs, first, rows)
            own = scores[first : first + rows, :]
            for key, keys in pieces(scores.columns, self._slice_keys):
                slot = self._load_keys("key", chunks, key, keys, self._slices.alloc())
                self._slices.enque(slot)
                here = own[:, key : key + keys]
                repeat(builder, self._slice_scores, here, keeps_slots=True)
            if is_last or not stays:
                self._queries.free(*self._queries.in_use)
        builder.cross_core_set_flag("group", "fixpipe", SCORES_READY)

    def _load_queries(self, runs: tuple[PlacedRun, ...], first: int, rows: int) -> None:
        """Queries [first, first + rows) of a tile, each slice as Nz `(width / 16, rows, 16)`."""
        slot = self._queries.alloc()
        for part, count in pieces(rows, self._slice_rows):
            start = self._element.nbytes(part * self._width)
            padded = align_up(count, FRACTAL_ROWS)
            for row, view in self._clipped(runs, first + part, count):
                self._to_l1(slot, start, row, view, padded)
        self._queries.enque(slot)
        self._queries.deque()

    def _clipped(
        self, runs: tuple[PlacedRun, ...], first: int, count: int
    ) -> Iterator[tuple[int, GmView]]:
        """The matrices of *runs* within rows [first, first + count), counted from *first*."""
        memory = self._memory
        for placed in runs:
            for row, view in memory.views(memory.query, placed, joins_heads=False):
                low, high = max(row, first), min(row + view.rows, first + count)
                if low < high:
                    yield low - first, view[low - row : high - row, :]

    def _to_l1(self, slot: Slot, start: int, row: int, view: GmView, padded: int) -> None:
        """*view* as rows from *row* on of the Nz matrix of *padded* rows at byte *start*."""
        width = BLOCK_BYTES // self._element.nbytes(1)
        blocks = ceil_div(view.columns, width)
        elements = ((blocks - 1) * padded + view.rows) * width
        dst = slot.of(self._element, elements, start + row * BLOCK_BYTES)
        self._builder.emit(LoadNd2Nz(dst, view.operand, padded))

    def _load_keys(
        self, name: str, chunks: tuple[Chunk, ...], key: int, keys: int, slot: Slot
    ) -> Slot:
        """Keys or values [key, key + keys) of a tile into *slot*, a copy a chunk."""
        padded = l1_rows(self._element, keys, name == "value")
        pitch = self._memory.plan.rows.a.keys(name).token_pitch
        for chunk in chunks:
            low, high = max(chunk.row, key), min(chunk.row + chunk.rows, key + keys)
            if low >= high:
                continue
            offset = self._element.nbytes(chunk.offset + (low - chunk.row) * pitch)
            view = GmView(name, self._element, high - low, self._width, pitch, offset)
            if chunk.entry is None:
                self._to_l1(slot, 0, low - key, view, padded)
            else:
                entry = GmView("block_table", INT32, 1, 1, 0, INT32.nbytes(chunk.entry))
                # The first number of a line is read from global memory.
                is_cached = chunk.row != low or (chunk.entry % LINE_ENTRIES != 0 and chunk.row != 0)
                stage = self._page
                repeat(self._builder, stage, slot, low - key, view, padded, entry, is_cached)
        return slot

    def _page(
        self, slot: Slot, row: int, view: GmView, padded: int, entry: GmView, is_cached: bool
    ) -> None:
        """A page: where it lies stands in the block table."""
        place = Global(entry.name, entry.offset_bytes, INT32.nbytes(1))
        self._builder.emit(ScalarLoadGlobal("block", place, INT32, is_cached))
        self._to_l1(slot, 0, row, view, padded)

    def _slice_scores(self, scores: GmView) -> None:
        """The columns of a slice of keys: (rows, width) @ (width, keys)."""
        keys = scores.columns
        (queries,) = self._queries.in_use
        slot = self._slices.deque()
        b = L1Operand(slot, self._by_row, keys, self._width)
        for first, count in pieces(scores.rows, self._slice_rows):
            start = queries.offset_bytes + self._element.nbytes(first * self._width)
            nbytes = self._element.nbytes(align_up(count, FRACTAL_ROWS) * self._width)
            part = Slot("l1", start, nbytes, event=-1)
            a = L1Operand(part, self._by_row, count, self._width)
            for row, rows in pieces(count, L0):
                for column, columns in pieces(keys, L0):
                    here = scores[first + row : first + row + rows, column : column + columns]
                    steps = pieces(self._width, L0)
                    total = self._l0c.alloc()
                    for k, depth in steps:
                        self._multiply(total, (a, row, k), (b, column, k), here, depth, k == 0)
                    self._drain(total, here)
        self._slices.free(slot)

    # ---- product ----

    def _call_product(self, tile: Tile, index: int) -> None:
        memory = self._memory
        rows = memory.copies * tile.piece.row_tile.rows
        weights = memory.slot("weights", index, rows, tile.keys)
        product = memory.slot("product", index, rows, self._width)
        shifts = {"weights": weights.offset_bytes, "product": product.offset_bytes}
        value_shifts, chunks = self._relative("value", tile)
        plain = weights.shifted_to(0), product.shifted_to(0)
        self._builder.call_part(
            ("product", chunks, *plain),
            shifts | value_shifts,
            partial(self._product, chunks, *plain),
        )

    def _product(self, chunks: tuple[Chunk, ...], weights: GmView, product: GmView) -> None:
        """(rows, keys) @ (keys, width) -> (rows, width), 128 rows at a time."""
        builder, keys = self._builder, weights.columns
        spans = tuple(pieces(keys, self._slice_values))
        stays = len(spans) <= VALUE_SLICES
        if stays:
            for key, count in spans:
                self._load_values(chunks, key, count)
            kept = [self._values.deque() for _ in spans]
        is_ready = False
        for row, rows in pieces(product.rows, L0):
            for column, columns in pieces(self._width, L0):
                total = self._l0c.alloc()
                here = product[row : row + rows, column : column + columns]
                for number, (key, count) in enumerate(spans):
                    if not stays:
                        self._load_values(chunks, key, count)
                    if not is_ready:
                        builder.cross_core_wait_flag("group", "mte2", WEIGHTS_READY)
                        is_ready = True
                    values = kept[number] if stays else self._values.deque()
                    part = weights[row : row + rows, key : key + count]
                    self._add(total, part, values, here, column, key == 0)
                    if not stays:
                        self._values.free(values)
                self._drain(total, here)
        for values in kept if stays else ():
            self._values.free(values)
        builder.cross_core_set_flag("group", "fixpipe", PRODUCT_READY)

    def _load_values(self, chunks: tuple[Chunk, ...], key: int, count: int) -> None:
        self._values.enque(self._load_keys("value", chunks, key, count, self._values.alloc()))

    def _add(
        self,
        total: Slot,
        weights: GmView,
        values: Slot,
        product: GmView,
        column: int,
        begins: bool,
    ) -> None:
        """Add (rows, keys) of weights @ (keys, columns) of a slice of values to *total*."""
        keys = weights.columns
        slot = self._slices.alloc()
        self._to_l1(slot, 0, 0, weights, align_up(weights.rows, FRACTAL_ROWS))
        self._slices.enque(slot)
        slot = self._slices.deque()
        a = L1Operand(slot, self._by_row, weights.rows, keys)
        b = L1Operand(values, self._by_column, self._width, keys)
        for k, depth in pieces(keys, L0):
            is_first = begins and k == 0
            self._multiply(total, (a, 0, k), (b, column, k), product, depth, is_first)
        self._slices.free(slot)

    # ---- both ----

    def _multiply(
        self,
        total: Slot,
        left: tuple[L1Operand, int, int],
        right: tuple[L1Operand, int, int],
        result: GmView,
        depth: int,
        begins: bool,
    ) -> None:
        """(rows, depth) @ (depth, columns) into *total*; operands with the first row and k."""
        m, n = result.rows, result.columns
        count = align_up(m, FRACTAL_ROWS) * align_up(n, FRACTAL_ROWS)
        (a, row, k), (b, column, _) = left, right
        a = L1Operand(a.slot, a.feed, a.extent, a.count, row, k)
        b = L1Operand(b.slot, b.feed, b.extent, b.count, column, k)
        dst = total.of(self._sums, count)
        self._l0.multiply(dst, a, b, (m, n, depth), "zero" if begins else "accumulate")

    def _drain(self, total: Slot, result: GmView) -> None:
        """L0C `(columns / 16, rows, 16)` -> *result* in global memory."""
        m, n = result.rows, result.columns
        self._l0c.enque(total)
        total = self._l0c.deque()
        padded = align_up(m, FRACTAL_ROWS)
        src = total.of(self._sums, padded * align_up(n, FRACTAL_ROWS))
        self._builder.emit(Fixpipe(result.operand, src, m, n, padded, self._sums))
        self._l0c.free(total)
