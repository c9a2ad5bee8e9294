"""Where a block of a group finds its operands in global memory, and where it puts its output."""

from __future__ import annotations

from math import prod

from npusim.data.dtypes import INT64
from npusim.data.tensor import Operand
from npusim.isa import ScalarLoadGlobal
from npusim.kernel.builder import Builder
from npusim.kernel.cube import GmMatrix, GmTile
from npusim.kernel.program import Binding
from npusim.kernel.views import GmView, repeat
from npusim.ops._lists import starts
from npusim.ops.npu_grouped_matmul.groups import PAIRS
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.plan import Part

__all__ = ["ONCE", "Matrices", "Operands", "bound"]

ONCE = "weight_once"
"""The weight as groups know it that read it once only, and so past the L2."""
LINE_BYTES = 64
"""Of the scalar unit's data cache."""
Matrices = tuple[GmMatrix, GmMatrix]
"""x and the weight of a group in memory."""


def bound(p: Problem) -> dict[str, Binding]:
    """What the names of global memory mean, the same to every core."""
    names = (*(operand.name for operand in p.inputs), *p.outputs)
    return {name: Binding(name) for name in names} | {ONCE: Binding("weight", is_cached=False)}


class Operands:
    """The operands of the groups of a call, and the list that says where these begin."""

    def __init__(self, p: Problem) -> None:
        self.p = p
        self._x_starts, self._weight_starts = p.x_starts, p.weight_starts
        numbers = (p.bias, p.scale, p.offset, p.per_token_scale)
        lists = (*numbers, p.antiquant_scale, p.antiquant_offset)
        self._starts = {parts[0].name.partition("[")[0]: starts(parts) for parts in lists if parts}
        self._entries = len(p.listed)

    def read_entry(self, builder: Builder, index: int) -> None:
        """Read entry number *index* of group_list, as every core does, busy or not."""
        if index >= self._entries:
            return
        words = 2 if self.p.group_list_type == PAIRS else 1
        for word in range(words * index, words * index + words):
            view = GmView.vector("group_list", INT64, 1).shifted_to(INT64.nbytes(word))
            repeat(builder, _read, builder, view, view.offset_bytes % LINE_BYTES != 0)

    def matrices(self, part: Part, *, once: bool | None = None) -> Matrices:
        """x and weight of the group of *part* as they lie in memory.

        Unless *once* says so, a group of one block of rows alone reads its weight past the L2.
        """
        p, group = self.p, part.group
        rows, k = p.x_shape(group.x)
        x_size = (k, rows) if p.trans_x else (rows, k)
        x = GmMatrix("x", p.types.x, *x_size, k_is_first=p.trans_x)
        wk, n = p.weight_shape(group.weight)
        weight_size = (n, wk) if p.trans_weight else (wk, n)
        past_l2 = part.is_alone if once is None else once
        weight = GmMatrix(
            *(ONCE if past_l2 else "weight", p.types.weight, *weight_size),
            k_is_first=not p.trans_weight,
            layout="FRACTAL_NZ" if p.is_nz else "ND",
        )
        return x, weight

    def tiles(self, part: Part, matrices: Matrices) -> tuple[GmTile, GmTile]:
        """Its rows of x `(rows, k)` and its columns of weight `(k, columns)`."""
        group = part.group
        a, b = matrices
        x = a.tile(group.x_row + part.row, part.rows, group.x_k, group.k)
        weight = b.tile(part.column, part.columns, group.weight_k, group.k, group.matrix)
        x_start, start = self._x_starts[group.x], self._weight_starts[group.weight]
        return (
            x.shifted_to(x.offset_bytes + x_start),
            weight.shifted_to(weight.offset_bytes + start),
        )

    def output(self, part: Part) -> GmView:
        """`(rows, columns)` of the output of its group."""
        group, spec = part.group, self.p.output_spec(part.group.output)
        whole = GmView.of(
            self.p.output_names[group.output], spec.element, prod(spec.shape[:-1]), spec.shape[-1]
        )
        row = group.output_row + part.row
        return whole[row : row + part.rows, part.column : part.column + part.columns]

    def columns(self, parts: tuple[Operand, ...], part: Part) -> GmView | None:
        """The numbers of its columns in a list such as the bias; None without one.

        One number an expert is that number.
        """
        if not parts:
            return None
        group = part.group
        name = parts[0].name.partition("[")[0]
        operand = parts[group.weight]
        each = operand.spec.size // (self.p.experts if len(parts) == 1 else 1)
        first, count = (0, 1) if each == 1 < group.n else (part.column, part.columns)
        place = group.matrix * each + first
        offset = self._starts[name][group.weight] + operand.element.nbytes(place)
        return GmView.vector(name, operand.element, count).shifted_to(offset)

    def rows(self, parts: tuple[Operand, ...], part: Part) -> GmView | None:
        """The numbers of its rows in a list such as the scales of rows; None without one."""
        if not parts:
            return None
        group = part.group
        name, operand = parts[0].name.partition("[")[0], parts[group.x]
        offset = self._starts[name][group.x] + operand.element.nbytes(group.x_row + part.row)
        return GmView.vector(name, operand.element, part.rows).shifted_to(offset)


def _read(builder: Builder, entry: GmView, is_cached: bool) -> None:
    builder.emit(ScalarLoadGlobal("entry", entry.operand, INT64, is_cached))
