"""The template a8w4_vector: int8 by int4 of two shapes, whose groups of k vector cores scale.

As the template a8w4, but the fixpipe only rounds the sums of digits to float16, where those above
2048 lose bits, and a place of the ring holds one group. The vector cores beside a cube core have a
half of a tile each; they multiply what comes by the scales, the lower halves of the words, and add
it up in float32 (ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel,
grouped_matmul_antiquant_a8w4_msd*.h). Assumed: that high and low digits are added up apart, and put
together in the end.
"""

from __future__ import annotations

from itertools import count

import numpy as np

from npusim.data.dtypes import FLOAT16, FLOAT32, INT32, UINT64
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.isa import Binary, BinaryScalar, Cast, Fixpipe, GatherMask
from npusim.kernel.chain import step
from npusim.kernel.cube import CubeWriter, GmFeed, GmMatrix, GmTile
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.plane import REPEAT, Plane, RowFactors, by_row
from npusim.kernel.program import Program
from npusim.kernel.rows import pieces
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, load, repeat, store
from npusim.ops._int4_matmul import FILLED, READ
from npusim.ops.npu_grouped_matmul.int4 import GROUP_K, groups_of_k
from npusim.ops.npu_grouped_matmul.operands import Matrices, Operands
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.blocks import walk
from npusim.ops.npu_grouped_matmul.templates.plan import Part
from npusim.ops.npu_grouped_matmul.templates.ring import MixedPlan, place_of

__all__ = ["GroupCube", "GroupEpilogue"]

ONE = int(np.float32(1).view(np.uint32))
"""The scale of the fixpipe."""
SPLIT = 16.0
"""What a high digit counts."""


class GroupCube:
    """The kernel of a cube core: each row of x is two of the matrix *digits*."""

    def __init__(self, builder: CubeCore, p: Problem, plan: MixedPlan, digits: GmMatrix) -> None:
        self.builder = builder
        self.p, self.plan, self.operands, self.digits = p, plan, Operands(p), digits
        first = p.groups[0]
        _, weight = self.operands.matrices(Part(first, 0, 0, first.m, first.n))
        self.feeds = GmFeed(builder, digits), GmFeed(builder, weight)
        self.writer = CubeWriter(builder, plan.tile, *self.feeds, GROUP_K)

    def program(self, parts: tuple[Part, ...], waits_for: int) -> Program:
        """Multiply *parts*, one after the other, once flag *waits_for* is up."""
        self.builder.cross_core_wait_flag("group", "mte2", waits_for)
        numbers = count()
        walk(self.builder, self.operands, parts, lambda part: self._write(numbers, part))
        return self.builder.build()

    def _write(self, numbers: count[int], part: Part) -> None:
        _, weight = self.operands.matrices(part)
        _, b = self.operands.tiles(part, (self.digits, weight))
        rows = 2 * part.rows
        a = self.digits.tile(2 * (part.group.x_row + part.row), rows)
        for group in range(groups_of_k(self.p)):
            number = next(numbers)
            repeat(
                self.builder,
                self._group,
                a.part_of_k(self.digits, group * GROUP_K, GROUP_K),
                b.part_of_k(weight, group * GROUP_K, GROUP_K),
                place_of(self.plan, number, rows, part.columns, FLOAT16),
                number >= self.plan.ring,
                (self.digits, weight),
            )

    def _group(
        self, a: GmTile, b: GmTile, place: GmView, is_reused: bool, matrices: Matrices
    ) -> None:
        """The sums of one group to *place* `(rows, columns)` of the ring."""
        for feed, matrix in zip(self.feeds, matrices, strict=True):
            feed.gm_matrix = matrix
        slot = self.writer.product(a.extent, b.extent, a.k)
        if is_reused:
            self.builder.cross_core_wait_flag("group", "fixpipe", READ)
        rows_padded = align_up(place.rows, FRACTAL_ROWS)
        sums = slot.of(INT32, rows_padded * align_up(place.columns, FRACTAL_ROWS))
        size = place.rows, place.columns, rows_padded
        # L0C (columns / 16, rows_padded, 16) int32 -> (rows, columns) fp16
        self.writer.drain(slot, Fixpipe(place.operand, sums, *size, FLOAT16, "deqf16", ONE))
        self.builder.cross_core_set_flag("group", "fixpipe", FILLED)


