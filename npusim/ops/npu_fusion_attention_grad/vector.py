"""What vector cores do between the products: scores to weights, slopes to differences.

.. code-block:: text

    p = exp(scores * scale - softmax_max) / softmax_sum        hidden scores: -FLT_MAX
    weights = T(p)                                             T: ties away from zero
    differences = T((slopes - delta) * p)

A loop is 8192 elements: up to 256 keys, and as many tokens as that leaves. The first vector core
has the first half of the loops of tokens, rounded down. p stays in the unified buffer.

Sources: ops-transformer@c29bc10 attention/flash_attention_score_grad/op_kernel,
flash_attention_score_grad_s1s2_bn2gs1s2_sab.h (ComputeVec, SubGrapA and SubGrapB, whose buffers
and waits these are).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, UINT8
from npusim.data.integers import align_up, ceil_div
from npusim.isa import Local
from npusim.kernel.core import TileQueue
from npusim.kernel.launch import VECTOR_CORES_OF_A_GROUP as VECTOR_CORES
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Step, column_of
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, repeat
from npusim.kernel.wide_plane import WidePlane, by_rows
from npusim.ops._attention.fia_sizes import KEYS_ALIGNED
from npusim.ops._attention.fia_tiling import Rows, Run
from npusim.ops._attention.fia_vector import COMPARED, MaskStep, mask_step, stencil
from npusim.ops._attention.places import joined
from npusim.ops._attention.problem import MASK_EXTENT, SUM_COPIES
from npusim.ops.npu_fusion_attention_grad.cube import SCORES_READY, TURNS, WEIGHTS_READY
from npusim.ops.npu_fusion_attention_grad.tiles import Places, Tile

ELEMENTS, LOOP_KEYS, LOOP_TOKENS = 8192, 256, 128
"""Elements of a loop, and keys and tokens of it at most."""


class Part(NamedTuple):
    """What one of both vector cores has of a tile."""

    tile: Tile
    row: int
    rows: int
    half: int


class Loop(NamedTuple):
    """Some tokens and keys of a part."""

    row: int
    rows: int
    key: int
    keys: int


def loop_tokens(tokens: int, keys: int) -> int:
    """Tokens of a loop of a tile of *tokens* x *keys*.

    >>> loop_tokens(512, 512), loop_tokens(100, 16)
    (32, 100)
    """
    most = ELEMENTS // align_up(min(keys, LOOP_KEYS), KEYS_ALIGNED)
    return min(most, tokens, LOOP_TOKENS)


def parts_of(tile: Tile) -> Iterator[Part]:
    """What both vector cores have of *tile*."""
    step = loop_tokens(tile.tokens, tile.keys)
    first = ceil_div(tile.tokens, step) // VECTOR_CORES * step
    yield Part(tile, 0, first, 0)
    yield Part(tile, first, tile.tokens - first, 1)


def loops_of(part: Part) -> Iterator[Loop]:
    """The loops of a part: all keys of some tokens, then the next tokens."""
    for row, rows in pieces(part.rows, loop_tokens(part.tile.tokens, part.tile.keys)):
        for key, keys in pieces(part.tile.keys, LOOP_KEYS):
            yield Loop(row, rows, key, keys)


class Vector:
    """Writes what vector cores do with tiles."""

    def __init__(self, places: Places, core: VectorCore) -> None:
        self._places, self._a, self._core = places, places.a, core
        # A buffer may be filled again when what came of it has been stored.
        self._scores = core.tiles(FLOAT32, ELEMENTS, "mte2", "mte3")
        self._slopes = core.tiles(FLOAT32, ELEMENTS, "mte2", "mte3")
        self._weights = core.tile(self._a.element, ELEMENTS)
        self._differences = core.tile(self._a.element, ELEMENTS)
        self._shares = core.tile(FLOAT32, ELEMENTS)
        """p."""
        self._sums = core.tile(FLOAT32, 2 * LOOP_TOKENS * SUM_COPIES)
        self._delta = core.tile(FLOAT32, LOOP_TOKENS * SUM_COPIES)
        self._mask = core.tile(UINT8, ELEMENTS)
        self._half_mask = core.tile(FLOAT16, ELEMENTS)
        self._bits = core.tile(UINT8, ELEMENTS // 8)

    def step(self) -> Step:
        """All tiles."""
        places = self._places
        parts = [part for tile in places.tiles for part in parts_of(tile)]

        def slots(name: str) -> list[GmView]:
            views = ((x, places.slot(name, x.tile)) for x in parts)
            return [view[x.row : x.row + x.rows, :] for x, view in views]

        def sums(name: str) -> list[GmView]:
            return [
                places.sums(name, x.tile.request, x.tile.head, x.tile.token + x.row, x.rows)
                for x in parts
            ]

        names = ("scores", "slopes", "weights", "differences")
        of_rows = ("softmax_max", "softmax_sum", "delta")
        # A mask is the same for all heads, wherever the tile runs.
        keys = [
            (x._replace(tile=x.tile._replace(head=0, core=0, number=0, is_last=False)),)
            for x in parts
        ]
        masks = column_of(keys, self._masks)
        core = np.array([VECTOR_CORES * x.tile.core + x.half for x in parts], np.int64)
        order = np.array([TURNS * x.tile.number for x in parts], np.int64)
        arguments = (*map(slots, names), *map(sums, of_rows), masks)
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
        masks: tuple[tuple[MaskStep, ...], ...],
    ) -> None:
        """What a vector core has of a tile; of each loop come the masks that hide scores."""
        core = self._core
        core.cross_core_wait_flag("group", "scalar", SCORES_READY)
        wide, step = scores.columns, loop_tokens(scores.rows, scores.columns)
        cuts = (
            (slice(row, row + rows), slice(key, key + keys))
            for row, rows in pieces(scores.rows, step)
            for key, keys in pieces(wide, LOOP_KEYS)
        )
        for (rows, keys), hiding in zip(cuts, masks, strict=True):
            tiles = (view[rows, keys] for view in (scores, slopes, weights, differences))
            sums = (view[rows, :] for view in (largest, total, delta))
            repeat(core, self._loop, *tiles, *sums, hiding)
        if not masks:
            # A core without rows must not get ahead of the cube either.
            core.sync("mte2", "mte3")
        core.cross_core_set_flag("group", "mte3", WEIGHTS_READY)

    def _loop(
        self,
        scores: GmView,
        slopes: GmView,
        weights: GmView,
        differences: GmView,
        largest: GmView,
        total: GmView,
        delta: GmView,
        masks: tuple[MaskStep, ...],
    ) -> None:
        core, shares = self._core, self._shares
        plane = self._loaded(self._scores, scores, (total, largest), masks[:1])
        block = scores.rows * SUM_COPIES
        core.mul(plane.whole, plane.whole, self._a.scale)
        for number, mask in enumerate(masks):
            if number:
                core.sync("vector", "mte2")
                self._load_mask(mask, plane.pitch)
                core.sync("mte2", "vector")
            self._hide(plane, mask)
        by_rows(core, "sub", plane, self._sums[block:][:block])
        found = WidePlane(shares, plane.rows, plane.columns, plane.pitch)
        core.exp(found.whole, plane.whole)
        by_rows(core, "div", found, self._sums[:block])
        self._store(self._scores, plane, found, self._weights, weights)

        plane = self._loaded(self._slopes, slopes, (delta,), ())
        by_rows(core, "sub", plane, self._delta[:block])
        core.mul(plane.whole, plane.whole, found.whole)
        self._store(self._slopes, plane, plane, self._differences, differences)

    def _loaded(
        self,
        queue: TileQueue,
        view: GmView,
        sums: tuple[GmView, ...],
        masks: tuple[MaskStep, ...],
    ) -> WidePlane:
        """*view* in a buffer of *queue*, with sums of its rows, and a mask."""
        core, pitch, tile = self._core, align_up(view.columns, KEYS_ALIGNED), queue.alloc()
        first = self._delta if len(sums) == 1 else self._sums
        for number, rows in enumerate(sums):
            count = rows.rows * SUM_COPIES
            core.fill(first[number * count :][:count], joined(rows), SUM_COPIES)
        for mask in masks:
            self._load_mask(mask, pitch)
        core.fill(tile, view, pitch)
        queue.enque(tile)
        core.sync("mte2", "vector")
        return WidePlane(queue.deque(), view.rows, view.columns, pitch)

    def _store(
        self, queue: TileQueue, plane: WidePlane, found: WidePlane, out: Local, view: GmView
    ) -> None:
        """*found*, rounded, to *view*; then the buffer of *plane* may be filled again."""
        core = self._core
        core.cast(out[: found.whole.count], found.whole, "round")
        core.sync("vector", "mte3")
        core.put_rows(out, view, found.pitch)
        queue.free(plane.tile)

    # ---- masks ----

    def _masks(self, part: Part) -> Hashable:
        """What hides scores, of each loop of *part*; nothing where all are seen."""
        return tuple(tuple(self._masks_of(part, loop)) for loop in loops_of(part))

    def _masks_of(self, part: Part, loop: Loop) -> Iterator[MaskStep]:
        every, request = Rows(self._a), part.tile.request
        token, key = part.tile.token + part.row + loop.row, part.tile.key + loop.key
        keys, run = loop.keys, Run(token, loop.rows, 0, 1)
        if every.mask is not None:
            place = request * every.mask.request + token * every.mask.pitch + key
            yield mask_step("eq", every.mask.pitch, (run,), [place], keys)
        before, after = self._a.window(request)
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
        """Replace scores of *plane* that *mask* hides by the lowest number."""
        core, whole = self._core, plane.whole
        count = align_up(whole.count, COMPARED)
        half, bits = self._half_mask[:count], self._bits[: count // 8]
        core.cast(half, self._mask[:count], "none")
        core.compare(mask.visible, bits, half, 0.0)
        core.select(whole, bits[: whole.count // 8], whole, self._a.hidden)
