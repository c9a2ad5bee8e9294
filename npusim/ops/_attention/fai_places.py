"""The layout of FAI's data in global memory: tensors of a call, and its workspaces.

A body of micro-ops of FAI serves all tasks of a form: it is written for a task whose query, keys,
values and output begin at 0, and each call shifts it to its own offsets. Blocks of the cache may be
anywhere, so those of a tile have separate names, key0, key1 and so on, all bound to the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32, UINT8, DType
from npusim.data.integers import ceil_div
from npusim.kernel.program import Binding
from npusim.kernel.steps import Integers
from npusim.kernel.views import GmView
from npusim.ops._attention.cube import LINE_ENTRIES, Piece
from npusim.ops._attention.fai_tiling import SLOTS, TASK_ROWS, TILE, Form, Part, Task, Tile
from npusim.ops._attention.problem import MASK_EXTENT, Attention
from npusim.ops._attention.sides import Side, sides_of

KEYS = 128
"""Keys that are loaded for a product of scores."""
PRODUCT_COLUMNS = 128
"""Heads with more columns use an additional workspace between tiles."""


@dataclass(frozen=True)
class Places:
    """The tensors of a call, as views for a task at offset 0 of each."""

    a: Attention

    @cached_property
    def sides(self) -> Mapping[str, Side]:
        return sides_of(self.a)

    # ---- queries and outputs ----

    def query(self, form: Form) -> list[GmView]:
        """Views of Q, stacked."""
        if form.tokens == 1:
            return [self.heads(form, 0)]
        return list(self._by_head("query", self.a.element, form.whole))

    def heads(self, form: Form, kv_head: int) -> GmView:
        """Q of the heads of one token that use head *kv_head* of keys of the task."""
        pitch, count = self.sides["query"].head_pitch, form.heads // form.kv_heads
        first = self.a.element.nbytes(kv_head * count * pitch)
        return GmView("query", self.a.element, count, self.a.head_size, pitch, first)

    def outputs(self, part: Part) -> tuple[GmView, ...]:
        """Views of the output for the rows of *part*, head by head."""
        return self._by_head("output", self.a.element, part)

    def sums(self, part: Part) -> tuple[GmView, ...]:
        """Views of softmax_lse, fp32 `(tokens, 1)` each; empty unless it is requested."""
        return self._by_head("softmax_lse", FLOAT32, part) if self.a.returns_lse else ()

    def _by_head(self, name: str, dtype: DType, part: Part) -> tuple[GmView, ...]:
        """The rows of *part* in tensor *name*, one view per head."""
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
        """The keys of *tile*, *width* at a time, each split into contiguous pieces.

        They are those of head *head* of keys of the task.
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
        """Keys [start, stop), with *number* as the index of the first piece in the tile."""
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
            # Reading the first entry of a line brings the others into the cache.
            known = index > 0 and (form.page_entry + index) % LINE_ENTRIES > 0
            yield Piece(view, entry, known or row > 0 or head > 0)
            start += rows
            number += 1

    @property
    def _names(self) -> int:
        """Most pieces of a tile."""
        page = self.a.paging
        if page is None:
            return 1
        if page.block_size % KEYS == 0 or KEYS % page.block_size == 0:
            return TILE // min(page.block_size, KEYS)
        # A block may be cut at the start of a tile's keys, and of each 128 of them.
        return ceil_div(TILE, page.block_size) + TILE // KEYS + 1

    # ---- masks ----

    @property
    def mask(self) -> GmView:
        """The stencil, one byte per element."""
        return GmView.of("atten_mask", UINT8, MASK_EXTENT, MASK_EXTENT)

    # ---- tasks ----

    def offsets(self, tasks: Sequence[Task]) -> dict[str, Integers]:
        """The shift of each name in bytes, for each of *tasks*, `(tasks,)`."""
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
        """The bindings of tensors, without workspaces."""
        names = ["query", "output", "actual_seq_lengths", "actual_seq_lengths_kv"]
        names += ["softmax_lse"] * self.a.returns_lse + ["atten_mask"] * self.a.has_mask
        names += ["block_table"] * (self.a.paging is not None)
        found = {name: Binding(name) for name in names}
        for name in ("key", "value"):
            found |= {f"{name}{number}": Binding(name) for number in range(self._names)}
        return found

    # ---- workspaces ----

    def scores(self, index: int, rows: int, keys: int) -> GmView:
        """`(rows, keys)` of the slot of tile *index*."""
        first = index % SLOTS * TASK_ROWS
        every = GmView.of("scores", self.a.work_type, SLOTS * TASK_ROWS, TILE)
        return every[first : first + rows, :keys]

    def probabilities(self, index: int, rows: int, keys: int) -> GmView:
        """`(rows, keys)` of the type of the query."""
        first = index % SLOTS * TASK_ROWS
        every = GmView.of("probabilities", self.a.element, SLOTS * TASK_ROWS, TILE)
        return every[first : first + rows, :keys]

    def products(self, index: int, rows: int) -> GmView:
        """`(rows, columns of a head)`."""
        size, dtype = self.a.head_size, self.a.work_type
        first = index % SLOTS * dtype.nbytes(TASK_ROWS * TILE)
        return GmView("products", dtype, rows, size, size, first)

    def updated(self, rows: int) -> GmView:
        """`(rows, columns of a head)`: sums between tiles, if the core cannot hold them."""
        return GmView.of("updated", self.a.work_type, rows, self.a.head_size)

    @property
    def group_bytes(self) -> dict[str, int]:
        """Name -> bytes per group."""
        elements, size, dtype = SLOTS * TASK_ROWS * TILE, self.a.head_size, self.a.work_type
        found = dict.fromkeys(("scores", "products"), dtype.nbytes(elements))
        found["probabilities"] = self.a.element.nbytes(elements)
        if size > PRODUCT_COLUMNS:
            found["updated"] = dtype.nbytes(TASK_ROWS * size)
        return found

    def workspaces(self, groups: int, pieces: int) -> dict[str, int]:
        """Name -> bytes, for all *groups* and *pieces* of tasks."""
        found = {name: groups * nbytes for name, nbytes in self.group_bytes.items()}
        if pieces:
            found["outputs_of_pieces"] = FLOAT32.nbytes(pieces * TASK_ROWS * self.a.head_size)
            found["sums_of_pieces"] = FLOAT32.nbytes(pieces * TASK_ROWS)
        return found
