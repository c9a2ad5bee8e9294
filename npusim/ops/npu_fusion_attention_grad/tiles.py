"""Tiles of the gradient of attention, their cores, and the layout of tensors and workspaces.

A tile is some tokens of a query head against some keys. Tiles with visible keys are counted head by
head, in a head by their keys, then by their tokens, and assigned to the cube cores round-robin.

.. code-block:: text

    scores, slopes           query @ key.T and dy @ value.T of a tile, fp32
    weights, differences     the results from them, in the type of query
    query_sum ...            the gradients in fp32, laid out as their tensors
    delta                    rowsum(dy * attention_in), eight times, head by head
    kept, distances          of dropout, and of pse_type 2 and 3, as in forward

The first four are workspaces of each core, with two slots each, used alternately by tiles; some
calls have them as fractals, each 16 columns of all tokens.

Sources: ops-transformer@c29bc10 attention/flash_attention_score_grad, op_host,
flash_attention_score_grad_tiling_s1s2_bn2gs1s2_sab.cpp (DoSplit, AdjustCvInner), and op_kernel
(CalcValidBlock). Assumed: balanced tiles have at most 512 tokens and keys, where the vendor's may
have 1024 of one and fewer of the other; heads of more than 128 columns have smaller ones, which
fit L1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from npusim.data.integers import align_up, ceil_div
from npusim.kernel.program import Binding
from npusim.kernel.views import GmView
from npusim.ops._attention.fia_tiling import Rows
from npusim.ops._attention.problem import SUM_COPIES, Attention
from npusim.ops._attention.sides import Side, sides_of

EXTENT, NARROW = 512, 128
"""Tokens and keys of a tile for heads of up to this many columns; fewer for wider ones."""
BALANCED = 4
"""Fewer keys than this many tiles, none of them hidden, are split into tiles of equal size."""
UNIT, SEEN_UNIT = 16, 8
"""Tokens and keys of a tile are multiples of the former, its visible keys of the latter."""
SLOTS = 2
LEAST_FRACTAL, FRACTAL_COLUMNS = 512, 128
"""Tokens and keys from which on a bfloat16 call whose heads have this many columns, or 64 without a
mask, has its intermediate matrices as fractals."""
SMALL_KEYS, WHOLE_KEYS = 5000, 128
"""So do calls with fewer keys than this that are no multiple of the other value."""
SIDES = {
    "query": "query", "key": "key", "value": "value", "dy": "output", "attention_in": "output",
    "query_sum": "query", "key_sum": "key", "value_sum": "value",
}  # fmt: skip
"""Tensor or workspace -> the one whose tokens have the same locations."""
SUMS = ("query_sum", "key_sum", "value_sum")
DISTANCE_ROWS, DISTANCE_COLUMNS = 128, 256
"""Most tokens and keys of a loop of a vector core, for which it stores distances."""


class Tile(NamedTuple):
    """Some tokens of a head of a request against some keys, and the core that computes them."""

    request: int
    head: int
    """The query head."""
    token: int
    tokens: int
    key: int
    keys: int
    core: int
    number: int
    """The number of tiles of its core before it."""
    is_last: bool


class Extents(NamedTuple):
    """The most tokens and keys of a tile."""

    tokens: int
    keys: int


def extents(a: Attention) -> Extents:
    """The limits for all tiles of a call."""
    most = EXTENT
    while most * a.head_size > EXTENT * NARROW:
        most //= 2
    sees_all = not a.is_stencil and not a.has_own_mask
    if sees_all and a.longest_kv < BALANCED * EXTENT:
        return Extents(*(_balanced(x, most) for x in (a.longest_query, a.longest_kv)))
    return Extents(most, most)


def has_fractals(a: Attention) -> bool:
    """Whether scores, slopes, weights and differences are matrices of fractals (ChooseL1Custom).

    Assumed: they are rows if tokens or keys are not whole fractals.
    """
    if a.is_packed or a.longest_query % UNIT or a.longest_kv % UNIT:
        return False
    is_long = min(a.longest_query, a.longest_kv) >= LEAST_FRACTAL
    is_custom = a.element is BFLOAT16 and is_long and extents(a) == (EXTENT, EXTENT)
    takes_size = a.head_size == FRACTAL_COLUMNS or (a.head_size == 64 and not a.has_mask)
    is_odd = a.longest_kv % WHOLE_KEYS != 0 and a.longest_kv < SMALL_KEYS
    return is_odd or (is_custom and takes_size)


def _balanced(extent: int, most: int) -> int:
    """The size of equal parts of *extent*, as few as possible of at most *most*."""
    return align_up(ceil_div(extent, ceil_div(extent, most)), UNIT)


@lru_cache(maxsize=4)
def schedule(a: Attention, cores: int) -> tuple[Tile, ...]:
    """The tiles of all cores, by their index."""
    found = [Tile(*each, 0, 0, False) for each in _seen(a)]
    return tuple(
        tile._replace(
            core=index % cores, number=index // cores, is_last=index + cores >= len(found)
        )
        for index, tile in enumerate(found)
    )


def _seen(a: Attention) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Request, head, tokens and keys of tiles with a visible key."""
    size, unit = extents(a), UNIT if has_fractals(a) else SEEN_UNIT
    for request, (queries, keys) in enumerate(zip(a.query_lengths, a.kv_lengths, strict=True)):
        before, after = Rows(a).reach(request)
        for head in range(a.query_heads):
            for key in range(0, keys, size.keys):
                for token in range(0, queries, size.tokens):
                    tokens = min(size.tokens, queries - token)
                    first = 0 if before is None else token + before
                    end = min(key + size.keys, keys)
                    if after is not None:
                        seen = max(0, token + tokens + after, Rows(a).prefix(request))
                        end = min(end, align_up(seen, unit))
                    if key < end and first < key + size.keys:
                        yield request, head, token, tokens, key, end - key


