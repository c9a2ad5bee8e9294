"""Where FAI finds the tensors of a task.

A body of micro-ops serves all tasks of a form: it is written for a task whose query, keys, values
and output begin at 0, and each call moves it to its own places. Blocks of the cache lie anywhere,
so each of a tile has names of its own, key0, key1 and so on, which all stand for the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from npusim.data.dtypes import FLOAT32, INT32, INT64, UINT8
from npusim.data.integers import ceil_div
from npusim.kernel.program import Binding
from npusim.kernel.views import GmView
from npusim.ops._attention.description import MASK_EXTENT, Attention
from npusim.ops._attention.fai.tasks import (
    ENTRIES_OF_A_LINE,
    TASK_ROWS,
    TILE,
    Form,
    Part,
    Task,
    Tile,
)

__all__ = ["KEYS", "Piece", "Places"]

KEYS = 128
"""Keys that are loaded for a product of scores."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Keys, or values, that lie a fixed distance apart."""

    keys: GmView
    """`(keys, columns)`."""
    entry: GmView | None = None
    """The entry of the block table that names their block."""
    is_cached: bool = False
    """Whether an entry beside it was read before."""

    @property
    def views(self) -> tuple[GmView, ...]:
        return (self.keys,) if self.entry is None else (self.keys, self.entry)

    @staticmethod
    def listed(cached: tuple[bool, ...], views: tuple[GmView, ...]) -> list[Piece]:
        """Pieces of the *views* of them all, one after the other."""
        if len(views) == len(cached):
            return [Piece(view) for view in views]
        return [
            Piece(keys, entry, known)
            for keys, entry, known in zip(views[::2], views[1::2], cached, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Places:
    """The tensors of a call, as views for a task at the first place of each."""

    a: Attention

    def query(self, form: Form) -> Iterator[tuple[int, GmView]]:
        """Views of Q and the row of the task that each begins at."""
        side, size, element = self.a.query, self.a.head_size, self.a.element
        if form.tokens == 1:
            yield 0, self.heads(form, 0)
            return
        for head in range(form.heads):
            first = element.nbytes(head * side.head_pitch)
            yield (
                head * form.tokens,
                GmView("query", element, form.tokens, size, side.token_pitch, first),
            )

    def heads(self, form: Form, kv_head: int) -> GmView:
        """Q of the heads of one token that share head of keys number *kv_head* of the task."""
        side, count = self.a.query, form.heads // form.kv_heads
        first = self.a.element.nbytes(kv_head * count * side.head_pitch)
        size = self.a.head_size
        return GmView("query", self.a.element, count, size, side.head_pitch, first)

    def keys(
        self, name: str, form: Form, tile: Tile, width: int, head: int = 0
    ) -> list[list[Piece]]:
        """The keys of *tile*, *width* at a time, each in pieces that lie together.

        They are those of the task's head of keys number *head*.
        """
        found = []
        number = 0
        for start in range(tile.start, tile.start + tile.keys, width):
            stop = min(start + width, tile.start + tile.keys)
            part = list(self._pieces(name, form, start, stop, number, head))
            number += len(part)
            found.append(part)
        return found

    def _pieces(
        self, name: str, form: Form, start: int, stop: int, number: int, head: int
    ) -> Iterator[Piece]:
        """Keys [start, stop), of which the first piece is *number* in the tile."""
        a, page = self.a, self.a.paging
        side = a.keys(name)
        if page is None:
            first = a.element.nbytes(start * side.token_pitch + head * side.head_pitch)
            rows, pitch = stop - start, side.token_pitch
            yield Piece(GmView(f"{name}0", a.element, rows, a.head_size, pitch, first))
            return
        page_elements = page.block_size * a.kv_heads * a.head_size
        while start < stop:
            index, row = divmod(start, page.block_size)
            rows = min(page.block_size - row, stop - start)
            first = form.pages[index] * page_elements + row * side.token_pitch
            first += head * side.head_pitch
            offset = a.element.nbytes(first)
            view = GmView(f"{name}{number}", a.element, rows, a.head_size, side.token_pitch, offset)
            entry = GmView("block_table", INT32, 1, 1, 0, INT32.nbytes(index))
            # The first entry of a line brings the others.
            known = index > 0 and (form.page_entry + index) % ENTRIES_OF_A_LINE > 0
            yield Piece(view, entry, known or row > 0 or head > 0)
            start += rows
            number += 1

    def outputs(self, part: Part) -> Iterator[tuple[int, GmView]]:
        """Views of the output for the rows of *part*, head by head; the row each begins at."""
        side, size, element = self.a.output, self.a.head_size, self.a.element
        for head in range(part.heads):
            first = (part.head + head) * side.head_pitch + part.token * side.token_pitch
            offset = element.nbytes(first)
            view = GmView("output", element, part.tokens, size, side.token_pitch, offset)
            yield head * part.tokens, view

    def sums(self, part: Part) -> Iterator[tuple[int, GmView]]:
        """The same of softmax_lse, fp32 `(tokens, 1)` each."""
        heads = self.a.query_heads
        for head in range(part.heads):
            first = FLOAT32.nbytes(part.token * heads + part.head + head)
            view = GmView("softmax_lse", FLOAT32, part.tokens, 1, heads, first)
            yield head * part.tokens, view

    def of_piece(self, part: Part) -> tuple[GmView, GmView]:
        """The output and softmax_lse of a piece, fp32 `(rows, columns)` and `(1, rows)`."""
        size = self.a.head_size
        here = slice(part.row, part.row + part.rows)
        output = GmView.of("outputs_of_pieces", FLOAT32, TASK_ROWS, size)[here, :]
        return output, GmView.vector("sums_of_pieces", FLOAT32, TASK_ROWS)[:, here]

    @property
    def mask(self) -> GmView:
        """The stencil, a byte a number."""
        return GmView.of("atten_mask", UINT8, MASK_EXTENT, MASK_EXTENT)

    def lengths(self, request: int) -> tuple[GmView, GmView]:
        """The entries of both lists of lengths for *request*."""
        names = ("actual_seq_lengths", "actual_seq_lengths_kv")
        first, second = (GmView(name, INT64, 1, 1, 0, INT64.nbytes(request)) for name in names)
        return first, second

    def shifts(self, task: Task) -> dict[str, int]:
        """By how many bytes each name is moved on for *task*."""
        a, element = self.a, self.a.element
        heads = a.query_heads
        found = {
            "query": element.nbytes(a.query.at(task.request, task.head, task.token)),
            "output": element.nbytes(a.output.at(task.request, task.head, task.token)),
        }
        if a.returns_lse:
            token = a.output.starts[task.request] // (heads * a.head_size) + task.token
            found["softmax_lse"] = FLOAT32.nbytes(token * heads + task.head)
        kv_head = task.head // a.group
        for name in ("key", "value"):
            first = a.keys(name).at(task.request, kv_head, 0)
            if a.paging is not None:
                first += task.page * a.paging.block_size * a.kv_heads * a.head_size
            shift = element.nbytes(first)
            found |= {f"{name}{number}": shift for number in range(self._names)}
        if a.paging is not None:
            found["block_table"] = INT32.nbytes(task.request * a.paging.width)
        if task.piece is not None:
            found["outputs_of_pieces"] = FLOAT32.nbytes(task.piece * TASK_ROWS * a.head_size)
            found["sums_of_pieces"] = FLOAT32.nbytes(task.piece * TASK_ROWS)
        return found

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
