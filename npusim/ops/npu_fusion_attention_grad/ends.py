"""The work of vector cores before and after the tiles of the gradient of attention.

.. code-block:: text

    before   bytes of dropout_mask, and distances, if the call needs them
             query_sum = key_sum = value_sum = 0;  delta = rowsum(dy * attention_in)
    after    output = T(query_sum * scale);  dkey = T(key_sum * scale);  dvalue = T(value_sum)

Each vector core does about the same share of both, and all wait for each other before and after the
tiles; T() rounds ties away from zero.

Sources: ops-transformer@c29bc10 attention/flash_attention_score_grad, op_host,
flash_attention_score_grad_tiling_s1s2_bn2gs1s2_sab.cpp (DoPreTiling, DoPreSfmgTiling,
DoPostTiling), and op_kernel, flash_attention_score_grad_{pre,sfmg,post}.h. Assumed: how much is
cleared at a time, and that rows of delta are summed like those of the softmax library.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.core import TileQueue
from npusim.kernel.cross_core import sync_all
from npusim.kernel.launch import VECTOR_CORES_OF_A_GROUP as VECTOR_CORES
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Step, tiles
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.kernel.wide_plane import LANES, WidePlane, reduce_rows
from npusim.ops._attention.problem import SUM_COPIES
from npusim.ops._attention.scores_vector import Unpacking, store_distances
from npusim.ops.npu_fusion_attention_grad.cube import SUMS_READY
from npusim.ops.npu_fusion_attention_grad.tiles import DISTANCE_COLUMNS, SUMS, Places

ALL_VECTORS = 10
"""The flag by which all vector cores wait for each other."""
LOADED, MOST_ROWS = 12288, 248
"""Elements of dy that are loaded at a time, and the most rows."""
BITS_UNIT, MOST_BITS = 32, 30720
"""A core converts a multiple of the first number of dropout's bits, the second at a time."""
ROUNDED = 31360
"""fp32 that are rounded at a time: what the buffer holds with three 16-bit elements for each."""
OUTPUTS = dict(zip(("output", "dkey", "dvalue"), SUMS, strict=True))
FIRST, LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
"""The orders of the work before the tiles, and after them."""