@dataclass(frozen=True)
class Places:
    """The tensors and workspaces of a call."""

    a: Attention
    cores: int

    @cached_property
    def tiles(self) -> tuple[Tile, ...]:
        return schedule(self.a, self.cores)

    @cached_property
    def extents(self) -> Extents:
        return extents(self.a)

    @cached_property
    def has_fractals(self) -> bool:
        return has_fractals(self.a)

    @cached_property
    def _sides(self) -> Mapping[str, Side]:
        return sides_of(self.a)

    @cached_property
    def _by_head(self) -> Side:
        """The layout of sums that are stored head by head, whatever the call's layout."""
        return sides_of(replace(self.a, sums_by_token=False))["softmax_max"]

    def count(self, name: str) -> int:
        """Elements of tensor or workspace *name*."""
        a, side = self.a, self._sides[SIDES[name]]
        is_key = SIDES[name] in ("key", "value")
        lengths, longest = (
            (a.kv_lengths, a.longest_kv) if is_key else (a.query_lengths, a.longest_query)
        )
        rows = sum(lengths) if a.is_packed else a.requests * longest
        return rows * side.heads * side.columns

    # ---- tensors ----

    def rows(self, name: str, request: int, head: int, first: int, count: int) -> GmView:
        """*count* tokens or keys of *head* of the query in *name*, from *first* on."""
        side = self._sides[SIDES[name]]
        own = head // (self.a.query_heads // side.heads)
        dtype = FLOAT32 if name in SUMS else self.a.element
        place = dtype.nbytes(side.at(request, own, first))
        return GmView(name, dtype, count, side.columns, side.token_pitch, place)

    def of_tokens(self, name: str, tile: Tile) -> GmView:
        """The tokens of *tile* in *name*."""
        return self.rows(name, tile.request, tile.head, tile.token, tile.tokens)

    def of_keys(self, name: str, tile: Tile) -> GmView:
        """The keys of *tile* in *name*."""
        return self.rows(name, tile.request, tile.head, tile.key, tile.keys)

    def sums(self, name: str, request: int, head: int, first: int, count: int) -> GmView:
        """Maxima, sums or delta of *count* tokens, a block each."""
        side = self._by_head if name == "delta" else self._sides[name]
        place = FLOAT32.nbytes(side.at(request, head, first))
        return GmView(name, FLOAT32, count, SUM_COPIES, side.token_pitch, place)

    # ---- workspaces ----

    @cached_property
    def _of_tile(self) -> dict[str, DType]:
        """The workspaces of each core."""
        narrow = self.a.element
        return {"scores": FLOAT32, "slopes": FLOAT32, "weights": narrow, "differences": narrow}

    @cached_property
    def _slot_elements(self) -> int:
        size = self.extents
        return size.tokens * align_up(size.keys, UNIT)

    @cached_property
    def workspaces(self) -> dict[str, int]:
        """Name -> bytes."""
        slots = self.cores * SLOTS * self._slot_elements
        found = {name: dtype.nbytes(slots) for name, dtype in self._of_tile.items()}
        found |= {name: FLOAT32.nbytes(self.count(name)) for name in SUMS}
        rows = self.count("dy") // self.a.value_size
        found |= {"delta": FLOAT32.nbytes(rows * SUM_COPIES), "kept": self.kept_bytes}
        found["distances"] = self.cores * SLOTS * self._distance_bytes
        return {name: nbytes for name, nbytes in found.items() if nbytes}

    def of_core(self, core: int) -> dict[str, Binding]:
        """The bindings of its workspaces' names on a core."""
        slots = core * SLOTS * self._slot_elements
        found = {name: Binding(name, dtype.nbytes(slots)) for name, dtype in self._of_tile.items()}
        found |= {name: Binding(name) for name in (*SUMS, "delta", "kept")}
        if self.distance_rows:
            found["distances"] = Binding("distances", core * SLOTS * self._distance_bytes)
        return {name: binding for name, binding in found.items() if name in self.workspaces}

    @cached_property
    def kept_bytes(self) -> int:
        """Bytes of a dropout mask that is stored as bytes; 0 if there is none."""
        dropout = self.a.dropout
        return 0 if dropout is None or not dropout.in_bytes else self.a.score_count

    @cached_property
    def distance_rows(self) -> int:
        """Rows of the distances from which a vector core makes a bias; 0 without any."""
        bias = self.a.bias
        return 0 if bias is None or bias.kind != "slopes" else DISTANCE_ROWS

    @property
    def _distance_bytes(self) -> int:
        return FLOAT16.nbytes(self.distance_rows * DISTANCE_COLUMNS)

    def distances(self, half: int) -> GmView:
        """The distances of a vector core of a group."""
        rows, columns = self.distance_rows, DISTANCE_COLUMNS
        return GmView("distances", FLOAT16, rows, columns, columns, half * self._distance_bytes)

    def slot(self, name: str, tile: Tile) -> GmView:
        """The slot of *tile* in the workspace *name* of its core."""
        dtype, slot = self._of_tile[name], tile.number % SLOTS
        place = dtype.nbytes(slot * self._slot_elements)
        if self.has_fractals:
            columns = tile.tokens * UNIT
            return GmView(name, dtype, tile.keys // UNIT, columns, columns, place)
        pitch = align_up(tile.keys, UNIT)
        return GmView(name, dtype, tile.tokens, tile.keys, pitch, place)

    def part(self, slot: GmView, rows: tuple[int, int], columns: tuple[int, int]) -> GmView:
        """Some rows and columns of a slot, each given by its first one and count."""
        (row, height), (column, width) = rows, columns
        if self.has_fractals:
            across = slice(column // UNIT, ceil_div(column + width, UNIT))
            return slot[across, row * UNIT : (row + height) * UNIT]
        return slot[row : row + height, column : column + width]
