"""What a cube core does in FAI: Q @ K^T of a tile, and two tiles later P @ V.

.. code-block:: text

    L1    Q of the task 64 KiB    K of 128 keys, or P of 256: 2 x 64 KiB    V of 512 keys
    L0    two of A, two of B, 128 x 128 each; L0C two of 128 x 128 fp32, no unit flag

Sources: see :mod:`npusim.ops._attention.fai` (fused_block_mmad_qk.hpp, fused_block_mmad_pv.hpp).
Assumed: that blocks of the cache are looked up once more for the values, in a cache that holds
them, and that FAI-DEC loads Q of each head of keys anew for each tile.
"""

from __future__ import annotations

from collections.abc import Sequence

from npusim.data.dtypes import FLOAT32, INT32, DType
from npusim.data.integers import align_up, ceil_div
from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.isa import BLOCK_BYTES, Fixpipe, LoadNd2Nz, ScalarLoadGlobal
from npusim.kernel.builder import Builder
from npusim.kernel.cube import GmFeed, GmMatrix, L0Pair, L1Operand
from npusim.kernel.queues import Slot
from npusim.kernel.rows import pieces
from npusim.kernel.views import GmView, repeat
from npusim.ops._attention.description import Attention
from npusim.ops._attention.fai.places import KEYS, Piece, Places
from npusim.ops._attention.fai.tasks import TASK_ROWS, TILE, Form, Tile
from npusim.ops._attention.fai.tiling import Workspaces

__all__ = ["AHEAD", "PROBABILITIES_READY", "PRODUCTS_READY", "SCORES_READY", "CubeCore"]

AHEAD = 2
"""Tiles by which Q @ K^T is ahead of P @ V."""
SCORES_READY, PROBABILITIES_READY, PRODUCTS_READY = 1, 2, 3
"""Flags between the cores of a group."""
TILE_N, TILE_K = 128, 128
"""Columns of a product, and its k, that L0 holds."""
CHUNK_KEYS = 256
"""Keys of the probabilities in L1 at a time."""
QUERY_COLUMNS = 256
"""Columns of Q and of K that L1 has room for."""
FEW_FRACTALS = 10
"""Of an output of fewer fractals than that each Mmad waits until the one before is over."""
WIDE_PITCH = 65536
"""Elements from row to row from which on ND to Nz takes rows one by one."""