class Ends:
    """Writes the start and the end of vector cores' programs; its buffers are of three stages."""

    def __init__(self, spec: DeviceSpec, places: Places, core: VectorCore) -> None:
        """Claim the buffers used before the tiles; `claim_last` follows after the tiles' claims."""
        self._places, self._a, self._core = places, places.a, core
        element, self._workers = places.a.element, VECTOR_CORES * spec.cores["aic"].count
        self._unpacking = self._claim_unpacking()
        self._width = places.a.value_size
        self._rows = min(LOADED // self._width, MOST_ROWS)
        self._dy, self._y = (core.vecin(element, self._rows * self._width) for _ in range(2))
        self._wide_dy, self._wide_y = (
            core.tile(FLOAT32, self._rows * self._width) for _ in range(2)
        )
        self._delta = core.vecout(FLOAT32, align_up(self._rows, SUM_COPIES) * SUM_COPIES)
        self._column = core.tile(FLOAT32, align_up(self._rows, SUM_COPIES))
        if self._width > LANES:
            self._lanes = core.tile(FLOAT32, self._rows * LANES)
        self._half = core.tile(FLOAT16, DISTANCE_COLUMNS) if places.distance_rows else None

    def _claim_unpacking(self) -> Unpacking | None:
        """The conversion of dropout's bits to bytes; its buffers are free afterwards."""
        count = self._places.kept_bytes
        if not count:
            return None
        share = align_up(ceil_div(align_up(count, BITS_UNIT), self._workers), BITS_UNIT)
        found = Unpacking(self._core, count, share, min(share, MOST_BITS))
        self._core.reset_buffers()
        return found

    def claim_last(self) -> None:
        """Claim the buffers for after the tiles, in place of theirs."""
        core = self._core
        core.reset_buffers()
        self._sum_in: TileQueue = core.vecin(FLOAT32, ROUNDED)
        self._out: TileQueue = core.vecout(self._a.element, ROUNDED)

    # ---- before tiles ----

    def before(self) -> list[Step]:
        """Clear the sums, compute delta, and wait for all cores."""
        cores, steps = np.arange(self._workers), []
        first = np.full(cores.size, FIRST, np.int64)
        if self._unpacking is not None:
            steps += [*self._unpacking.steps(FIRST), Step(self._core.end_stage, (), cores, first)]
        if self._half is not None:
            halves = (cores % VECTOR_CORES).tolist()
            distances = [self._places.distances(half) for half in halves]
            steps.append(Step(self._store_distances, (distances,), cores, first))
        steps.append(Step(self._make_zeros, (), cores, first))
        zeros = self._wide_dy.count
        for name in SUMS:
            count = self._places.count(name)
            share = align_up(ceil_div(count, self._workers), SUM_COPIES)
            views = GmView.vector(name, FLOAT32, count)
            for core, start in enumerate(range(0, count, share)):
                own = views[:, start : start + share]
                cut = tiles(own, 1, zeros)
                steps.append(self._at(self._clear, (cut,), core, len(cut), FIRST))
        steps.append(Step(self._core.barrier, (), cores, first))
        steps += self._delta_steps()
        return [*steps, Step(self._meet, (), cores, first)]

    def _at(
        self, stage: object, arguments: tuple[object, ...], core: int, count: int, order: int
    ) -> Step:
        assert callable(stage)
        return Step(
            stage, arguments, np.full(count, core, np.int64), np.full(count, order, np.int64)
        )

    def _store_distances(self, view: GmView) -> None:
        assert self._half is not None
        store_distances(self._core, self._half, view)

    def _make_zeros(self) -> None:
        self._core.duplicate(self._wide_dy, 0.0)
        self._core.sync("vector", "mte3")

    def _clear(self, view: GmView) -> None:
        self._core.put_rows(self._wide_dy[: view.columns], view)

    def _meet(self) -> None:
        """Wait until all sums are clear, and delta is stored."""
        self._core.end_stage()
        sync_all(self._core, "mte3", "mte2", ALL_VECTORS)

    def _delta_steps(self) -> list[Step]:
        """The steps for rows of delta, head by head, in runs of one core each."""
        a = self._a
        runs = [
            (request, head, length)
            for request, length in enumerate(a.query_lengths)
            for head in range(a.query_heads)
        ]
        share = ceil_div(max(1, sum(length for *_, length in runs)), self._workers)
        dy, y, delta, cores, at = [], [], [], [], 0
        for request, head, length in runs:
            for row, rows in _cut(at, length, share, self._rows):
                dy.append(self._places.rows("dy", request, head, row, rows))
                y.append(self._places.rows("attention_in", request, head, row, rows))
                delta.append(self._places.sums("delta", request, head, row, rows).flat)
                cores.append((at + row) // share)
            at += length
        order = np.full(len(cores), FIRST, np.int64)
        return [Step(self._rows_of_delta, (dy, y, delta), np.array(cores, np.int64), order)]

    def _rows_of_delta(self, dy: GmView, y: GmView, delta: GmView) -> None:
        """Compute some rows of delta, eight times each."""
        core, width, rows = self._core, self._width, dy.rows
        wide = []
        for queue, tile, view in ((self._dy, self._wide_dy, dy), (self._y, self._wide_y, y)):
            loaded, count = core.load(queue, view), rows * width
            core.cast(tile[:count], loaded[:count], "none")
            queue.free(loaded)
            wide.append(tile[:count])
        core.mul(wide[0], wide[0], wide[1])
        plane = WidePlane(self._wide_dy, rows, width, width)
        lanes = self._lanes if width > LANES else self._wide_y
        reduce_rows(core, "sum", self._column[:rows], plane, lanes)
        out = self._delta.alloc()
        filled = align_up(rows, SUM_COPIES)
        core.brcb(out[: filled * SUM_COPIES], self._column[:filled])
        core.store_rows(self._delta, out, delta)

    # ---- after them ----

    def behind(self) -> list[Step]:
        """Wait for the cube cores and for all others, then round the sums."""
        places = self._places
        cores = np.arange(self._workers)
        last = np.full(cores.size, LAST, np.int64)
        with_tiles = sorted({x.core for x in places.tiles})
        own = np.array([VECTOR_CORES * x + half for x in with_tiles for half in (0, 1)], np.int64)
        steps = [
            Step(self._await_cube, (), own, np.full(own.size, LAST, np.int64)),
            Step(self._meet, (), cores, last),
        ]
        for output, name in OUTPUTS.items():
            count = places.count(name)
            loops = ceil_div(count, ROUNDED)
            core = np.arange(loops) // ceil_div(max(1, loops), self._workers)
            views = (
                tiles(GmView.vector(x, dtype, count), 1, ROUNDED)
                for x, dtype in ((name, FLOAT32), (output, self._a.element))
            )
            scale = 1.0 if name == "value_sum" else self._a.scale
            steps.append(Step(self._round, (*views, scale), core, np.full(loops, LAST, np.int64)))
        return steps

    def _await_cube(self) -> None:
        self._core.cross_core_wait_flag("group", "mte3", SUMS_READY)

    def _round(self, sums: GmView, output: GmView, scale: float) -> None:
        """Round sums times *scale* to *output*."""
        core, count = self._core, sums.columns
        loaded = core.load(self._sum_in, sums)
        if sums.name != "value_sum":
            core.mul(loaded[:count], loaded[:count], scale)
        out = self._out.alloc()
        core.cast(out[:count], loaded[:count], "round")
        self._sum_in.free(loaded)
        core.store_rows(self._out, out, output)


def _cut(at: int, length: int, share: int, most: int) -> Iterator[tuple[int, int]]:
    """First row and row count of each piece of *length* rows that follow *at* other rows.

    No piece has rows of two of the shares of all rows, or more than *most*.
    """
    start = 0
    while start < length:
        left = share - (at + start) % share
        for first, rows in pieces(min(left, length - start), most):
            yield start + first, rows
        start += min(left, length - start)