class GroupEpilogue:
    """The kernel of a vector core, which has every other chunk of a tile: one."""

    def __init__(self, builder: VectorCore, p: Problem, plan: MixedPlan) -> None:
        self.builder, self.p, self.plan, self.operands = builder, p, plan, Operands(p)
        rows, width = plan.chunk_rows, align_up(plan.tile.n, REPEAT)
        # Of a tile of digits each of both cores has one chunk at most.
        assert plan.tile.m <= 2 * 2 * rows
        numbers, self.out = rows * width, p.output.element
        self.loaded = [
            builder.queue("ub", FLOAT16.nbytes(numbers), "mte2", "vector") for _ in range(2)
        ]
        self.totals = [builder.claim("ub", FLOAT32.nbytes(numbers)) for _ in range(2)]
        """Of high digits and of low ones."""
        self.work = builder.claim("ub", FLOAT32.nbytes(numbers))
        self.words = builder.queue("ub", UINT64.nbytes(width), "mte2", "vector")
        self.scale = builder.claim("ub", FLOAT32.nbytes(width))
        self.bias = builder.queue("ub", FLOAT32.nbytes(width), "mte2", "vector")
        self.tokens = RowFactors(builder, rows)
        self.results = builder.queue("ub", self.out.nbytes(numbers), "vector", "mte3", 2)

    def write(self, parts: tuple[Part, ...], half: int) -> None:
        """Finish *parts* as vector core number *half* of its group."""
        numbers = count()
        walk(self.builder, self.operands, parts, lambda part: self._write(numbers, part, half))

    def _write(self, numbers: count[int], part: Part, half: int) -> None:
        # The second of the two vector cores begins.
        every = list(pieces(part.rows, self.plan.chunk_rows))
        own = every[1 - half : 2 - half]
        p, each = self.p, groups_of_k(self.p)
        words = GmView.of("scale", UINT64, p.experts * each, part.group.n)
        columns = slice(part.column, part.column + part.columns)
        for group in range(each):
            place = place_of(self.plan, next(numbers), 2 * part.rows, part.columns, FLOAT16)
            row = part.group.matrix * each + group
            scale = words[row : row + 1, columns].row(0)
            if own:
                ((first, rows),) = own
                here = place[2 * first : 2 * (first + rows), :]
                repeat(self.builder, self._add, here, scale, group == 0)
            else:
                repeat(self.builder, self._skip)
        output, token = self.operands.output(part), self.operands.rows(p.per_token_scale, part)
        bias = self.operands.columns(p.bias, part)
        for first, rows in own:
            assert token is not None
            there = slice(first, first + rows)
            repeat(self.builder, self._finish, output[there, :], bias, token[:, there])

    def _skip(self) -> None:
        """Nothing of this tile is for this core."""
        self.builder.cross_core_wait_flag("group", "mte2", FILLED)
        self.builder.cross_core_set_flag("group", "mte2", READ)

    def _add(self, sums: GmView, scale: GmView, is_first: bool) -> None:
        """`total = f32(sums) * scale [+ total]` of both digits; *sums* `(2 rows, columns)`."""
        builder, rows, width = self.builder, sums.rows // 2, align_up(sums.columns, REPEAT)
        slot = load(builder, self.words, scale)
        factors = self.scale.of(FLOAT32, scale.columns)
        words = slot.of(FLOAT32, 2 * scale.columns)
        step(builder, GatherMask("even", factors, words))
        self.words.free(slot)
        builder.cross_core_wait_flag("group", "mte2", FILLED)
        # A row of both digits: (rows, 2 x pitch), of which the first columns are high ones.
        pitch = sums.pitch
        both = GmView(sums.name, sums.dtype, rows, 2 * pitch, 2 * pitch, sums.offset_bytes)
        for digit, (queue, total) in enumerate(zip(self.loaded, self.totals, strict=True)):
            first = digit * pitch
            slot = load(builder, queue, both[:, first : first + sums.columns], pitch=width)
            plane = Plane(total if is_first else self.work, rows, width)
            step(builder, Cast(plane.whole(), slot.of(FLOAT16, rows * width), "none"))
            queue.free(slot)
            by_row(builder, "mul", plane, factors)
            if not is_first:
                whole = Plane(total, rows, width).whole()
                step(builder, Binary("add", whole, plane.whole(), whole))
        builder.cross_core_set_flag("group", "mte2", READ)

    def _finish(self, output: GmView, bias: GmView | None, token: GmView) -> None:
        """`output (rows, columns) = (lo + hi * 16 + bias) * token`, rounded."""
        builder, width = self.builder, align_up(output.columns, REPEAT)
        high, low = (Plane(total, output.rows, width) for total in self.totals)
        step(builder, BinaryScalar("mul", high.whole(), high.whole(), SPLIT))
        step(builder, Binary("add", high.whole(), low.whole(), high.whole()))
        assert bias is not None
        slot = load(builder, self.bias, bias)
        by_row(builder, "add", high, slot.of(FLOAT32, bias.columns))
        self.bias.free(slot)
        self.tokens.multiply(high, token)
        result = self.results.alloc()
        numbers = output.rows * width
        step(builder, Cast(result.of(self.out, numbers), high.whole(), "rint"))
        store(builder, self.results, result, output, pitch=width)
