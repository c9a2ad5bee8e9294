"""Where the kernel finds things in global memory: tensors of the call, and its workspaces.

.. code-block:: text

    scores, weights, product, sums    of each core: two slots each, used in turn
    piece_out, piece_max, piece_sum   of each piece of a row of tiles that cores share
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

from npusim.data.dtypes import FLOAT32, DType
from npusim.data.integers import align_up
from npusim.kernel.program import Binding
from npusim.kernel.views import GmView
from npusim.ops._attention.description import Side
from npusim.ops._attention.fia.rows import Run
from npusim.ops._attention.fia.schedule import RowTile, Schedule, Tile
from npusim.ops._attention.fia.tiles import KEYS_ALIGNED

__all__ = ["Chunk", "Memory", "PlacedRun", "joined"]

SLOTS = 2
"""Of each workspace of a core: one is filled while the other one is read."""
BLOCK_FLOATS = 8
"""float32 in a data block."""
WIDE = ("scores", "weights")
"""Workspaces with a column a key."""


class PlacedRun(NamedTuple):
    """A run of rows, and where it begins, in elements from the first run of its kind."""

    run: Run
    offset: int


class Chunk(NamedTuple):
    """Keys that lie one after the other, and where they begin, in elements."""

    row: int
    """The first one, counted from the tile's."""
    rows: int
    offset: int
    entry: int | None
    """Which number of the block table says so, if one does."""


