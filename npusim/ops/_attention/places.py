"""Where the kernels find things in global memory: tensors of a call, and their workspaces.

A body of micro-ops of FAI serves all tasks of a form: it is written for a task whose query, keys,
values and output begin at 0, and each call moves it to its own places. Blocks of the cache lie
anywhere, so each of a tile has its own names, key0, key1 and so on, which all stand for the
cache. FIA and IFA move what they write from tile to tile. Their workspaces are

.. code-block:: text

    scores, weights, product, sums    of each core: two slots each, used in turn; digits of IFA too
    piece_out, piece_max, piece_sum   of each piece of a row of tiles that cores share
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from npusim.data.dtypes import FLOAT32, INT32, UINT8, DType
from npusim.data.integers import align_up, ceil_div
from npusim.kernel.cube_core import sums_dtype
from npusim.kernel.program import Binding
from npusim.kernel.views import GmView
from npusim.ops._attention.cube import Piece
from npusim.ops._attention.fai_tiling import ENTRIES_OF_A_LINE as LINE_ENTRIES
from npusim.ops._attention.fai_tiling import SLOTS, TASK_ROWS, TILE, Form, Part, Task, Tile
from npusim.ops._attention.fia_tiling import KEYS_ALIGNED, RowTile, Schedule
from npusim.ops._attention.fia_tiling import Tile as FiaTile
from npusim.ops._attention.problem import MASK_EXTENT, Attention, Scales, Side, sides_of

Integers = NDArray[np.int64]
KEYS = 128
"""Keys that are loaded for a product of scores."""
PRODUCT_COLUMNS = 128
"""Heads of more columns pass through a workspace more, between tiles."""


@dataclass(frozen=True)
class Places:
    """The tensors of a call, as views for a task at the first place of each."""

    a: Attention

    @cached_property
    def sides(self) -> dict[str, Side]:
        return sides_of(self.a)

    # ---- queries and what comes out ----

    def query(self, form: Form) -> list[GmView]:
        """Views of Q, one below the other."""
        if form.tokens == 1:
            return [self.heads(form, 0)]
        return list(self._by_head("query", self.a.element, form.whole))

    def heads(self, form: Form, kv_head: int) -> GmView:
        """Q of the heads of one token that share head of keys number *kv_head* of the task."""
        pitch, count = self.sides["query"].head_pitch, form.heads // form.kv_heads
        first = self.a.element.nbytes(kv_head * count * pitch)
        return GmView("query", self.a.element, count, self.a.head_size, pitch, first)

    def outputs(self, part: Part) -> tuple[GmView, ...]:
        """Views of the output for the rows of *part*, head by head."""
        return self._by_head("output", self.a.element, part)

    def sums(self, part: Part) -> tuple[GmView, ...]:
        """The same of softmax_lse, fp32 `(tokens, 1)` each; none where it is not asked for."""
        return self._by_head("softmax_lse", FLOAT32, part) if self.a.returns_lse else ()

    def _by_head(self, name: str, dtype: DType, part: Part) -> tuple[GmView, ...]:
        """The rows of *part* in tensor *name*, a view for each head."""
        side, columns = self.sides[name], 1 if name == "softmax_lse" else self.a.head_size
        start, pitch = part.token * side.token_pitch, side.token_pitch
        firsts = [start + (part.head + head) * side.head_pitch for head in range(part.heads)]
        return tuple(
            GmView(name, dtype, part.tokens, columns, pitch, dtype.nbytes(first))
            for first in firsts
        )

    def of_piece(self, part: Part) -> tuple[GmView, GmView]:
        """The output and softmax_lse of a piece, fp32 `(rows, columns)` and `(1, rows)`."""
        size = self.a.head_size
        here = slice(part.row, part.row + part.rows)
        output = GmView.of("outputs_of_pieces", FLOAT32, TASK_ROWS, size)[here, :]
        return output, GmView.vector("sums_of_pieces", FLOAT32, TASK_ROWS)[:, here]

    # ---- keys and values ----

    def keys(
        self, name: str, form: Form, tile: Tile, width: int, head: int = 0
    ) -> tuple[tuple[Piece, ...], ...]:
        """The keys of *tile*, *width* at a time, each in pieces that lie together.

        They are those of the task's head of keys number *head*.
        """
        found: list[tuple[Piece, ...]] = []
        for start in range(tile.start, tile.start + tile.keys, width):
            stop = min(start + width, tile.start + tile.keys)
            number = sum(map(len, found))
            found.append(tuple(self._pieces(name, form, start, stop, number, head)))
        return tuple(found)

    def _pieces(
        self, name: str, form: Form, start: int, stop: int, number: int, head: int
    ) -> Iterator[Piece]:
        """Keys [start, stop), of which the first piece is *number* in the tile."""
        a, page, side = self.a, self.a.paging, self.sides[name]
        pitch, of_head = side.token_pitch, head * side.head_pitch
        if page is None:
            first = a.element.nbytes(start * pitch + of_head)
            yield Piece(GmView(f"{name}0", a.element, stop - start, a.head_size, pitch, first))
            return
        page_elements = page.block_size * a.kv_heads * a.head_size
        while start < stop:
            index, row = divmod(start, page.block_size)
            rows = min(page.block_size - row, stop - start)
            first = a.element.nbytes(form.pages[index] * page_elements + row * pitch + of_head)
            view = GmView(f"{name}{number}", a.element, rows, a.head_size, pitch, first)
            entry = GmView("block_table", INT32, 1, 1, 0, INT32.nbytes(index))
            # The first entry of a line brings the others.
            known = index > 0 and (form.page_entry + index) % LINE_ENTRIES > 0
            yield Piece(view, entry, known or row > 0 or head > 0)
            start += rows
            number += 1

    @property
    def _names(self) -> int:
        """Pieces of a tile at most."""
        page = self.a.paging
        if page is None:
            return 1
        if page.block_size % KEYS == 0 or KEYS % page.block_size == 0:
            return TILE // min(page.block_size, KEYS)
        # A block may be cut where keys of a tile, and 128 of them, begin.
        return ceil_div(TILE, page.block_size) + TILE // KEYS + 1

    # ---- masks ----

    @property
    def mask(self) -> GmView:
        """The stencil, a byte for each element."""
        return GmView.of("atten_mask", UINT8, MASK_EXTENT, MASK_EXTENT)

    # ---- tasks ----

    def offsets(self, tasks: Sequence[Task]) -> dict[str, Integers]:
        """By how many bytes each name is moved on for each of *tasks*, `(tasks,)`."""
        a, nbytes, page = self.a, self.a.element.nbytes(1), self.a.paging
        fields = [(x.request, x.head, x.token, x.page, x.piece or 0) for x in tasks]
        request, head, token, block, piece = np.array(fields, np.int64).reshape(-1, 5).T

        def at(name: str, head: Integers, token: Integers | int) -> Integers:
            side = self.sides[name]
            return (
                np.array(side.starts)[request] + head * side.head_pitch + token * side.token_pitch
            )

        found = {name: nbytes * at(name, head, token) for name in ("query", "output")}
        if a.returns_lse:
            found["softmax_lse"] = FLOAT32.nbytes(1) * at("softmax_lse", head, token)
        for name in ("key", "value"):
            first = at(name, head // a.group, 0)
            if page is not None:
                first += block * (page.block_size * a.kv_heads * a.head_size)
            found |= {f"{name}{number}": nbytes * first for number in range(self._names)}
        if page is not None:
            found["block_table"] = INT32.nbytes(page.width) * request
        if any(task.piece is not None for task in tasks):
            found["outputs_of_pieces"] = FLOAT32.nbytes(TASK_ROWS * a.head_size) * piece
            found["sums_of_pieces"] = FLOAT32.nbytes(TASK_ROWS) * piece
        return found

    @property
    def bindings(self) -> dict[str, Binding]:
        """What the names of tensors mean, workspaces apart."""
        names = ["query", "output", "actual_seq_lengths", "actual_seq_lengths_kv"]
        names += ["softmax_lse"] * self.a.returns_lse + ["atten_mask"] * self.a.has_mask
        names += ["block_table"] * (self.a.paging is not None)
        found = {name: Binding(name) for name in names}
        for name in ("key", "value"):
            found |= {f"{name}{number}": Binding(name) for number in range(self._names)}
        return found

    # ---- workspaces ----

    def scores(self, index: int, rows: int, keys: int) -> GmView:
        """fp32 `(rows, keys)` of the slot of tile *index*."""
        first = index % SLOTS * TASK_ROWS
        return GmView.of("scores", FLOAT32, SLOTS * TASK_ROWS, TILE)[first : first + rows, :keys]

    def probabilities(self, index: int, rows: int, keys: int) -> GmView:
        """`(rows, keys)` of the type of the query."""
        first = index % SLOTS * TASK_ROWS
        every = GmView.of("probabilities", self.a.element, SLOTS * TASK_ROWS, TILE)
        return every[first : first + rows, :keys]

    def products(self, index: int, rows: int) -> GmView:
        """fp32 `(rows, columns of a head)`."""
        size, first = self.a.head_size, index % SLOTS * FLOAT32.nbytes(TASK_ROWS * TILE)
        return GmView("products", FLOAT32, rows, size, size, first)

    def updated(self, rows: int) -> GmView:
        """fp32 `(rows, columns of a head)`: sums between tiles, where a core cannot keep them."""
        return GmView.of("updated", FLOAT32, rows, self.a.head_size)

    @property
    def group_bytes(self) -> dict[str, int]:
        """Name -> bytes of a group."""
        elements, size = SLOTS * TASK_ROWS * TILE, self.a.head_size
        fp32_bytes = FLOAT32.nbytes(elements)
        found = {"scores": fp32_bytes, "probabilities": self.a.element.nbytes(elements)}
        found["products"] = fp32_bytes
        if size > PRODUCT_COLUMNS:
            found["updated"] = FLOAT32.nbytes(TASK_ROWS * size)
        return found

    def workspaces(self, groups: int, pieces: int) -> dict[str, int]:
        """Name -> bytes, of all *groups* and of so many *pieces* of tasks."""
        found = {name: groups * nbytes for name, nbytes in self.group_bytes.items()}
        if pieces:
            found["outputs_of_pieces"] = FLOAT32.nbytes(pieces * TASK_ROWS * self.a.head_size)
            found["sums_of_pieces"] = FLOAT32.nbytes(pieces * TASK_ROWS)
        return found


# ---- FIA and IFA ----

WORK_SLOTS = 2
"""Each workspace of a core of FIA has so many: one is filled while the other one is read."""
BLOCK = 8
"""float32 in a data block."""
WIDE = ("scores", "weights")
"""Workspaces with a column a key."""
DIGITS = 2
"""A query and a weight have so many, where keys are int8."""


class Target(NamedTuple):
    """Where rows that are done go."""

    outputs: tuple[GmView, ...]
    """Their places in the output, one behind the other."""
    sums: tuple[tuple[int, int, GmView], ...]
    """First row, rows from one to the next, and their places in softmax_lse."""
    blind: tuple[tuple[int, int], ...]
    """First row and rows of those that see no key, whatever was computed for them."""


@dataclass(frozen=True)
class Memory:
    """The tensors and workspaces of a schedule."""

    plan: Schedule

    @cached_property
    def sides(self) -> dict[str, Side]:
        return sides_of(self.plan.rows.a)

    @cached_property
    def factor(self) -> DType:
        """The type of what the cube multiplies."""
        a = self.plan.rows.a
        return a.element if a.antiquant is None else a.antiquant.element

    @cached_property
    def copies(self) -> int:
        """Rows that the cube has for a row of a tile."""
        return 1 if self.plan.rows.a.antiquant is None else DIGITS

    @cached_property
    def width(self) -> int:
        """Columns of a head."""
        return self.plan.rows.a.head_size

    @cached_property
    def max_rows(self) -> int:
        """Rows of the largest tile."""
        return max((p.row_tile.rows for core in self.plan.cores for p in core), default=0)

    # ---- workspaces ----

    @cached_property
    def _types(self) -> dict[str, DType]:
        """The workspaces of each core."""
        sums = sums_dtype(self.factor)
        found = {"scores": sums, "weights": self.factor, "product": sums, "sums": FLOAT32}
        return found | ({"digits": self.factor} if self.copies > 1 else {})

    @cached_property
    def workspaces(self) -> dict[str, int]:
        """Name -> bytes."""
        cores = len(self.plan.cores)
        found = {name: cores * WORK_SLOTS * nbytes for name, nbytes in self._slot_bytes.items()}
        if self.plan.pieces:
            rows = self.plan.pieces * self.max_rows
            found["piece_out"] = FLOAT32.nbytes(rows * self.width)
            found["piece_max"] = found["piece_sum"] = FLOAT32.nbytes(rows * BLOCK)
        return {name: nbytes for name, nbytes in found.items() if nbytes}

    @cached_property
    def _slot_bytes(self) -> dict[str, int]:
        keys = align_up(self.plan.sizes.keys, KEYS_ALIGNED)
        return {
            name: dtype.nbytes(
                self.max_rows
                * (1 if name == "sums" else self.copies)
                * (keys if name in WIDE else self.width)
            )
            for name, dtype in self._types.items()
        }

    def of_core(self, core: int) -> dict[str, Binding]:
        """What the names of its own workspaces mean to a core."""
        return {
            name: Binding(name, core * WORK_SLOTS * nbytes)
            for name, nbytes in self._slot_bytes.items()
            if nbytes and self.plan.cores
        }

    def slot(self, name: str, index: int, rows: int, columns: int, row: int = 0) -> GmView:
        """*rows* x *columns* of slot *index* of a core's workspace *name*, from *row* on."""
        dtype, pitch = self._types[name], columns
        if name in WIDE:
            pitch = align_up(columns, KEYS_ALIGNED)
        first = index % WORK_SLOTS * self._slot_bytes[name] + dtype.nbytes(row * pitch)
        return GmView(name, dtype, rows, columns, pitch, first)

    def of_piece(self, number: int, row: int, rows: int) -> tuple[GmView, ...]:
        """Rows of what piece *number* leaves: output, maxima and sums."""
        first = number * self.max_rows + row
        every = self.plan.pieces * self.max_rows
        columns = {"piece_out": self.width, "piece_max": BLOCK, "piece_sum": BLOCK}
        return tuple(
            GmView.of(name, FLOAT32, every, count)[first : first + rows, :]
            for name, count in columns.items()
        )

    # ---- queries and what comes out ----

    def queries(self, tile: RowTile) -> tuple[GmView, ...]:
        """The rows of *tile*, as few matrices as possible."""
        return tuple(self._views(self.sides["query"], tile, 0, tile.rows, joins_heads=False))

    def target(self, tile: RowTile, row: int, rows: int) -> Target:
        """Where rows [row, row + rows) of *tile* go."""
        outputs = tuple(self._views(self.sides["output"], tile, row, rows, joins_heads=True))
        sums = tuple(self._sums(tile, row, rows)) if self.plan.rows.a.returns_lse else ()
        return Target(outputs, sums, tuple(self._blind(tile, row, rows)))

    def _views(
        self, side: Side, tile: RowTile, row: int, rows: int, *, joins_heads: bool
    ) -> Iterator[GmView]:
        """Rows [row, row + rows) of *tile* in *side*, as matrices whose rows are heads.

        With *joins_heads*, a row may be all heads of a token that are neighbours.
        """
        element, width, pitch = self.plan.rows.a.element, self.width, side.token_pitch
        first_head = tile.head * self.plan.rows.a.group
        for run in self.plan.rows.runs(tile.request, tile.row + row, rows):
            start = element.nbytes(side.at(tile.request, first_head + run.head, run.token))
            if run.heads == 1:
                yield GmView(side.name, element, run.tokens, width, pitch, start)
            elif pitch == run.heads * side.head_pitch:
                yield GmView(side.name, element, run.rows, width, side.head_pitch, start)
            elif joins_heads and side.head_pitch == width:
                yield GmView(side.name, element, run.tokens, run.heads * width, pitch, start)
            else:
                for token in range(run.tokens):
                    first = start + element.nbytes(token * pitch)
                    yield GmView(side.name, element, run.heads, width, side.head_pitch, first)

    def _sums(self, tile: RowTile, row: int, rows: int) -> Iterator[tuple[int, int, GmView]]:
        """Copies of a float32 a row to softmax_lse: first row, rows to the next one, and view."""
        side, at = self.sides["softmax_lse"], 0
        first_head = tile.head * self.plan.rows.a.group
        for run in self.plan.rows.runs(tile.request, tile.row + row, rows):
            by_head = run.tokens >= run.heads
            count, every = (run.tokens, run.heads) if by_head else (run.heads, 1)
            pitch = (side.token_pitch if by_head else side.head_pitch) if count > 1 else 0
            for index in range(run.heads if by_head else run.tokens):
                head, token = (index, 0) if by_head else (0, index)
                first = side.at(tile.request, first_head + run.head + head, run.token + token)
                view = GmView(side.name, FLOAT32, count, 1, pitch, FLOAT32.nbytes(first))
                yield at + (index if by_head else index * run.heads), every, view
            at += run.rows

    def _blind(self, tile: RowTile, row: int, rows: int) -> Iterator[tuple[int, int]]:
        """Rows of tokens that see no key, counted from *row*."""
        every, at = self.plan.rows, 0
        low, high = every.blind(tile.request)
        for run in every.runs(tile.request, tile.row + row, rows):
            before = min(run.tokens, max(0, low - run.token))
            behind = min(run.tokens - before, max(0, run.token + run.tokens - high))
            if before:
                yield at, before * run.heads
            if behind:
                yield at + (run.tokens - behind) * run.heads, behind * run.heads
            at += run.rows

    # ---- keys and values ----

    def keys(self, name: str, tile: FiaTile) -> tuple[Piece, ...]:
        """The keys of *tile* in *name*, key or value, in pieces of neighbours."""
        a, row_tile = self.plan.rows.a, tile.piece.row_tile
        side, page, request = self.sides[name], a.paging, row_tile.request
        pitch, width, element = side.token_pitch, self.width, self.factor
        if page is None:
            first = element.nbytes(side.at(request, row_tile.head, tile.key))
            return (Piece(GmView(name, element, tile.keys, width, pitch, first)),)
        found: list[Piece] = []
        at = tile.key
        while at < tile.key + tile.keys:
            index, token = divmod(at, page.block_size)
            rows = min(page.block_size - token, tile.key + tile.keys - at)
            block = page.tables[request][index] * page.block_size * a.kv_heads * width
            first = element.nbytes(block + side.at(request, row_tile.head, token))
            place = request * page.width + index
            entry = GmView("block_table", INT32, 1, 1, 0, INT32.nbytes(place))
            # The first entry of a line, and that of a tile, is read from global memory.
            is_cached = at > tile.key and place % LINE_ENTRIES > 0
            found.append(Piece(GmView(name, element, rows, width, pitch, first), entry, is_cached))
            at += rows
        return tuple(found)

    def scales(self, scales: Scales, tile: FiaTile) -> GmView:
        """Those of the columns of a head, of the keys of *tile*, or one."""
        request, head, *_ = tile.piece.row_tile
        count = {"tensor": 1, "channel": self.width, "token": tile.keys}[scales.per]
        place = scales.place(request, head, tile.key, self.width)
        view = GmView.vector(scales.name, scales.dtype, count)
        return view.shifted_to(scales.dtype.nbytes(place))


def joined(view: GmView) -> GmView:
    """*view* as one row where its rows follow each other."""
    if view.rows > 1 and view.pitch != view.columns:
        return view
    return GmView(view.name, view.dtype, 1, view.rows * view.columns, 0, view.offset_bytes)
