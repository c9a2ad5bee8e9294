"""The layout of FIA's and IFA's data in global memory: tensors of a call, and workspaces.

Calls shift these from tile to tile. The workspaces are

.. code-block:: text

    scores, weights, product, sums    for each core: two slots each, used in turn; digits of IFA too
    distances                         for each vector core, in training with slopes
    kept                              dropout_mask in bytes, if its rows do not begin at any
    keys, values                      for each core, if they are dequantised: three slots each
    piece_out, piece_max, piece_sum   for each piece of a row of tiles that cores share
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, product
from typing import NamedTuple

from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, DType
from npusim.data.integers import align_up
from npusim.kernel.cube_core import sums_dtype
from npusim.kernel.program import Binding
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Column, column_of
from npusim.kernel.views import GmView
from npusim.ops._attention.cube import LINE_ENTRIES, Piece
from npusim.ops._attention.fia_sizes import KEYS_ALIGNED
from npusim.ops._attention.fia_tiling import RowTile, Schedule, Tile
from npusim.ops._attention.problem import FRACTAL_COLUMNS, Scales
from npusim.ops._attention.sides import Side, sides_of

WORK_SLOTS = 2
"""Slots of each workspace of a core of FIA: one is filled while the other one is read."""
DEQUANTISED_SLOTS = 3
"""Slots of dequantised keys and values: the next are written while those of two tiles may be
read."""
BLOCK = 8
"""float32 in a data block."""
WIDE = ("scores", "weights", "distances")
"""Workspaces with one column per key."""
LOOP_ELEMENTS = 8192
"""Elements of the rows of distances that a loop of a tile reads (UB_BASIC_LIMIT_SIZE)."""
DIGITS = 2
"""Digits of a query and a weight, if keys are int8."""


class Target(NamedTuple):
    """The destination of finished rows."""

    outputs: tuple[GmView, ...]
    """Their places in the output, one after another."""
    sums: tuple[tuple[int, int, GmView], ...]
    """First row, distance of rows, and places in softmax_lse, or in training's tensors of the sums
    of rows."""
    blind: tuple[tuple[int, int], ...]
    """First row and number of rows that see no key, whose results are discarded."""


class Part(NamedTuple):
    """Rows of a tile assigned to a cube core, or a vector core."""

    tile: Tile
    row: int
    rows: int
    half: int = 0
    """Index of the vector core in its group."""

    @property
    def of_keys(self) -> tuple[int, int, int, int]:
        """Request, head, first key and keys."""
        row_tile = self.tile.piece.row_tile
        return row_tile.request, row_tile.head, self.tile.key, self.tile.keys

    @property
    def ends(self) -> tuple[bool, bool]:
        """Whether the tile is the first of its piece, and whether it is the last."""
        return self.tile.is_first, self.tile.is_last


@dataclass(frozen=True)
class Memory:
    """The tensors and workspaces of a schedule."""

    plan: Schedule

    @cached_property
    def sides(self) -> dict[str, Side]:
        return sides_of(self.plan.rows.a)

    @cached_property
    def factor(self) -> DType:
        """The element type that the cube multiplies."""
        a = self.plan.rows.a
        return a.antiquant.element if a.antiquant is not None and a.has_digits else a.element

    @cached_property
    def copies(self) -> int:
        """Rows that the cube has per row of a tile."""
        return DIGITS if self.plan.rows.a.has_digits else 1

    @cached_property
    def width(self) -> int:
        """Columns of a head of the output."""
        return self.plan.rows.a.value_size

    @cached_property
    def depth(self) -> int:
        """Columns of a head of query and key, including rotary ones."""
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
        if self.distance_rows:
            found["distances"] = FLOAT16
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
        found["kept"] = self.kept_bytes
        return {name: nbytes for name, nbytes in found.items() if nbytes}

    def _slots(self, name: str) -> int:
        return DEQUANTISED_SLOTS if name in ("keys", "values") else WORK_SLOTS

    @cached_property
    def _slot_bytes(self) -> dict[str, int]:
        keys = align_up(self.plan.sizes.keys, KEYS_ALIGNED)
        return {
            name: dtype.nbytes(
                {"keys": keys, "values": keys, "distances": self.distance_rows}.get(
                    name, self.max_rows
                )
                * (1 if name == "sums" else self.copies)
                * (keys if name in WIDE else self.width)
            )
            for name, dtype in self._types.items()
        }

    def of_core(self, core: int) -> dict[str, Binding]:
        """The bindings of a core's workspaces."""
        return {
            name: Binding(name, core * self._slots(name) * nbytes)
            for name, nbytes in self._slot_bytes.items()
            if nbytes and self.plan.cores
        }

    def slots(self, name: str, parts: Sequence[Part]) -> Column:
        """The slots of *name* that *parts* use."""
        width = None if name in WIDE else self.width
        keys = [(name, x.tile.number % 2, x.rows, width or x.tile.keys, x.row) for x in parts]
        return column_of(keys, self.slot)

    def slot(self, name: str, index: int, rows: int, columns: int, row: int = 0) -> GmView:
        """*rows* x *columns* of slot *index* of a core's workspace *name*, from *row* on."""
        dtype, pitch = self._types[name], columns
        if name in WIDE:
            pitch = align_up(columns, KEYS_ALIGNED)
        first = index % self._slots(name) * self._slot_bytes[name] + dtype.nbytes(row * pitch)
        return GmView(name, dtype, rows, columns, pitch, first)

    def of_piece(self, number: int, row: int, rows: int) -> tuple[GmView, ...]:
        """Rows of the results of piece *number*: output, maxima and sums."""
        first = number * self.max_rows + row
        columns = {"piece_out": self.width, "piece_max": BLOCK, "piece_sum": BLOCK}
        return tuple(
            GmView(name, FLOAT32, rows, count, count, FLOAT32.nbytes(first * count))
            for name, count in columns.items()
        )

    # ---- what training adds ----

    @cached_property
    def kept_bytes(self) -> int:
        """Bytes of a dropout mask that is stored as bytes; 0 if there is none."""
        a = self.plan.rows.a
        return 0 if a.dropout is None or not a.dropout.in_bytes else a.score_count

    @cached_property
    def distance_rows(self) -> int:
        """Rows of the distances from which a vector core makes a bias; 0 without any."""
        a, sizes = self.plan.rows.a, self.plan.sizes
        if a.bias is None or a.bias.kind != "slopes":
            return 0
        own = sizes.rows // 2
        tail = align_up(a.longest_kv % sizes.keys or sizes.keys, FRACTAL_COLUMNS)
        rows = own if a.has_mask else min(own, LOOP_ELEMENTS // tail)
        return max(rows, LOOP_ELEMENTS // own)

    def distances(self, half: int) -> GmView:
        """The distances of a vector core of a group."""
        pitch = align_up(self.plan.sizes.keys, KEYS_ALIGNED)
        first = half * self._slot_bytes["distances"]
        return GmView("distances", FLOAT16, self.distance_rows, pitch, pitch, first)

    # ---- queries and outputs ----

    def queries(self, parts: Sequence[Part]) -> Column:
        """The rows of the tile of each of *parts*, or their digits, as few matrices as possible."""
        if self.copies == 1:
            return column_of([(x.tile.piece.row_tile,) for x in parts], self.queries_of)
        keys = [("digits", x.tile.turn % 2, x.rows, self.width) for x in parts]
        return column_of(keys, lambda *key: ((self.slot(*key),),))

    def queries_of(self, tile: RowTile) -> tuple[tuple[GmView, ...], ...]:
        """The rows of *tile*, and their rotary parts if there are any."""
        names = ("query", "query_rope")[: 2 if self.plan.rows.a.rope_size else 1]
        return tuple(tuple(self._views(self.sides[name], tile, 0, tile.rows)) for name in names)

    def target(self, tile: RowTile, row: int, rows: int) -> Target:
        """The destination of rows [row, row + rows) of *tile*."""
        find = self._tokens if self.plan.rows.by_token else self._views
        outputs = tuple(find(self.sides["output"], tile, row, rows))
        sums = (self._sums(self.sides[name], tile, row, rows) for name in self.plan.rows.a.sums)
        return Target(outputs, tuple(chain(*sums)), tuple(self._blind(tile, row, rows)))

    def padding(self, most: int) -> Iterator[tuple[int, Target]]:
        """Places of tokens that requests do not have, up to *most* of a head at a time."""
        a, side = self.plan.rows.a, self.sides["output"]
        longest = 0 if a.is_packed else a.longest_query
        for request, length in enumerate(a.query_lengths):
            for head, (row, rows) in product(
                range(a.query_heads), tuple(pieces(max(0, longest - length), most))
            ):
                place = request, head, length + row
                first, pitch = a.element.nbytes(side.at(*place)), side.token_pitch
                own = GmView("output", a.element, rows, self.width, pitch, first)
                sums = tuple((0, 1, self._sums_of(self.sides[x], place, rows)) for x in a.sums)
                yield rows, Target((own,), sums, ())

    def _tokens(self, side: Side, tile: RowTile, row: int, rows: int) -> Iterator[GmView]:
        """Rows [row, row + rows) of *tile* in *side*, as a matrix of heads for each token.

        Outputs are stored this way, token by token (CopyAttenOutUbToGm, attention/common/op_kernel/
        memory_copy.h).
        """
        element, first_head = self.plan.rows.a.element, tile.head * self.plan.rows.a.group
        for run in self.plan.rows.runs(tile.request, tile.row + row, rows):
            for token in range(run.token, run.token + run.tokens):
                first = element.nbytes(side.at(tile.request, first_head + run.head, token))
                yield GmView(side.name, element, run.heads, side.columns, side.head_pitch, first)

    def _views(self, side: Side, tile: RowTile, row: int, rows: int) -> Iterator[GmView]:
        """Rows [row, row + rows) of *tile* in *side*, as few matrices as possible."""
        element, width, pitch = self.plan.rows.a.element, side.columns, side.token_pitch
        first_head = tile.head * self.plan.rows.a.group
        for run in self.plan.rows.runs(tile.request, tile.row + row, rows):
            start = element.nbytes(side.at(tile.request, first_head + run.head, run.token))
            if run.heads == 1:
                yield GmView(side.name, element, run.tokens, width, pitch, start)
            elif pitch == run.heads * side.head_pitch:
                yield GmView(side.name, element, run.rows, width, side.head_pitch, start)
            else:
                for token in range(run.tokens):
                    first = start + element.nbytes(token * pitch)
                    yield GmView(side.name, element, run.heads, width, side.head_pitch, first)

    def _sums(
        self, side: Side, tile: RowTile, row: int, rows: int
    ) -> Iterator[tuple[int, int, GmView]]:
        """Copies of sums of rows to *side*: first row, distance of rows, and view."""
        at, first_head = 0, tile.head * self.plan.rows.a.group
        for run in self.plan.rows.runs(tile.request, tile.row + row, rows):
            by_head = run.tokens >= run.heads
            count, every = (run.tokens, run.heads) if by_head else (run.heads, 1)
            for index in range(run.heads if by_head else run.tokens):
                head, token = (index, 0) if by_head else (0, index)
                place = tile.request, first_head + run.head + head, run.token + token
                view = self._sums_of(side, place, count, by_head=by_head)
                yield at + (index if by_head else index * run.heads), every, view
            at += run.rows

    def _sums_of(
        self, side: Side, place: tuple[int, int, int], count: int, *, by_head: bool = True
    ) -> GmView:
        """Sums of *count* tokens of a head, or heads of a token, from *place* on."""
        (request, head, token), first = place, side.at(*place)
        following = side.at(request, head + (not by_head), token + by_head)
        pitch, nbytes = (following - first if count > 1 else 0), FLOAT32.nbytes(first)
        return GmView(side.name, FLOAT32, count, side.columns, pitch, nbytes)

    def _blind(self, tile: RowTile, row: int, rows: int) -> Iterator[tuple[int, int]]:
        """Rows of tokens that see no key, relative to *row*."""
        every, at = self.plan.rows, 0
        low, high = every.blind(tile.request)
        if low == 0 and high == every.a.query_lengths[tile.request]:
            return
        for run in every.runs(tile.request, tile.row + row, rows):
            before = min(run.tokens, max(0, low - run.token))
            behind = min(run.tokens - before, max(0, run.token + run.tokens - high))
            if before:
                yield at, before * run.heads
            if behind:
                yield at + (run.tokens - behind) * run.heads, behind * run.heads
            at += run.rows

    # ---- keys and values ----

    def by_keys(self, write: Callable[..., Hashable], parts: Sequence[Part]) -> Column:
        """*write* of the keys of each of *parts*: request, head, first key and keys."""
        return column_of([x.of_keys for x in parts], write)

    def operands(self, name: str, parts: Sequence[Part]) -> Column:
        """The operands for the cube in *name*, key or value, for each of *parts*."""
        if not self.plan.rows.a.dequantises:
            return self.by_keys(partial(self.keys, name, self.factor), parts)
        keys = [
            (f"{name}s", x.tile.number % DEQUANTISED_SLOTS, x.tile.keys, self.width) for x in parts
        ]
        return column_of(keys, lambda *key: (Piece(self.slot(*key)),))

    def keys(
        self, name: str, element: DType, request: int, head: int, key: int, keys: int
    ) -> tuple[Piece, ...]:
        """*keys* in *name*, key or value, from *key* on, in contiguous pieces."""
        page, place = self.plan.rows.a.paging, (request, head)
        if page is None:
            return (self._piece(name, element, *place, key, keys),)
        found: list[Piece] = []
        at = key
        while at < key + keys:
            index, token = divmod(at, page.block_size)
            rows = min(page.block_size - token, key + keys - at)
            number = request * page.width + index
            entry = GmView("block_table", INT32, 1, 1, 0, INT32.nbytes(number))
            # The first entry of a line, and that of a tile, is read from global memory.
            is_cached = at > key and number % LINE_ENTRIES > 0
            block = page.tables[request][index] * page.block_size
            own = self._piece(name, element, *place, token, rows, block)
            found.append(own._replace(entry=entry, is_cached=is_cached))
            at += rows
        return tuple(found)

    def _piece(
        self,
        name: str,
        element: DType,
        request: int,
        head: int,
        token: int,
        tokens: int,
        block: int = 0,
    ) -> Piece:
        """*tokens* from *token* on, of a block that begins *block* tokens into a cache."""
        a, views = self.plan.rows.a, []
        is_nz = a.paging is not None and a.paging.is_nz
        for each in (name, "key_rope")[: 2 if name == "key" and a.rope_size else 1]:
            side = self.sides[each]
            place = block * a.kv_heads * side.columns + side.at(request, head, token)
            rows, columns, pitch = tokens, side.columns, side.token_pitch
            if is_nz:
                # One row for each column of fractals.
                rows, columns = side.columns // pitch, tokens * pitch
                pitch = side.head_pitch // rows
            views.append(GmView(each, element, rows, columns, pitch, element.nbytes(place)))
        return Piece(views[0], rotated=views[1] if len(views) > 1 else None, is_nz=is_nz)

    def scales(self, scales: Scales, request: int, head: int, key: int, keys: int) -> GmView:
        """The scales of a head's columns, of *keys* from *key* on, or a single one."""
        count = {"tensor": 1, "channel": self.width, "token": keys}[scales.per]
        place = scales.place(request, head, key, self.width)
        view = GmView.vector(scales.name, scales.dtype, count)
        return view.shifted_to(scales.dtype.nbytes(place))


def joined(view: GmView) -> GmView:
    """*view* as one row if its rows are contiguous."""
    if view.rows > 1 and view.pitch != view.columns:
        return view
    return GmView(view.name, view.dtype, 1, view.rows * view.columns, 0, view.offset_bytes)