class CubeCore:
    """The buffers of a cube core, and how it works on a task."""

    def __init__(self, builder: Builder, a: Attention, places: Places) -> None:
        self._builder, self._a, self._places = builder, a, places
        self._work = Workspaces(a)
        dtype, size, queue = a.element, a.head_size, builder.queue
        buffer_bytes = dtype.nbytes(TILE_N * QUERY_COLUMNS)
        self._query = queue("l1", buffer_bytes, "mte2", "mte1")
        self._pieces = queue("l1", buffer_bytes, "mte2", "mte1", 2)
        self._values = queue("l1", dtype.nbytes(TILE * size), "mte2", "mte1")
        self._l0 = L0Pair(builder, dtype, TASK_ROWS, TILE_N, TILE_K)
        self._totals = queue("l0c", FLOAT32.nbytes(TASK_ROWS * TILE_N), "cube", "fixpipe", 2)
        # Q and K (rows, columns), P (rows, keys); V (keys, columns): k is its first axis.
        self._rows = _feed(builder, dtype, k_is_first=False)
        self._keys_first = _feed(builder, dtype, k_is_first=True)

    def task(self, form: Form) -> None:
        """Write a task of *form*, at the first places of all tensors."""
        if form.keys == 0:
            return
        # Several heads of keys take turns: Q of each is loaded for each tile.
        stays = form.kv_heads == 1
        if stays:
            self._load_query(*self._places.query(form))
        tiles = list(form.tiles)
        for index in range(len(tiles) + AHEAD):
            for head in range(form.kv_heads if index < len(tiles) else 0):
                self._scores(form, tiles[index], head)
            if stays and index == len(tiles) - 1:
                self._free_query()
            for head in range(form.kv_heads if index >= AHEAD else 0):
                self._products(form, tiles[index - AHEAD], head)

    def _load_query(self, *parts: tuple[int, GmView]) -> None:
        """Q `(heads x tokens, columns)` into L1: views of it, and the row that each begins at."""
        slot = self._query.alloc()
        rows = sum(view.rows for _, view in parts)
        for row, view in parts:
            self._load(slot, view, rows, row)
        self._query.enque(slot)
        self._query.deque()

    def _free_query(self) -> None:
        """Give Q back, behind the last product that takes it."""
        (query,) = self._query.in_use
        self._query.free(query)

    def _load(self, slot: Slot, view: GmView, rows: int, row: int) -> None:
        """*view* into L1, from row number *row* of a matrix of so many *rows* on."""
        rows_padded = align_up(rows, FRACTAL_ROWS)
        step = 1 if view.pitch >= WIDE_PITCH else view.rows
        for first, count in pieces(view.rows, step):
            part = view[first : first + count, :]
            # (count, columns) -> Nz (columns / C0, rows_padded, C0)
            width = c0(view.dtype)
            blocks = ceil_div(view.columns, width)
            elements = ((blocks - 1) * rows_padded + count) * width
            dst = slot.of(view.dtype, elements, (row + first) * BLOCK_BYTES)
            self._builder.emit(LoadNd2Nz(dst, part.operand, rows_padded))

    def _look_up(self, pieces_: Sequence[Piece]) -> None:
        """Find the blocks of the cache that *pieces_* are in."""
        for piece in pieces_:
            if piece.entry is not None:
                self._builder.emit(
                    ScalarLoadGlobal("page", piece.entry.operand, INT32, piece.is_cached)
                )

    # ---- Q @ K^T ----

    def _scores(self, form: Form, tile: Tile, head: int) -> None:
        """The scores of *tile* with head of keys number *head*, to its slot."""
        found = self._places.keys("key", form, tile, KEYS, head)
        of_head = form.rows // form.kv_heads
        here = slice(head * of_head, (head + 1) * of_head)
        scores = self._work.scores(tile.index, form.rows, tile.keys)[here, :]
        query = [] if form.kv_heads == 1 else [self._places.heads(form, head)]
        repeat(
            self._builder,
            self._write_scores,
            scores,
            tuple(len(part) for part in found),
            tuple(piece.is_cached for part in found for piece in part),
            head == form.kv_heads - 1,
            len(query),
            *query,
            *(view for part in found for piece in part for view in piece.views),
        )

    def _write_scores(
        self,
        scores: GmView,
        widths: tuple[int, ...],
        cached: tuple[bool, ...],
        is_last: bool,
        own: int,
        *views: GmView,
    ) -> None:
        """Scores `(rows, keys)` of keys, of which *widths* belong to 128 each.

        *views* are *own* views of Q, if it is not there yet, and those of the keys.
        """
        flat = views[own:]
        for view in views[:own]:
            self._load_query((0, view))
        (query,) = self._query.in_use
        left, start = Piece.listed(cached, flat), 0
        for width in widths:
            part, left = left[:width], left[width:]
            count = sum(piece.keys.rows for piece in part)
            # (count, columns) of K in L1
            slot = self._pieces.alloc()
            row = 0
            for piece in part:
                self._look_up([piece])
                self._load(slot, piece.keys, count, row)
                row += piece.keys.rows
            self._pieces.enque(slot)
            slot = self._pieces.deque()
            self._score(query, slot, scores[:, start : start + count])
            self._pieces.free(slot)
            start += count
        if own:
            self._free_query()
        if is_last:
            self._builder.cross_core_set_flag("group", "fixpipe", SCORES_READY)

    def _score(self, query: Slot, keys: Slot, scores: GmView) -> None:
        """(rows, columns) @ (keys, columns)^T -> (rows, keys)."""
        rows, count, size = scores.rows, scores.columns, self._a.head_size
        total = self._totals.alloc()
        for k, depth in pieces(size, TILE_K):
            a = L1Operand(query, self._rows, rows, size, k=k)
            b = L1Operand(keys, self._rows, count, size, k=k)
            self._multiply(total, a, b, (rows, count, depth), is_first=k == 0)
        self._drain(total, scores)

    # ---- P @ V ----

    def _products(self, form: Form, tile: Tile, head: int) -> None:
        """The products of *tile* with head of values number *head*, to its slot."""
        (found,) = self._places.keys("value", form, tile, TILE, head)
        of_head = form.rows // form.kv_heads
        here = slice(head * of_head, (head + 1) * of_head)
        repeat(
            self._builder,
            self._write_products,
            self._work.products(tile.index, form.rows)[here, :],
            self._work.probabilities(tile.index, form.rows, tile.keys)[here, :],
            any(piece.entry is not None for piece in found),
            head == 0,
            head == form.kv_heads - 1,
            *(view for piece in found for view in piece.views),
        )

    def _write_products(
        self,
        products: GmView,
        probabilities: GmView,
        has_entries: bool,
        is_first: bool,
        is_last: bool,
        *flat: GmView,
    ) -> None:
        """P `(rows, keys)` @ V -> `(rows, columns)`; V is loaded before P is there."""
        count = probabilities.columns
        values = self._values.alloc()
        row = 0
        for piece in Piece.listed((True,) * (len(flat) // (1 + has_entries)), flat):
            self._look_up([piece])
            self._load(values, piece.keys, count, row)
            row += piece.keys.rows
        self._values.enque(values)
        values = self._values.deque()
        for n, columns in pieces(self._a.head_size, TILE_N):
            total = self._totals.alloc()
            for start, width in pieces(count, CHUNK_KEYS):
                if is_first and n == start == 0:
                    wait = self._builder.cross_core_wait_flag
                    wait("group", "mte2", PROBABILITIES_READY)
                self._add(total, values, probabilities, (start, width), (n, columns))
            self._drain(total, products[:, n : n + columns])
        self._values.free(values)
        if is_last:
            self._builder.cross_core_set_flag("group", "fixpipe", PRODUCTS_READY)

    def _add(
        self,
        total: Slot,
        values: Slot,
        probabilities: GmView,
        keys: tuple[int, int],
        columns: tuple[int, int],
    ) -> None:
        """Add what *keys*, the first and how many, give for *columns*, likewise."""
        (start, width), (n, extent) = keys, columns
        rows, count, size = probabilities.rows, probabilities.columns, self._a.head_size
        # (rows, width) of P in L1
        slot = self._pieces.alloc()
        self._load(slot, probabilities[:, start : start + width], rows, 0)
        self._pieces.enque(slot)
        slot = self._pieces.deque()
        for k, depth in pieces(width, TILE_K):
            a = L1Operand(slot, self._rows, rows, width, k=k)
            b = L1Operand(values, self._keys_first, size, count, n, start + k)
            self._multiply(total, a, b, (rows, extent, depth), is_first=start + k == 0)
        self._pieces.free(slot)

    # ---- both ----

    def _multiply(
        self,
        total: Slot,
        a: L1Operand,
        b: L1Operand,
        shape: tuple[int, int, int],
        *,
        is_first: bool,
    ) -> None:
        """Start *total* `(m, n)` with a product, or add one."""
        m, n, _ = shape
        m_padded, n_padded = align_up(m, FRACTAL_ROWS), align_up(n, FRACTAL_ROWS)
        dst = total.of(FLOAT32, m_padded * n_padded)
        self._l0.multiply(dst, a, b, shape, "zero" if is_first else "accumulate")
        if m_padded // FRACTAL_ROWS * (n // FRACTAL_ROWS) < FEW_FRACTALS:
            self._builder.barrier("cube")

    def _drain(self, total: Slot, out: GmView) -> None:
        """L0C (columns / 16, rows_padded, 16) -> *out* (rows, columns), fp32."""
        self._totals.enque(total)
        total = self._totals.deque()
        rows_padded = align_up(out.rows, FRACTAL_ROWS)
        src = total.of(FLOAT32, rows_padded * align_up(out.columns, FRACTAL_ROWS))
        dst = out.operand
        self._builder.emit(Fixpipe(dst, src, out.rows, out.columns, rows_padded, FLOAT32))
        self._totals.free(total)


def _feed(builder: Builder, dtype: DType, *, k_is_first: bool) -> GmFeed:
    """What L1Operand asks about an operand in L1: its type, and whether k is its first axis."""
    return GmFeed(builder, GmMatrix("", dtype, 0, 0, k_is_first))
