"""The template a8w4_vector: int8 by int4 of two shapes, whose groups of k vector cores scale.

Like the template a8w4, except that the fixpipe only rounds the sums of digits to float16, in which
those above 2048 lose bits, and a slot of the ring holds one group of k. The vector cores of a group
process half a tile each; they multiply what arrives by the scales, the lower halves of the words,
and add it up in float32 (ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel,
grouped_matmul_antiquant_a8w4_msd*.h). Assumed: high and low digits are summed separately and
combined at the end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, UINT64
from npusim.data.integers import align_up
from npusim.kernel import (
    CubeCore,
    GmMatrix,
    GmTile,
    GmView,
    GmViews,
    Matmul,
    Plane,
    Step,
    VectorCore,
    by_row,
)
from npusim.kernel.plane import REPEAT, RowFactors
from npusim.kernel.steps import Integers
from npusim.ops._int4_matmul import FILLED, READ
from npusim.ops.npu_grouped_matmul.choice import GROUP_K, groups_of_k
from npusim.ops.npu_grouped_matmul.parts import Matrices, Parts, matrices_of
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.tiling import RING, MixedPlan, laid_out, places_of

ONE = int(np.float32(1).view(np.uint32))
"""The scale of the fixpipe."""
SPLIT = 16.0
"""The weight of a high digit."""


def _of_groups(p: Problem, parts: Parts) -> Parts:
    """Repeat each part for every group of k: the groups of all parts of a core are its turns."""
    each = groups_of_k(p)
    every = parts.select(np.repeat(np.arange(parts.core.size), each))
    return replace(every, turn=every.turn * each + np.tile(np.arange(each), parts.core.size))


def cube_steps(core: CubeCore, p: Problem, plan: MixedPlan, parts: Parts) -> tuple[Step, ...]:
    """Let cube cores write the sums of one group of k at a time; each row of x is two of digits."""
    digits, each = GmMatrix("digits", INT4, 2 * p.rows, p.x_shape(0)[1], False), groups_of_k(p)
    weight = matrices_of(p, 0, 0)[1]
    cube = Matmul(core, plan.tile, digits, weight, GROUP_K)

    def group(a: GmTile, b: GmTile, place: GmView, is_reused: bool, matrices: Matrices) -> None:
        cube.use(digits, matrices[1])
        sums = cube.multiply(a.extent, b.extent, a.k)
        if is_reused:
            core.cross_core_wait_flag("group", "fixpipe", READ)
        # L0C (columns / 16, rows_padded, 16) int32 -> (rows, columns) fp16
        cube.fixpipe(laid_out(place, a.extent, b.extent), sums, "deqf16", ONE)
        core.cross_core_set_flag("group", "fixpipe", FILLED)

    def arguments(own: Parts) -> tuple[Any, ...]:
        k = own.turn % each * GROUP_K
        row = 2 * (p.groups.x_row[own.group] + own.row)
        a = digits.tiles(row, 2 * own.rows, k=k, count=GROUP_K)
        whole, part = own.weight, weight.tiles(np.zeros_like(k), own.columns, k=k, count=GROUP_K)
        b = replace(part, name=whole.name, offset_bytes=whole.offset_bytes + part.offset_bytes)
        return a, b, places_of(plan, own.turn, FLOAT16), own.turn >= RING, own.matrices

    return _of_groups(p, parts).steps(group, arguments)


def vector_steps(core: VectorCore, p: Problem, plan: MixedPlan, parts: Parts) -> tuple[Step, ...]:
    """Let vector cores sum the groups of k of alternate chunks of a tile: at most one each."""
    each, total = groups_of_k(p), _Totals(core, p, plan)
    words = GmView.of("scale", UINT64, p.experts * each, p.weight_shape(0)[1])

    def rows_of(own: Parts) -> tuple[Integers, Integers]:
        """The first row of each part on its core, and their number."""
        # The second of the two vector cores takes the first chunk.
        first = (1 - own.core % 2) * plan.chunk_rows
        return first, np.clip(own.rows - first, 0, plan.chunk_rows)

    def added(own: Parts) -> tuple[Any, ...]:
        group = own.turn % each
        row = p.groups.matrix[own.group] * each + group
        scale = replace(GmViews.of(words, row, own.column, 1, own.columns), pitch=0)
        return places_of(plan, own.turn, FLOAT16), scale, own.rows, *rows_of(own), group == 0

    def finished(own: Parts) -> tuple[Any, ...]:
        return own.output, own.of_columns(p.bias), own.of_rows(p.per_token_scale)

    def skip() -> None:
        """Nothing of this tile is for this core."""
        core.cross_core_wait_flag("group", "mte2", FILLED)
        core.cross_core_set_flag("group", "mte2", READ)

    of_cores = parts.repeated(2)
    of_groups = _of_groups(p, of_cores)
    has_rows = rows_of(of_groups)[1] > 0
    first, rows = rows_of(of_cores)
    last = replace(of_cores, row=of_cores.row + first, rows=rows).select(rows > 0)
    return (
        *of_groups.select(has_rows).steps(total.add, added),
        *of_groups.select(~has_rows).steps(skip, lambda _: ()),
        *last.steps(total.finish, finished),
    )


class _Totals:
    """The buffers of a vector core with its running sums."""

    def __init__(self, core: VectorCore, p: Problem, plan: MixedPlan) -> None:
        self.core = core
        rows, width = plan.chunk_rows, align_up(plan.tile.n, REPEAT)
        # Each of the two cores has at most one chunk of a tile of digits.
        assert plan.tile.m <= 2 * 2 * rows
        count = rows * width
        self.sums_in = [core.vecin(FLOAT16, count) for _ in range(2)]
        self.totals = [core.tile(FLOAT32, count) for _ in range(2)]
        """Totals of high digits and of low ones."""
        self.work = core.tile(FLOAT32, count)
        self.words_in = core.vecin(UINT64, width)
        self.scale = core.tile(FLOAT32, width)
        self.bias_in = core.vecin(FLOAT32, width)
        self.tokens = RowFactors(core, rows)
        self.out = core.vecout(p.output.element, count, depth=2)

    def add(
        self, place: GmView, scale: GmView, height: int, first: int, rows: int, is_first: bool
    ) -> None:
        """`total = f32(sums) * scale [+ total]` for both digits, of *rows* rows from *first* on.

        *place* has the sums of the digits of *height* rows of x, `(2 height, columns)`.
        """
        core, columns, width = self.core, scale.columns, align_up(scale.columns, REPEAT)
        loaded = core.load_rows(self.words_in, scale)
        factors = self.scale[:columns]
        core.gather_mask("even", factors, loaded.as_dtype(FLOAT32, 2 * columns))
        self.words_in.free(loaded)
        core.cross_core_wait_flag("group", "mte2", FILLED)
        # A row of both digits, (rows, 2 x columns): the first half holds the high ones.
        both = laid_out(place, height, 2 * columns)[first : first + rows, :]
        for digit, (queue, total) in enumerate(zip(self.sums_in, self.totals, strict=True)):
            half = both[:, digit * columns : (digit + 1) * columns]
            loaded = core.load_rows(queue, half, pitch=width)
            plane = Plane(total if is_first else self.work, rows, width)
            core.cast(plane.whole(), loaded[: rows * width], "none")
            queue.free(loaded)
            by_row(core, "mul", plane, factors)
            if not is_first:
                whole = total[: rows * width]
                core.add(whole, plane.whole(), whole)
        core.cross_core_set_flag("group", "mte2", READ)

    def finish(self, output: GmView, bias: GmView, token: GmView) -> None:
        """`output (rows, columns) = (lo + hi * 16 + bias) * token`, rounded."""
        core, width = self.core, align_up(output.columns, REPEAT)
        count = output.rows * width
        plane = Plane(self.totals[0], output.rows, width)
        core.mul(plane.whole(), plane.whole(), SPLIT)
        core.add(plane.whole(), self.totals[1][:count], plane.whole())
        loaded = core.load_rows(self.bias_in, bias)
        by_row(core, "add", plane, loaded[: bias.columns])
        self.bias_in.free(loaded)
        self.tokens.multiply(plane, token)
        result = self.out.alloc()
        core.cast(result[:count], plane.whole(), "rint")
        core.store_rows(self.out, result, output, pitch=width)
