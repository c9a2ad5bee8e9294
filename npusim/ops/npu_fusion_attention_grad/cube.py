"""The products of the gradient of attention: two before the vector cores' work, three after it.

.. code-block:: text

    slopes = dy @ value.T            scores = query @ key.T            both to workspaces
    query_sum += differences @ key             256 keys at a time, summed in L0C
    key_sum   += differences.T @ query         all tokens of the tile
    value_sum += weights.T @ dy                likewise

The last three are added up in global memory (atomic adds of the fixpipe). The first two of a tile
are computed before the last three of the tile before. L1 holds 256 rows of two operands twice, and
256 x 256 weights or differences twice; L0 holds 128 x 128 x 128.

Sources: ops-transformer@c29bc10 attention/flash_attention_score_grad/op_kernel,
flash_attention_score_grad_s1s2_bn2gs1s2_sab.h (ComputeMM1, ComputeL1CustomMMDqkv). Assumed: all
calls use L1 like those with 128 columns and 512 tokens and keys.
"""

from __future__ import annotations

import numpy as np

from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.isa import Local
from npusim.kernel.core import TileQueue
from npusim.kernel.matrices import L1Matrix
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Step
from npusim.kernel.views import GmView
from npusim.ops._attention.cube import L0, MatrixCore
from npusim.ops.npu_fusion_attention_grad.tiles import Places

SCORES_READY, WEIGHTS_READY, SUMS_READY = 2, 4, 6
"""Flags: from the cube to the vector cores, from these to the cube, and after the last sums."""
SLICE, SLICES = 256, 2
"""Rows of an operand in a buffer of L1, and the number of these buffers."""
TURNS, AHEAD, BEHIND = 2, 0, 3
"""Turns per tile: its first products are in its own turn, the others after the next tile's."""


