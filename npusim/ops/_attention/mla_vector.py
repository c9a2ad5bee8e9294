"""A vector core's work in FIA-MLA: scores to weights, and products rescaled by exponents.

.. code-block:: text

    s, m', e, p, l'    as in FIA
    n = away(-m' / ln 2);  w = exp((m' / ln 2 + n) * ln 2);  v = fp32(T(w));  c = w / v
    weights = T(p * v)
    N = away((max(n - n of the previous tile, -30) + ((previous c / c - 1) * 1.5 + 1e-6)) * 2 ** 23)
    product: N is added, as an integer, to each float of the row     except at a row's first tile

    out = product / (l * v)            after the last tile; 0 where |product| > 1e10
    softmax_lse = ln(l) + m

away() and T(), to the type of query, round ties away from zero. So 2 ** (n - n before) rescales the
sum of earlier tiles, and N also corrects for the rounding of w.

Sources: ops-transformer@3a280bc attention/common/op_kernel/arch22, fia_block_vec_nonquant_mla.h.
Assumed: buffers are those of FIA; how N fills the 128 integers of a row that are stored; products
that are NaN become 0, as large ones do.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from math import log
from typing import Any

import numpy as np

from npusim.data.dtypes import FLOAT32, INT32
from npusim.isa import Local, Store
from npusim.kernel.launch import VECTOR_CORES_OF_A_GROUP as VECTOR_CORES
from npusim.kernel.rows import pieces
from npusim.kernel.steps import Step, column
from npusim.kernel.views import GmView, repeat
from npusim.kernel.wide_plane import LANES, WidePlane, by_rows
from npusim.ops._attention.fia_output import Finish, Output
from npusim.ops._attention.fia_vector import (
    BLOCK,
    FIRST,
    PRODUCT_READY,
    SCORES_READY,
    SECOND,
    TURNS,
    WEIGHTS_READY,
    Softmax,
    State,
    Vector,
    rows_of_half,
    step_of,
)
from npusim.ops._attention.mla_places import LatentMemory, Sum
from npusim.ops._attention.places import Target, joined

PRODUCT_ADDED, PRODUCT_SCALED = 4, 5
"""Flags: the cube has added a product; the vector cores have rescaled it, or need not."""
LN2 = np.float32(log(2))
PER_LN2 = np.float32(1 / log(2))
LOWEST_STEP = -30.0
"""A row shrinks by at most 2 ** 30 at a time."""
FACTOR_STEP, LEAST_STEP = 1.5, 1e-6
"""Weight of a change of the factor in the exponent, and an addend that improves rounding."""
MANTISSA = 2.0**23
LARGEST = 1e10
"""Larger products result from an exponent that wrapped around."""
BEHIND = 2
"""The final stage of a core comes this many turns after its last tile, before pieces are
combined."""
SCALED_ROWS, SCALED_COLUMNS = 64, 128
"""Rows and columns of a product to which integers are added at a time."""


class LatentSoftmax(Softmax):
    """Writes the first half of tiles for a vector core, and rescales products."""

    def __init__(self, vector: Vector, cores: int) -> None:
        """*cores* is the number of vector cores of the launch."""
        super().__init__(vector)
        assert isinstance(vector.memory, LatentMemory)
        self._cores, self.latent = cores, vector.memory
        core, count = vector.core, rows_of_half(vector.memory.max_rows, 0)[1]
        self.scales = State(vector, ("power", "factor", "divisor"))
        self._columns = [core.tile(FLOAT32, max(1, count)) for _ in range(4)]
        self._rounded = core.tile(vector.a.element, max(1, count))
        self._integers = core.tile(INT32, max(1, count))
        """The integers added to each float of a row."""

    def steps(self) -> list[Step]:
        """The first half of all tiles, and the end of all cores."""
        memory, parts = self._memory, self._vector.parts
        ends = np.array([x.ends for x in parts], np.bool_).reshape(-1, 2).T
        odd = np.array([x.tile.number % 2 for x in parts], np.int64)
        views = (memory.slots(name, parts) for name in ("scores", "weights"))
        sums = column([self.latent.sum_of(x) for x in parts])
        arguments = *ends, odd, *views, sums, self.of_loops()
        last = np.full(self._cores, TURNS * (len(memory.plan.tiles) + 1) + BEHIND)
        return [
            step_of(parts, FIRST, VECTOR_CORES, self._whole, *arguments),
            Step(self._end, (), np.arange(self._cores), last),
        ]

    def _whole(
        self,
        is_first: bool,
        is_last: bool,
        parity: int,
        scores: GmView,
        weights: GmView,
        sums: Sum,
        more: tuple[Hashable, ...],
    ) -> None:
        """(rows, keys) of scores -> weights, and rescale (rows, 512) of the previous product."""
        core = self._core
        core.cross_core_wait_flag("group", "scalar", SCORES_READY)
        if is_first:
            self._vector.state.begin(parity, scores.rows, self.lowest)
            if scores.rows:
                core.duplicate(self.scales.of("power", parity, 0, scores.rows), 0.0)
                core.duplicate(self.scales.of("factor", parity, 0, scores.rows), 1.0)
        loops = self._vector.loops(scores.columns, scores.rows)
        before = parity if is_first else 1 - parity
        for (row, rows), masks in zip(loops, more, strict=True):
            here = slice(row, row + rows)
            views = scores[here, :], weights[here, :]
            repeat(core, self._rows, parity, before, row, *views, masks, is_last)
        if not more:
            # A core without rows must not get ahead of the cube either.
            core.sync("mte2", "mte3")
        core.cross_core_set_flag("group", "mte3", WEIGHTS_READY)
        core.cross_core_wait_flag("group", "scalar", PRODUCT_ADDED)
        for row, rows in pieces(0 if is_first else sums.rows, SCALED_ROWS):
            repeat(core, self._scale, row, sums.part(row, rows))
        core.cross_core_set_flag("group", "mte3", PRODUCT_SCALED)

    def _end(self) -> None:
        """Wait until the last product has been added."""
        self._core.cross_core_wait_flag("group", "scalar", PRODUCT_ADDED)

    def _rows(
        self,
        parity: int,
        before: int,
        row: int,
        scores: GmView,
        weights: GmView,
        masks: Any,
        is_last: bool,
    ) -> None:
        """Process some rows, from *row* on; the state of the previous tile is number *before*."""
        core, vector, state = self._core, self._vector, self._vector.state
        plane = self.scaled(scores, masks)
        self._exponentials(row, parity, before, plane)
        self._add_sums(row, parity, before, plane)
        factor = self._factors(row, parity, before, plane.rows)
        if is_last:
            total = state.of("total", parity, row, plane.rows)
            core.mul(self.scales.of("divisor", parity, row, plane.rows), total, factor)
        by_rows(core, "mul", plane, state.blocks(factor))
        out = vector.wide_out.alloc()
        core.cast(out.as_dtype(vector.a.element, plane.whole.count), plane.whole, "round")
        core.store_rows(vector.wide_out, out, joined(weights), pitch=plane.pitch)
        vector.wide_in.free(plane.tile)

    def _factors(self, row: int, parity: int, before: int, rows: int) -> Local:
        """The factors of weights; the integers for products go to `_integers`."""
        core, place = self._core, (row, rows)
        largest = self._vector.state.of("largest", parity, *place)
        power, power_before = (self.scales.of("power", each, *place) for each in (parity, before))
        factor, factor_before = (
            self.scales.of("factor", each, *place) for each in (parity, before)
        )
        power_now, wide, narrow, change = (each[:rows] for each in self._columns)
        rounded = self._rounded[:rows]
        core.mul(power_now, largest, -float(PER_LN2))
        core.cast(power_now, power_now, "round")
        core.mul(wide, largest, float(PER_LN2))
        core.add(wide, wide, power_now)
        core.mul(wide, wide, float(LN2))
        core.exp(wide, wide)
        core.cast(rounded, wide, "round")
        core.cast(narrow, rounded, "none")
        core.div(wide, wide, narrow)
        core.div(change, factor_before, wide)
        core.copy(factor, wide)
        core.add(change, change, -1.0)
        core.mul(change, change, FACTOR_STEP)
        core.add(change, change, LEAST_STEP)
        core.sub(wide, power_now, power_before)
        core.copy(power, power_now)
        core.max(wide, wide, LOWEST_STEP)
        core.add(wide, wide, change)
        core.mul(wide, wide, MANTISSA)
        core.cast(self._integers.at(row, rows), wide, "round")
        return narrow

    def _scale(self, row: int, sums: Sum) -> None:
        """Add integers to (rows, 512) of products at *sums*, from *row* of the core on."""
        core, vector, rows = self._core, self._vector, sums.rows
        product = self.latent.product(*sums)
        blocks, out = vector.blocks[: rows * BLOCK], vector.wide_out.alloc()
        core.brcb(blocks, self._integers.at(row, rows).as_dtype(FLOAT32))
        count = rows * SCALED_COLUMNS
        plane = WidePlane(out.as_dtype(INT32, count), rows, SCALED_COLUMNS, SCALED_COLUMNS)
        with core.independent():
            for first in range(0, SCALED_COLUMNS, LANES):
                # (rows, 8) -> (rows, 64)
                dst = plane.block(first, LANES)
                src = replace(dst, offset_bytes=blocks.offset_bytes)
                core.add(dst, replace(src, block_stride=0, repeat_stride=1), 0)
        vector.wide_out.enque(out)
        out = vector.wide_out.deque()
        for first, columns in pieces(product.columns, SCALED_COLUMNS):
            part, src = product[:, first : first + columns], out.as_dtype(INT32, count)
            core.emit(Store(part.operand, src, part.row_bytes if rows > 1 else 0, atomic=INT32))
        vector.wide_out.free(out)


class LatentOutput(Output):
    """Writes the end of rows of tiles for a vector core, and combines pieces."""

    def __init__(self, vector: Vector, finish: Finish, softmax: LatentSoftmax) -> None:
        super().__init__(vector, finish)
        self._scales, self._latent = softmax.scales, softmax.latent

    def step(self) -> Step:
        """The second half of all tiles."""
        parts = self._vector.parts
        odd = np.array([x.tile.number % 2 for x in parts], np.int64)
        sums = column([self._latent.sum_of(x) for x in parts])
        arguments = odd, sums, self.targets()
        return step_of(parts, SECOND, VECTOR_CORES, self._whole, *arguments)

    def _whole(
        self, parity: int, sums: Sum, targets: tuple[Target | tuple[GmView, ...], ...]
    ) -> None:
        """(rows, 512) of a product to *targets*, by loop; to none before its last tile."""
        self._core.cross_core_wait_flag("group", "scalar", PRODUCT_READY)
        if targets:
            # The cube has added to what was stored here, so this does not wait.
            self._core.sync("mte3", "mte2")
        loops = pieces(sums.rows, self._finish.loop_rows)
        for (row, rows), target in zip(loops, targets, strict=False):
            repeat(self._core, self._end, parity, row, sums.part(row, rows), target)

    def _end(self, parity: int, row: int, sums: Sum, target: Target | tuple[GmView, ...]) -> None:
        """Divide rows of the products at *sums*, from *row* of the core on, by their sums."""
        core, vector, rows = self._core, self._vector, sums.rows
        product = self._latent.product(*sums)
        tile = core.load_rows(vector.wide_in, joined(product))
        plane = WidePlane(tile, rows, product.columns, product.columns)
        self._wipe(plane)
        divisor = self._scales.of("divisor", parity, row, rows)
        by_rows(core, "div", plane, vector.state.blocks(divisor))
        self.leave(plane, parity, row, target)
        vector.wide_in.free(tile)

    def _wipe(self, plane: WidePlane) -> None:
        """Zero elements that are larger than any product."""
        core, queue, whole = self._core, self._vector.wide_out, plane.whole
        magnitudes, bits = queue.alloc(), self._vector.mask_bits[: whole.count // BLOCK]
        core.abs(magnitudes[: whole.count], whole)
        core.compare("le", bits, magnitudes[: whole.count], LARGEST)
        core.select(whole, bits, whole, 0.0)
        queue.enque(magnitudes)
        queue.free(queue.deque())
