"""Sums of int4 products as float16: cube cores scale and add up groups of k, vector cores finish.

Each base tile has a place in a ring of four, to which the fixpipe stores its first group of k,
scaled and rounded to float16, and adds the others; then the two vector cores beside the cube core
make the output of it, chunks in turn, the second one first (ops-transformer@c29bc10
gmm/grouped_matmul/op_kernel, grouped_matmul_a4w4.h, grouped_matmul_antiquant_a8w4_msd*.h).
"""

from __future__ import annotations

from itertools import count

from npusim.data.dtypes import FLOAT16, UINT64
from npusim.kernel.cube import BaseTile, GmMatrix
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.program import Program
from npusim.kernel.rows import pieces
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, repeat
from npusim.ops._int4_matmul import FILLED, READ, Epilogue, ScaledGroups
from npusim.ops.npu_grouped_matmul.int4 import groups_of_k
from npusim.ops.npu_grouped_matmul.operands import Operands
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.blocks import walk
from npusim.ops.npu_grouped_matmul.templates.plan import Part
from npusim.ops.npu_grouped_matmul.templates.ring import MixedPlan, place_of
from npusim.ops.npu_grouped_matmul.templates.row_sums import sums_of_rows

__all__ = ["CHUNK", "RING", "VECTOR_CORES", "HalfCube", "HalfEpilogue"]

RING, VECTOR_CORES = 4, 2
CHUNK = 8192
"""Numbers of the output that a vector core makes at a time."""


class HalfCube:
    """The kernel of a cube core; with *digits* each row of x is two of that matrix."""

    def __init__(
        self, builder: CubeCore, p: Problem, plan: MixedPlan, digits: GmMatrix | None = None
    ) -> None:
        self.builder, self.p, self.plan, self.operands = builder, p, plan, Operands(p)
        self.digits = digits
        first = max(p.groups, key=lambda g: g.m)
        x, weight = self.operands.matrices(Part(first, 0, 0, first.m, first.n))
        group_k = p.x_shape(0)[1] // groups_of_k(p)
        tile: BaseTile = plan.tile
        self.groups = ScaledGroups(builder, tile, digits or x, weight, group_k)

    def program(self, parts: tuple[Part, ...], waits_for: int | None = None) -> Program:
        """Multiply *parts*, one after the other, once flag *waits_for* is up."""
        if waits_for is not None:
            self.builder.cross_core_wait_flag("group", "mte2", waits_for)
        numbers = count()
        walk(self.builder, self.operands, parts, lambda part: self._write(next(numbers), part))
        return self.builder.build()

    def _write(self, number: int, part: Part) -> None:
        x, weight = self.operands.matrices(part)
        a, b = self.operands.tiles(part, (x, weight))
        rows = part.rows
        if self.digits is not None:
            x, rows = self.digits, 2 * rows
            a = x.tile(2 * (part.group.x_row + part.row), rows)
        repeat(
            self.builder,
            self.groups.block,
            a,
            b,
            self._scale(part),
            place_of(self.plan, number, rows, part.columns, FLOAT16),
            number >= RING,
            (x, weight),
        )

    def _scale(self, part: Part) -> GmView:
        """The words of its columns, `(groups of k, columns)`."""
        p, each = self.p, groups_of_k(self.p)
        words = GmView.of("scale", UINT64, p.experts * each, part.group.n)
        first = part.group.matrix * each
        return words[first : first + each, part.column : part.column + part.columns]


class HalfEpilogue:
    """The kernel of a vector core."""

    def __init__(self, builder: VectorCore, p: Problem, plan: MixedPlan, *, digits: bool) -> None:
        self.builder, self.p, self.plan, self.operands = builder, p, plan, Operands(p)
        self.rows_each = 2 if digits else 1
        block, out = (plan.chunk_rows, plan.tile.n), p.output.element
        self.finish = Epilogue(builder, block, out, digits=digits, offset=bool(p.bias))

    def write(self, parts: tuple[Part, ...], half: int) -> None:
        """Finish *parts* as vector core number *half* of its group."""
        numbers = count()
        walk(
            self.builder,
            self.operands,
            parts,
            lambda part: self._write(next(numbers), part, half),
        )

    def _write(self, number: int, part: Part, half: int) -> None:
        operands, p = self.operands, self.p
        repeat(
            self.builder,
            self._tile,
            place_of(self.plan, number, self.rows_each * part.rows, part.columns, FLOAT16),
            operands.output(part),
            operands.columns(p.bias, part),
            operands.rows(p.per_token_scale, part),
            half,
            *self._product(part),
        )

    def _product(self, part: Part) -> tuple[GmView, ...]:
        """The sums of its rows of x and the offsets of its columns, if there are any."""
        offset = self.operands.columns(self.p.offset, part)
        if offset is None:
            return ()
        first = part.group.x_row + part.row
        return sums_of_rows(self.p.rows)[:, first : first + part.rows], offset

    def _tile(
        self,
        sums: GmView,
        output: GmView,
        bias: GmView | None,
        token: GmView,
        half: int,
        *product: GmView,
    ) -> None:
        """Every other chunk of *output* `(rows, columns)`."""
        builder, each = self.builder, self.rows_each
        builder.cross_core_wait_flag("group", "mte2", FILLED)
        for number, (row, rows) in enumerate(pieces(output.rows, self.plan.chunk_rows)):
            # The second of the two vector cores begins.
            if number % 2 != half:
                here, own = slice(row, row + rows), slice(each * row, each * (row + rows))
                rank_one = (product[0][:, here], product[1]) if product else None
                self.finish.rows(sums[own, :], output[here, :], bias, token[:, here], rank_one)
        builder.cross_core_set_flag("group", "mte2", READ)