@dataclass(frozen=True)
class Memory:
    """The tensors and workspaces of a schedule."""

    plan: Schedule

    names: ClassVar[tuple[str, ...]] = ("scores", "weights", "product", "sums")
    """The workspaces of each core."""
    copies: ClassVar[int] = 1
    """Rows that the cube has for a row of a tile."""
    sum_type: ClassVar[DType] = FLOAT32
    """What the cube adds up in."""

    @property
    def factor(self) -> DType:
        """The type of what the cube multiplies."""
        return self.plan.rows.a.element

    @property
    def width(self) -> int:
        """Numbers of a head."""
        return self.plan.rows.a.head_size

    @cached_property
    def max_rows(self) -> int:
        """Rows of the largest tile."""
        tiles = [piece.row_tile.rows for core in self.plan.cores for piece in core]
        return max(tiles, default=0)

    @cached_property
    def max_keys(self) -> int:
        return align_up(self.plan.sizes.keys, KEYS_ALIGNED)

    # ---- workspaces ----

    @cached_property
    def workspaces(self) -> dict[str, int]:
        """Name -> bytes."""
        cores = len(self.plan.cores)
        found = {name: cores * SLOTS * self._slot_bytes(name) for name in self.names}
        if self.plan.pieces:
            rows = self.plan.pieces * self.max_rows
            found["piece_out"] = FLOAT32.nbytes(rows * self.width)
            found["piece_max"] = found["piece_sum"] = FLOAT32.nbytes(rows * BLOCK_FLOATS)
        return {name: nbytes for name, nbytes in found.items() if nbytes}

    def _slot_bytes(self, name: str) -> int:
        rows = self.max_rows if name == "sums" else self.copies * self.max_rows
        columns = self.max_keys if name in WIDE else self.width
        return self._element_of(name).nbytes(rows * columns)

    def _element_of(self, name: str) -> DType:
        if name == "sums":
            return FLOAT32
        return self.sum_type if name in ("scores", "product") else self.factor

    def of_core(self, core: int) -> dict[str, Binding]:
        """What the names of its own workspaces mean to a core."""
        return {
            name: Binding(name, core * SLOTS * self._slot_bytes(name))
            for name in self.names
            if name in self.workspaces
        }

    def slot(self, name: str, index: int, rows: int, columns: int) -> GmView:
        """*rows* x *columns* of slot number *index* of a core's workspace *name*."""
        pitch = align_up(columns, KEYS_ALIGNED) if name in WIDE else columns
        first = index % SLOTS * self._slot_bytes(name)
        return GmView(name, self._element_of(name), rows, columns, pitch, first)

    def of_piece(self, name: str, number: int, row: int, rows: int) -> GmView:
        """Rows of what piece *number* leaves in *name*."""
        columns = self.width if name == "piece_out" else BLOCK_FLOATS
        every = GmView.of(name, FLOAT32, self.plan.pieces * self.max_rows, columns)
        first = number * self.max_rows + row
        return every[first : first + rows, :]

    # ---- queries and what comes out ----

    @cached_property
    def query(self) -> Side:
        return self.plan.rows.a.query

    @cached_property
    def output(self) -> Side:
        return self.plan.rows.a.output

    @cached_property
    def lse(self) -> Side:
        """softmax_lse: `(requests, heads, tokens, 1)`, of TND and NTD `(tokens, heads, 1)`."""
        a = self.plan.rows.a
        if self.plan.rows.is_packed:
            starts = tuple(start // self.width for start in self._token_starts())
            return Side("softmax_lse", a.query_heads, starts, 1, a.query_heads)
        each = a.query_heads * a.longest_query
        starts = tuple(request * each for request in range(a.requests))
        return Side("softmax_lse", a.query_heads, starts, a.longest_query, 1)

    def _token_starts(self) -> Iterator[int]:
        """Numbers before each request, where all of a token's heads follow each other."""
        tokens = 0
        for length in self.plan.rows.a.query_lengths:
            yield tokens * self.plan.rows.a.query_heads * self.width
            tokens += length

    def placed(
        self, side: Side, tile: RowTile, row: int, rows: int
    ) -> tuple[int, tuple[PlacedRun, ...]]:
        """Where rows [row, row + rows) of *tile* begin in *side*, and their runs from there."""
        first_head = tile.head * self.plan.rows.a.group
        found: list[PlacedRun] = []
        base: int | None = None
        for run in self.plan.rows.runs(tile.request, tile.row + row, rows):
            offset = side.at(tile.request, first_head + run.head, run.token)
            base = offset if base is None else base
            # Runs of the same form are alike wherever their tokens and heads lie.
            found.append(PlacedRun(run._replace(token=0, head=0), offset - base))
        return base or 0, tuple(found)

    def views(
        self, side: Side, placed: PlacedRun, *, joins_heads: bool
    ) -> Iterator[tuple[int, GmView]]:
        """The run as matrices whose rows are heads, each with its first row of the run.

        With *joins_heads*, a row may be all heads of a token that are neighbours.
        """
        run, element, width = placed.run, self.plan.rows.a.element, self.width
        start, pitch = element.nbytes(placed.offset), side.token_pitch
        if run.heads == 1:
            yield run.row, GmView(side.name, element, run.tokens, width, pitch, start)
        elif pitch == run.heads * side.head_pitch:
            yield run.row, GmView(side.name, element, run.rows, width, side.head_pitch, start)
        elif joins_heads and side.head_pitch == width:
            columns = run.heads * width
            yield run.row, GmView(side.name, element, run.tokens, columns, pitch, start)
        else:
            for token in range(run.tokens):
                first = start + element.nbytes(token * pitch)
                view = GmView(side.name, element, run.heads, width, side.head_pitch, first)
                yield run.row + token * run.heads, view

    # ---- keys and values ----

    def keys(self, name: str, tile: Tile) -> tuple[Chunk, ...]:
        """The keys of *tile* in *name*, key or value, as chunks of neighbours."""
        a, row_tile = self.plan.rows.a, tile.piece.row_tile
        side, page, request = a.keys(name), a.paging, row_tile.request
        if page is None:
            return (Chunk(0, tile.keys, side.at(request, row_tile.head, tile.key), None),)
        found = []
        at = 0
        while at < tile.keys:
            index, token = divmod(tile.key + at, page.block_size)
            rows = min(page.block_size - token, tile.keys - at)
            block = page.tables[request][index] * page.block_size * a.kv_heads * self.width
            offset = block + side.at(request, row_tile.head, token)
            found.append(Chunk(at, rows, offset, request * page.width + index))
            at += rows
        return tuple(found)


def joined(view: GmView) -> GmView:
    """*view* as one row where its rows follow each other."""
    if view.rows > 1 and view.pitch != view.columns:
        return view
    return GmView(view.name, view.dtype, 1, view.rows * view.columns, 0, view.offset_bytes)
