"""Where FIA and IFA find things in global memory: tensors of a call, and workspaces.

They move what they write from tile to tile. Their workspaces are

.. code-block:: text

    scores, weights, product, sums    of each core: two slots each, used in turn; digits of IFA too
    keys, values                      of each core, where they are dequantised: three slots each
    piece_out, piece_max, piece_sum   of each piece of a row of tiles that cores share
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, DType
from npusim.data.integers import align_up
from npusim.kernel.cube_core import sums_dtype
from npusim.kernel.program import Binding
from npusim.kernel.views import GmView
from npusim.ops._attention.cube import Piece
from npusim.ops._attention.fai_tiling import ENTRIES_OF_A_LINE as LINE_ENTRIES
from npusim.ops._attention.fia_sizes import KEYS_ALIGNED
from npusim.ops._attention.fia_tiling import RowTile, Schedule, Tile
from npusim.ops._attention.problem import Scales, Side, sides_of

WORK_SLOTS = 2
"""Each workspace of a core of FIA has so many: one is filled while the other one is read."""
DEQUANTISED_SLOTS = 3
"""Dequantised keys and values have so many: the next are written while those of two tiles may be
read."""
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
        return a.antiquant.element if a.antiquant is not None and a.has_digits else a.element

    @cached_property
    def copies(self) -> int:
        """Rows that the cube has for a row of a tile."""
        return DIGITS if self.plan.rows.a.has_digits else 1

    @cached_property
    def width(self) -> int:
        """Columns of a head of the output."""
        return self.plan.rows.a.value_size

    @cached_property
    def depth(self) -> int:
        """Columns of a head of query and key, with rotated ones."""
        return self.plan.rows.a.head_size + self.plan.rows.a.rope_size

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
        if self.plan.rows.a.dequantises:
            found |= {"scores": FLOAT16, "keys": self.factor, "values": self.factor}
        return found | ({"digits": self.factor} if self.copies > 1 else {})

    @cached_property
    def workspaces(self) -> dict[str, int]:
        """Name -> bytes."""
        cores = len(self.plan.cores)
        sizes = self._slot_bytes
        found = {name: cores * self._slots(name) * nbytes for name, nbytes in sizes.items()}
        if self.plan.pieces:
            rows = self.plan.pieces * self.max_rows
            found["piece_out"] = FLOAT32.nbytes(rows * self.width)
            found["piece_max"] = found["piece_sum"] = FLOAT32.nbytes(rows * BLOCK)
        return {name: nbytes for name, nbytes in found.items() if nbytes}

    def _slots(self, name: str) -> int:
        return DEQUANTISED_SLOTS if name in ("keys", "values") else WORK_SLOTS

    @cached_property
    def _slot_bytes(self) -> dict[str, int]:
        keys = align_up(self.plan.sizes.keys, KEYS_ALIGNED)
        return {
            name: dtype.nbytes(
                (keys if name in ("keys", "values") else self.max_rows)
                * (1 if name == "sums" else self.copies)
                * (keys if name in WIDE else self.width)
            )
            for name, dtype in self._types.items()
        }

    def of_core(self, core: int) -> dict[str, Binding]:
        """What the names of its workspaces mean to a core."""
        return {
            name: Binding(name, core * self._slots(name) * nbytes)
            for name, nbytes in self._slot_bytes.items()
            if nbytes and self.plan.cores
        }

    def slot(self, name: str, index: int, rows: int, columns: int, row: int = 0) -> GmView:
        """*rows* x *columns* of slot *index* of a core's workspace *name*, from *row* on."""
        dtype, pitch = self._types[name], columns
        if name in WIDE:
            pitch = align_up(columns, KEYS_ALIGNED)
        first = index % self._slots(name) * self._slot_bytes[name] + dtype.nbytes(row * pitch)
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

    def queries(self, tile: RowTile) -> tuple[tuple[GmView, ...], ...]:
        """The rows of *tile*, and their rotated parts, as few matrices as possible each."""
        names = ("query", "query_rope")[: 2 if self.plan.rows.a.rope_size else 1]
        return tuple(
            tuple(self._views(self.sides[name], tile, 0, tile.rows, joins_heads=False))
            for name in names
        )

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
        element, width, pitch = self.plan.rows.a.element, side.columns, side.token_pitch
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

    def keys(self, name: str, tile: Tile, index: int) -> tuple[Piece, ...]:
        """What the cube multiplies of *name*, key or value, for *tile* number *index* of a core."""
        if self.plan.rows.a.dequantises:
            return (Piece(self.slot(f"{name}s", index, tile.keys, self.width)),)
        return self.given_keys(name, tile, self.factor)

    def given_keys(self, name: str, tile: Tile, element: DType) -> tuple[Piece, ...]:
        """The keys of *tile* in *name*, key or value, in pieces of neighbours."""
        page, request = self.plan.rows.a.paging, tile.piece.row_tile.request
        if page is None:
            return (self._piece(name, tile, element, 0, tile.key, tile.keys),)
        found: list[Piece] = []
        at = tile.key
        while at < tile.key + tile.keys:
            index, token = divmod(at, page.block_size)
            rows = min(page.block_size - token, tile.key + tile.keys - at)
            block = page.tables[request][index] * page.block_size
            place = request * page.width + index
            entry = GmView("block_table", INT32, 1, 1, 0, INT32.nbytes(place))
            # The first entry of a line, and that of a tile, is read from global memory.
            is_cached = at > tile.key and place % LINE_ENTRIES > 0
            own = self._piece(name, tile, element, block, token, rows)
            found.append(own._replace(entry=entry, is_cached=is_cached))
            at += rows
        return tuple(found)

    def _piece(
        self, name: str, tile: Tile, element: DType, block: int, token: int, tokens: int
    ) -> Piece:
        """*tokens* from *token* on, of a block that begins *block* tokens into the cache."""
        a, rotated = self.plan.rows.a, None
        is_nz = a.paging is not None and a.paging.is_nz
        keys = self._keys(name, tile, element, block, token, tokens)
        if name == "key" and a.rope_size:
            rotated = self._keys("key_rope", tile, element, block, token, tokens)
        return Piece(keys, rotated=rotated, is_nz=is_nz)

    def _keys(
        self, name: str, tile: Tile, element: DType, block: int, token: int, tokens: int
    ) -> GmView:
        a, side, (request, head, *_) = self.plan.rows.a, self.sides[name], tile.piece.row_tile
        place = block * a.kv_heads * side.columns + side.at(request, head, token)
        first, pitch = element.nbytes(place), side.token_pitch
        if a.paging is None or not a.paging.is_nz:
            return GmView(name, element, tokens, side.columns, pitch, first)
        count = side.columns // pitch
        return GmView(name, element, count, tokens * pitch, side.head_pitch // count, first)

    def scales(self, scales: Scales, tile: Tile) -> GmView:
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