class Cube:
    """Writes the programs of cube cores."""

    def __init__(self, spec: DeviceSpec, places: Places) -> None:
        self._places, element = places, places.a.element
        self.core = core = MatrixCore("npu_fusion_attention_grad", spec, element, alone=True)
        size = places.extents
        rows = min(SLICE, align_up(max(size), FRACTAL_ROWS))
        wide = rows * align_up(max(places.a.head_size, places.a.value_size), FRACTAL_ROWS)
        self._left = core.tiles(element, wide, "mte2", "mte1", SLICES, "l1")
        self._right = core.tiles(element, wide, "mte2", "mte1", SLICES, "l1")
        self._inner = core.tiles(element, rows * rows, "mte2", "mte1", SLICES, "l1")
        core.claim_l0()

    def steps(self) -> tuple[Step, ...]:
        """The steps of all tiles."""
        places, tiles = self._places, self._places.tiles
        core, order = np.array([x.core for x in tiles]), np.array([x.number for x in tiles])

        def of_tokens(name: str) -> list[GmView]:
            return [places.of_tokens(name, x) for x in tiles]

        def of_keys(name: str) -> list[GmView]:
            return [places.of_keys(name, x) for x in tiles]

        def slots(name: str) -> list[GmView]:
            return [places.slot(name, x) for x in tiles]

        dy, query, key = of_tokens("dy"), of_tokens("query"), of_keys("key")
        first = (dy, of_keys("value"), query, key, slots("slopes"), slots("scores"))
        sums = (of_tokens("query_sum"), of_keys("key_sum"), of_keys("value_sum"))
        last = [x.is_last for x in tiles]
        second = (dy, query, key, slots("weights"), slots("differences"), *sums, last)
        return (
            Step(self._ahead, first, core, TURNS * order + AHEAD),
            Step(self._behind, second, core, TURNS * order + BEHIND),
        )

    # ---- before the vector cores ----

    def _ahead(
        self,
        dy: GmView,
        value: GmView,
        query: GmView,
        key: GmView,
        slopes: GmView,
        scores: GmView,
    ) -> None:
        """Compute slopes and scores of a tile."""
        self._outer(dy, value, slopes)
        self._outer(query, key, scores)
        self.core.cross_core_set_flag("group", "fixpipe", SCORES_READY)

    def _outer(self, a: GmView, b: GmView, result: GmView) -> None:
        """(tokens, columns) @ (keys, columns).T -> (tokens, keys); keys stay in L1."""
        right: list[L1Matrix] = []
        for row, rows in pieces(a.rows, SLICE):
            left = self._loaded(self._left, a[row : row + rows, :])
            for number, (key, keys) in enumerate(pieces(b.rows, SLICE)):
                if number == len(right):
                    right.append(self._loaded(self._right, b[key : key + keys, :]))
                for top, height in pieces(rows, L0):
                    for first, width in pieces(keys, L0):
                        operands = left.at(origin=top), right[number].at(origin=first)
                        place = (row + top, height), (key + first, width)
                        part = self._places.part(result, *place)
                        total = self.core.totals.alloc()
                        self._add(total, *operands, (height, width, a.columns), begins=True)
                        self._drain(total, part, (height, width))
            self._left.free(left.tile)
        for each in right:
            self._right.free(each.tile)

    def _loaded(self, queue: TileQueue, view: GmView, *, k_is_first: bool = False) -> L1Matrix:
        """Load *view*, a part of an operand, into L1; with *k_is_first* its rows are k."""
        tile = queue.alloc()
        self.core.load_rows(tile, view, align_up(view.rows, FRACTAL_ROWS))
        queue.enque(tile)
        size = (view.columns, view.rows) if k_is_first else (view.rows, view.columns)
        return L1Matrix(queue.deque(), *size, k_is_first)

    def _drain(self, total: Local, result: GmView, shape: tuple[int, int]) -> None:
        """Move *total* to the workspace."""
        if not self._places.has_fractals:
            self.core.drain(total, result)
            return
        self.core.totals.enque(total)
        total = self.core.totals.deque()
        self.core.fixpipe_to_fractals(result, total, shape)
        self.core.totals.free(total)

    def _add(
        self, total: Local, a: L1Matrix, b: L1Matrix, shape: tuple[int, int, int], *, begins: bool
    ) -> None:
        """Add *a* @ *b* of *shape* (m, n, k) to *total*, 128 of k at a time."""
        m, n, depth = shape
        for k, count in pieces(depth, L0):
            starts = begins and k == 0
            self.core.multiply(total, a.at(k=k), b.at(k=k), (m, n, count), begins=starts)

    # ---- after them ----

    def _behind(
        self,
        dy: GmView,
        query: GmView,
        key: GmView,
        weights: GmView,
        differences: GmView,
        query_sum: GmView,
        key_sum: GmView,
        value_sum: GmView,
        is_last: bool,
    ) -> None:
        """Add a tile's contributions to the gradients."""
        self.core.cross_core_wait_flag("group", "scalar", WEIGHTS_READY)
        tokens: list[L1Matrix] = []
        for first, keys in pieces(key.rows, SLICE):
            here = slice(first, first + keys)
            inner = self._squares(differences, query.rows, (first, keys))
            self._of_query(inner, key[here, :], query_sum)
            tokens = tokens or self._slices(query)
            self._transposed(inner, tokens, key_sum[here, :])
        self._free(tokens)
        tokens = self._slices(dy)
        for first, keys in pieces(key.rows, SLICE):
            here = slice(first, first + keys)
            inner = self._squares(weights, dy.rows, (first, keys))
            self._transposed(inner, tokens, value_sum[here, :])
        self._free(tokens)
        if is_last:
            self.core.cross_core_set_flag("group", "fixpipe", SUMS_READY)

    def _slices(self, view: GmView) -> list[L1Matrix]:
        """All rows of *view* in L1, as right operands."""
        rows = pieces(view.rows, SLICE)
        return [self._loaded(self._left, view[x : x + n, :], k_is_first=True) for x, n in rows]

    def _free(self, slices: list[L1Matrix]) -> None:
        for each in slices:
            self._left.free(each.tile)

    def _squares(self, slot: GmView, tokens: int, keys: tuple[int, int]) -> list[L1Matrix]:
        """Load some keys of weights or differences into L1, 256 tokens each."""
        found = []
        for row, rows in pieces(tokens, SLICE):
            view, tile = self._places.part(slot, (row, rows), keys), self._inner.alloc()
            load = self.core.load_fractals if self._places.has_fractals else self.core.load_rows
            load(tile, view, align_up(rows, FRACTAL_ROWS))
            self._inner.enque(tile)
            found.append(L1Matrix(self._inner.deque(), rows, keys[1]))
        return found

    def _of_query(self, inner: list[L1Matrix], key: GmView, query_sum: GmView) -> None:
        """Compute (tokens, keys) of differences @ (keys, columns)."""
        right = self._loaded(self._right, key, k_is_first=True)
        for number, left in enumerate(inner):
            for row, rows in pieces(left.extent, L0):
                for column, columns in pieces(query_sum.columns, L0):
                    top = number * SLICE + row
                    part = query_sum[top : top + rows, column : column + columns]
                    total = self.core.totals.alloc()
                    operands = left.at(origin=row), right.at(origin=column)
                    self._add(total, *operands, (rows, columns, key.rows), begins=True)
                    self.core.drain(total, part, atomic=True)
        self._right.free(right.tile)

    def _transposed(self, inner: list[L1Matrix], tokens: list[L1Matrix], result: GmView) -> None:
        """Add (tokens, keys).T @ (tokens, columns) to *result*; *inner* is freed."""
        for row, rows in pieces(result.rows, L0):
            for column, columns in pieces(result.columns, L0):
                part = result[row : row + rows, column : column + columns]
                total = self.core.totals.alloc()
                for number, (each, right) in enumerate(zip(inner, tokens, strict=True)):
                    left = L1Matrix(each.tile, each.count, each.extent, k_is_first=True)
                    operands = left.at(origin=row), right.at(origin=column)
                    shape = rows, columns, right.count
                    self._add(total, *operands, shape, begins=number == 0)
                self.core.drain(total, part, atomic=True)
        for each in inner:
            self._inner.free(each.tile)
