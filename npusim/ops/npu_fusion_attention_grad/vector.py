"""The work of vector cores between the products: scores to weights, slopes to differences.

.. code-block:: text

    p = exp(scores * scale - softmax_max) / softmax_sum        hidden scores: -FLT_MAX
    weights = T(p)                                             T: ties away from zero
    differences = T((slopes - delta) * p)

A loop is 8192 elements: up to 256 keys, and as many tokens as that leaves. The first vector core
takes the first half of the loops over tokens, rounded down; with fractals of the loops over keys. p
stays in the unified buffer.

Sources: ops-transformer@c29bc10 attention/flash_attention_score_grad/op_kernel,
flash_attention_score_grad_s1s2_bn2gs1s2_sab.h (ComputeVec, SubGrapA and SubGrapB, whose buffers
and waits these are).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT16, UINT8
from npusim.data.integers import align_up, ceil_div
from npusim.isa import BLOCK_BYTES, Local
from npusim.kernel.core import TileQueue
from npusim.kernel.launch import VECTOR_CORES_OF_A_GROUP as VECTOR_CORES
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Step, column_of
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, repeat
from npusim.kernel.wide_plane import WidePlane, by_rows
from npusim.ops._attention.fia_sizes import KEYS_ALIGNED
from npusim.ops._attention.fia_tiling import Rows, Run
from npusim.ops._attention.fia_vector import (
    COMPARED,
    MaskStep,
    mask_step,
    prefix_steps,
    stencil,
)
from npusim.ops._attention.places import joined
from npusim.ops._attention.problem import MASK_EXTENT, SUM_COPIES
from npusim.ops._attention.scores_vector import BiasPart, Dropping, Place, ScoreBias
from npusim.ops.npu_fusion_attention_grad.cube import SCORES_READY, TURNS, WEIGHTS_READY
from npusim.ops.npu_fusion_attention_grad.fractals import (
    half_pitch,
    to_fractals,
    to_rows,
    wide_pitch,
)
from npusim.ops.npu_fusion_attention_grad.tiles import UNIT, Places, Tile

ELEMENTS, LOOP_KEYS, LOOP_TOKENS = 8192, 256, 128
"""Elements of a loop, and its most keys and tokens."""
GAPS = 256
"""The most elements in the gaps between the fractals of a loop."""
KEPT_BYTES = LOOP_TOKENS * BLOCK_BYTES
"""Bytes of the bits of dropout: a block for each token."""


class Part(NamedTuple):
    """The part of a tile on one of the two vector cores."""

    tile: Tile
    half: int
    row: int
    rows: int
    key: int
    keys: int


class Loop(NamedTuple):
    """Some tokens and keys of a part."""

    row: int
    rows: int
    key: int
    keys: int


def loop_size(tokens: int, keys: int, *, has_fractals: bool = False) -> tuple[int, int]:
    """Tokens and keys of a loop of a tile of *tokens* x *keys*.

    >>> loop_size(512, 512), loop_size(100, 16), loop_size(512, 320, has_fractals=True)
    ((32, 256), (100, 16), (51, 160))
    """
    wide = min(keys, LOOP_KEYS)
    if has_fractals and UNIT < keys < VECTOR_CORES * LOOP_KEYS:
        wide = align_up(ceil_div(keys, VECTOR_CORES), UNIT)
    return min(ELEMENTS // align_up(wide, KEYS_ALIGNED), tokens, LOOP_TOKENS), wide


def parts_of(tile: Tile, *, has_fractals: bool) -> Iterator[Part]:
    """The parts of *tile* on both vector cores."""
    tokens, wide = loop_size(tile.tokens, tile.keys, has_fractals=has_fractals)
    if has_fractals:
        first = ceil_div(tile.keys, wide) // VECTOR_CORES * wide
        yield Part(tile, 0, 0, tile.tokens, 0, first)
        yield Part(tile, 1, 0, tile.tokens, first, tile.keys - first)
        return
    first = ceil_div(tile.tokens, tokens) // VECTOR_CORES * tokens
    yield Part(tile, 0, 0, first, 0, tile.keys)
    yield Part(tile, 1, first, tile.tokens - first, 0, tile.keys)


def loops_of(part: Part, *, has_fractals: bool) -> Iterator[Loop]:
    """The loops of a part: over keys first, or with fractals over tokens."""
    tokens, wide = loop_size(part.tile.tokens, part.tile.keys, has_fractals=has_fractals)
    rows, keys = tuple(pieces(part.rows, tokens)), tuple(pieces(part.keys, wide))
    if has_fractals:
        yield from (Loop(*row, *key) for key in keys for row in rows)
    else:
        yield from (Loop(*row, *key) for row in rows for key in keys)


class Extras(NamedTuple):
    """What a loop needs besides the matrices of its tile."""

    masks: tuple[MaskStep, ...] = ()
    bias: BiasPart | None = None
    kept: GmView | None = None


Work = tuple[tuple[Loop, Extras], ...]
"""Loops, and the extras of each."""


class Vector:
    """Writes the vector cores' processing of tiles."""

    def __init__(self, places: Places, core: VectorCore) -> None:
        self._places, self._core = places, core
        self._a = a = places.a
        # A buffer may be filled again when the results from it have been stored.
        self._in_bytes = a.dropout is not None and a.dropout.in_bytes
        # A mask in bytes takes the room of gaps between fractals, of which such calls have none.
        room = ELEMENTS + (0 if self._in_bytes else GAPS)
        self._scores, self._slopes = (core.tiles(FLOAT32, room, "mte2", "mte3") for _ in range(2))
        self._weights, self._differences = (core.tile(self._a.element, room) for _ in range(2))
        self._shares = core.tile(FLOAT32, ELEMENTS)
        """p."""
        self._scratch = core.tile(FLOAT32, room)
        """Space to convert fractals to rows and back, or for a mask as fp16, and its bits."""
        self._half_mask = self._scratch.as_dtype(FLOAT16, ELEMENTS)
        self._bits = self._scratch[ELEMENTS // 2 :].as_dtype(UINT8, ELEMENTS // 8)
        self._sums = core.tile(FLOAT32, 2 * LOOP_TOKENS * SUM_COPIES)
        self._delta = core.tile(FLOAT32, LOOP_TOKENS * SUM_COPIES)
        self._mask = core.tile(UINT8, ELEMENTS)
        self._bias = ScoreBias(core, a, self._scratch)
        self._dropping = None
        if a.dropout is not None:
            self._dropping = Dropping(core, a.dropout, self._scratch)
            self._kept = core.vecin(UINT8, ELEMENTS if self._in_bytes else KEPT_BYTES)

    def step(self) -> Step:
        """The step of all tiles."""
        places = self._places
        has = places.has_fractals
        parts = [part for tile in places.tiles for part in parts_of(tile, has_fractals=has)]

        def slots(name: str) -> list[GmView]:
            return [
                places.part(places.slot(name, x.tile), (x.row, x.rows), (x.key, x.keys))
                for x in parts
            ]

        def sums(name: str) -> list[GmView]:
            return [
                places.sums(name, x.tile.request, x.tile.head, x.tile.token + x.row, x.rows)
                for x in parts
            ]

        names = ("scores", "slopes", "weights", "differences")
        of_rows = ("softmax_max", "softmax_sum", "delta")
        # A mask is the same for all heads, wherever the tile runs.
        has_head = self._a.bias is not None or self._a.dropout is not None
        keys = [
            (
                x._replace(
                    tile=x.tile._replace(
                        head=x.tile.head * has_head, core=0, number=0, is_last=False
                    )
                ),
            )
            for x in parts
        ]
        core = np.array([VECTOR_CORES * x.tile.core + x.half for x in parts], np.int64)
        order = np.array([TURNS * x.tile.number for x in parts], np.int64)
        work = column_of(keys, self._work)
        arguments = (*map(slots, names), *map(sums, of_rows), work)
        return Step(self._tile, arguments, core, order)

    def _tile(
        self,
        scores: GmView,
        slopes: GmView,
        weights: GmView,
        differences: GmView,
        largest: GmView,
        total: GmView,
        delta: GmView,
        work: Work,
    ) -> None:
        """Process a vector core's part of a tile, loop by loop."""
        core = self._core
        core.cross_core_wait_flag("group", "scalar", SCORES_READY)
        for (row, rows, key, keys), extras in work:
            place, own = ((row, rows), (key, keys)), slice(row, row + rows)
            slots = (scores, slopes, weights, differences)
            tiles = (self._places.part(slot, *place) for slot in slots)
            sums = (view[own, :] for view in (largest, total, delta))
            repeat(core, self._loop, (rows, keys), *tiles, *sums, extras)
        if not work:
            # A core without rows must not get ahead of the cube either.
            core.sync("mte2", "mte3")
        core.cross_core_set_flag("group", "mte3", WEIGHTS_READY)

    def _loop(
        self,
        shape: tuple[int, int],
        scores: GmView,
        slopes: GmView,
        weights: GmView,
        differences: GmView,
        largest: GmView,
        total: GmView,
        delta: GmView,
        extras: Extras,
    ) -> None:
        """Convert scores of *shape* to weights, then slopes to differences."""
        core, shares = self._core, self._shares
        first = extras._replace(masks=extras.masks[:1])
        plane = self._loaded(self._scores, scores, shape, (total, largest), first)
        block = plane.rows * SUM_COPIES
        self._bias.scale(plane, extras.bias, self._weights)
        for number, mask in enumerate(extras.masks):
            if number:
                core.sync("vector", "mte2")
                self._load_mask(mask, plane.pitch)
                core.sync("mte2", "vector")
            self._hide(plane, mask)
        by_rows(core, "sub", plane, self._sums[block:][:block])
        found = WidePlane(shares, plane.rows, plane.columns, plane.pitch)
        core.exp(found.whole, plane.whole)
        by_rows(core, "div", found, self._sums[:block])
        dropped = found
        if self._dropping is not None:
            dropped = replace(found, tile=plane.tile)
            kept = self._kept.deque()
            self._dropping.drop(dropped.tile, found, kept)
        self._store(self._scores, plane, dropped, self._weights, weights)

        plane = self._loaded(self._slopes, slopes, shape, (delta,), Extras())
        if self._dropping is not None:
            self._dropping.drop(plane.tile, plane, kept)
            self._kept.free(kept)
        by_rows(core, "sub", plane, self._delta[:block])
        core.mul(plane.whole, plane.whole, found.whole)
        self._store(self._slopes, plane, plane, self._differences, differences)

    def _loaded(
        self,
        queue: TileQueue,
        view: GmView,
        shape: tuple[int, int],
        sums: tuple[GmView, ...],
        extras: Extras,
    ) -> WidePlane:
        """*view* in a buffer of *queue* as rows, with their sums and the *extras*."""
        core, (rows, columns), tile = self._core, shape, queue.alloc()
        pitch = align_up(columns, KEYS_ALIGNED)
        first = self._delta if len(sums) == 1 else self._sums
        for number, of_rows in enumerate(sums):
            count = rows * SUM_COPIES
            core.fill(first[number * count :][:count], joined(of_rows), SUM_COPIES)
        if extras.bias is not None:
            core.fill(self._weights, extras.bias.values, pitch)
        for mask in extras.masks:
            self._load_mask(mask, pitch)
        if extras.kept is not None and self._dropping is not None:
            kept = self._kept.alloc()
            self._dropping.load(kept, extras.kept, pitch)
            self._kept.enque(kept)
        core.fill(tile, view, wide_pitch(rows) if self._places.has_fractals else pitch)
        queue.enque(tile)
        core.sync("mte2", "vector")
        tile = queue.deque()
        if self._places.has_fractals:
            to_rows(core, tile, self._scratch, rows, columns, pitch)
        return WidePlane(tile, rows, columns, pitch)

    def _store(
        self, queue: TileQueue, plane: WidePlane, found: WidePlane, out: Local, view: GmView
    ) -> None:
        """Round *found* and store it to *view*; then the buffer of *plane* may be refilled."""
        core, pitch = self._core, found.pitch
        core.cast(out[: found.whole.count], found.whole, "round")
        if self._places.has_fractals:
            to_fractals(core, out, self._scratch, found.rows, found.columns, pitch)
            pitch = half_pitch(found.rows)
        core.sync("vector", "mte3")
        core.put_rows(out, view, pitch)
        queue.free(plane.tile)

    # ---- masks, pse and dropout ----

    def _work(self, part: Part) -> Work:
        """The loops of *part* with their extras; no masks if all scores are visible."""
        loops = loops_of(part, has_fractals=self._places.has_fractals)
        return tuple((loop, self._extras(part, loop)) for loop in loops)

    def _extras(self, part: Part, loop: Loop) -> Extras:
        tile = part.tile
        place = Place(
            tile.request, tile.head,
            tile.token + part.row + loop.row, loop.rows, tile.key + part.key + loop.key, loop.keys,
        )  # fmt: skip
        distances = None
        if self._places.distance_rows:
            distances = self._places.distances(part.half)[: loop.rows, : loop.keys]
        is_cached = (loop.row, loop.key) != (0, 0)
        bias = self._bias.part(place, distances, is_cached=is_cached)
        kept = self._dropping.view(place) if self._dropping is not None else None
        return Extras(tuple(self._masks_of(part, loop)), bias, kept)

    def _masks_of(self, part: Part, loop: Loop) -> Iterator[MaskStep]:
        every, request = Rows(self._a), part.tile.request
        token, key = part.tile.token + part.row + loop.row, part.tile.key + part.key + loop.key
        keys, run = loop.keys, Run(token, loop.rows, 0, 1)
        if every.mask is not None:
            place = request * every.mask.request + token * every.mask.pitch + key
            yield mask_step("eq", every.mask.pitch, (run,), [place], keys)
        before, after = self._a.window(request)
        if every.prefix(request) and not self._a.has_own_mask:
            yield from prefix_steps(every, request, (run,), key, keys)
            return
        if after is not None and token + after < key + keys - 1:
            place = stencil(token + after - key, run, keys)
            yield mask_step("eq", MASK_EXTENT, (run,), [place], keys)
        if before is not None and token + loop.rows - 1 + before > key:
            place = stencil(token + before - 1 - key, run, keys)
            yield mask_step("ne", MASK_EXTENT, (run,), [place], keys)

    def _load_mask(self, mask: MaskStep, pitch: int) -> None:
        ((_, view),) = mask.runs
        self._core.fill(self._mask, view, pitch)

    def _hide(self, plane: WidePlane, mask: MaskStep) -> None:
        """Replace the scores of *plane* that *mask* hides by the lowest value."""
        core, whole = self._core, plane.whole
        if mask.rectangle:
            second = self._scratch.as_dtype(UINT8, whole.count)
            core.sync("vector", "mte2")
            core.fill(second, mask.rectangle[0][1], plane.pitch)
            core.sync("mte2", "vector")
            both = [x.as_dtype(INT16, whole.count // 2) for x in (self._mask, second)]
            core.bitwise("and", both[0], *both)
        count = align_up(whole.count, COMPARED)
        half, bits = self._half_mask[:count], self._bits[: count // 8]
        core.cast(half, self._mask[:count], "none")
        core.compare(mask.visible, bits, half, 0.0)
        core.select(whole, bits[: whole.count // 8], whole, self._a.hidden)
