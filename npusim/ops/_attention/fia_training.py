"""The first half of a vector core's work in training: like that of FIA, with pse and dropout.

.. code-block:: text

    s = scores, scaled and biased, hidden ones -FLT_MAX
    m' = max(m, max(s));  e = exp(m - m');  p = exp(s - m');  l' = e * l + sum(p)
    weights = p, with dropout, in 16 bits, ties away from zero

See :mod:`npusim.ops._attention.scores_vector`. Before the tiles, each vector core stores the
distances from which it makes a bias, and all of them convert a mask of bits to bytes.

Sources: ops-transformer@c29bc10 attention/flash_attention_score, op_host,
flash_attention_score_tiling_general.cpp (FlashAttentionScoreTilingDropMask, pseAlibiBaseS1), and
op_kernel, flash_attention_score_s1s2_bn2gs1.h (ProcessVec1). Assumed: only the vector cores that
have tiles convert bits.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import NamedTuple

import numpy as np

from npusim.data.dtypes import UINT8
from npusim.data.integers import ceil_div
from npusim.kernel.cross_core import sync_all
from npusim.kernel.launch import VECTOR_CORES_OF_A_GROUP as VECTOR_CORES
from npusim.kernel.steps import Column, Step, column_of
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.kernel.wide_plane import WidePlane
from npusim.ops._attention.fia_tiling import RowTile
from npusim.ops._attention.fia_vector import BEFORE, COUNT, MaskStep, Softmax, Vector
from npusim.ops._attention.places import Memory, Part
from npusim.ops._attention.scores_vector import (
    BiasPart,
    Dropping,
    Place,
    ScoreBias,
    Unpacking,
    store_distances,
)

ALL_VECTORS = 10
"""The flag by which vector cores wait for each other."""
BITS_UNIT, MOST_BITS = 2048, 32768
"""A core converts a multiple of the first number of bits, the second at a time."""


class Extras(NamedTuple):
    """What a loop needs besides its scores."""

    masks: tuple[MaskStep, ...]
    bias: BiasPart | None
    kept: GmView | None


def unpacking_of(core: VectorCore, memory: Memory) -> Unpacking | None:
    """The conversion of bits to bytes, if the call needs one; its buffers are free afterwards."""
    count = memory.kept_bytes
    if not count:
        return None
    workers = VECTOR_CORES * max(1, len(memory.plan.cores))
    own = ceil_div(ceil_div(count, BITS_UNIT), workers) * BITS_UNIT
    most = min(MOST_BITS, own)
    found = Unpacking(core, count, ceil_div(own, most) * most, most)
    core.reset_buffers()
    return found


class TrainingSoftmax(Softmax):
    """Writes the first half of tiles in training."""

    def __init__(self, vector: Vector, unpacking: Unpacking | None) -> None:
        super().__init__(vector)
        self._unpacking = unpacking
        core, a = vector.core, vector.a
        self._bias = ScoreBias(core, a, vector.between)
        self._dropping = None
        if a.dropout is not None:
            self._dropping = Dropping(core, a.dropout, vector.between)
            self._kept_in = core.vecin(UINT8, COUNT)

    # ---- before tiles ----

    def steps(self) -> list[Step]:
        """Distances and bytes of the mask come first."""
        cores = np.arange(VECTOR_CORES * max(1, len(self._memory.plan.cores)))
        first, found = np.full(cores.size, BEFORE - 1), []
        if self._memory.distance_rows:
            views = [self._memory.distances(core % VECTOR_CORES) for core in cores.tolist()]
            found.append(Step(self._store_distances, (views,), cores, first))
        if self._unpacking is not None:
            found += self._unpacking.steps(BEFORE - 1)
            wait = partial(sync_all, self._core, "mte3", "mte2", ALL_VECTORS)
            found += [Step(stage, (), cores, first) for stage in (self._core.end_stage, wait)]
        return [*found, *super().steps()]

    def _store_distances(self, view: GmView) -> None:
        store_distances(self._core, self._vector.half_mask, view)

    # ---- tiles ----

    def of_loops(self) -> Column:
        """The extras of each loop of each part."""
        a, parts = self._vector.a, self._vector.parts
        if a.bias is None and a.dropout is None:
            return super().of_loops()
        keys = [
            (
                x._replace(
                    tile=x.tile._replace(turn=0, number=0, core=0, is_first=False, is_last=False)
                ),
            )
            for x in parts
        ]
        return column_of(keys, self._of_part)

    def _loops(
        self, tile: RowTile, key: int, keys: int, first: int, rows: int
    ) -> tuple[Hashable, ...]:
        found = self._masks(tile, key, keys, first, rows)
        return tuple(Extras(masks, None, None) for masks in found)

    def _of_part(self, part: Part) -> tuple[Hashable, ...]:
        a, found, tile = self._vector.a, [], part.tile.piece.row_tile
        key, keys = part.tile.key, part.tile.keys
        masks = self._masks(tile, key, keys, part.row, part.rows)
        loops = self._vector.loops(keys, part.rows)
        for (row, rows), own in zip(loops, masks, strict=True):
            ((token, tokens, head, _),) = self._memory.plan.rows.runs(
                tile.request, tile.row + part.row + row, rows
            )
            place = Place(tile.request, tile.head * a.group + head, token, tokens, key, keys)
            distances = None
            if self._memory.distance_rows:
                distances = self._memory.distances(part.half)[:rows, :keys]
            bias = self._bias.part(place, distances, is_cached=row > 0)
            kept = self._dropping.view(place) if self._dropping is not None else None
            found.append(Extras(own, bias, kept))
        return tuple(found)

    def rows(
        self,
        parity: int,
        before: int,
        row: int,
        scores: GmView,
        weights: GmView,
        masks: Extras,
    ) -> None:
        """Process some rows; sums precede dropout."""
        plane = self.scaled(scores, masks)
        kept = None
        if masks.kept is not None and self._dropping is not None:
            kept = self._kept_in.alloc()
            self._dropping.load(kept, masks.kept, plane.pitch)
            self._kept_in.enque(kept)
        self._exponentials(row, parity, before, plane)
        if kept is None or self._dropping is None:
            self._store(weights, plane)
            self._add_sums(row, parity, before, plane)
        else:
            self._add_sums(row, parity, before, plane)
            kept = self._kept_in.deque()
            self._dropping.drop(plane.tile, plane, kept)
            self._kept_in.free(kept)
            self._store(weights, plane)
        self._vector.wide_in.free(plane.tile)

    def scaled(self, scores: GmView, masks: Extras) -> WidePlane:
        """*scores*, scaled, biased and hidden; free its tile."""
        vector, part, loaded = self._vector, masks.bias, None
        plane = self._loaded(scores)
        if part is not None:
            loaded = self._core.load_rows(vector.second_in, part.values, pitch=plane.pitch)
        self._bias.scale(plane, part, loaded)
        if loaded is not None:
            vector.second_in.free(loaded)
        self._hide_all(plane, masks.masks)
        return plane
