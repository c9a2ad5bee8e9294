"""What a cube core of npu_grouped_matmul does with the blocks that it gets."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import count, groupby

from npusim.data.dtypes import DType
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.isa import Local
from npusim.kernel.builder import Builder
from npusim.kernel.cube import CubeWriter, GmFeed, GmTile, Tables
from npusim.kernel.queues import Slot
from npusim.kernel.views import GmView, repeat
from npusim.ops.npu_grouped_matmul.operands import Matrices, Operands
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.plan import Part, Plan

__all__ = ["GroupedCube", "sums_of", "walk"]


class GroupedCube:
    """Products of groups on one cube core: x and weight by mte2, the bias through its table."""

    def __init__(
        self,
        builder: Builder,
        p: Problem,
        plan: Plan,
        *,
        bias: DType | None = None,
        words: bool = False,
        unit_flag: bool = False,
    ) -> None:
        """Sums start from a *bias* of that type; *words* says whether the fixpipe scales."""
        self.builder, self.operands = builder, Operands(p)
        first = max(p.groups, key=lambda g: g.k)
        part = Part(first, 0, 0, first.m, first.n)
        x, weight = (GmFeed(builder, matrix) for matrix in self.operands.matrices(part))
        self._feeds = x, weight
        self.writer = CubeWriter(builder, plan.tile, x, weight, first.k, unit_flag=unit_flag)
        self.tables = Tables(builder, plan.tile.n, bias, words)

    def product(
        self,
        x: GmTile,
        weight: GmTile,
        matrices: Matrices,
        bias: GmView | None = None,
        first_k: int = 0,
    ) -> Slot:
        """The sums of (rows, k) times (k, columns) in L0C, from *bias* `(columns,)` or zero."""
        for feed, matrix in zip(self._feeds, matrices, strict=True):
            feed.gm_matrix = matrix
        start = None if bias is None else self.tables.take_bias(bias)
        slot = self.writer.product(x.extent, weight.extent, x.k, bias=start, first_k=first_k)
        self.tables.drop_bias()
        return slot

    def write(
        self,
        parts: tuple[Part, ...],
        stage: Callable[..., None],
        arguments: Callable[[int, Part], tuple[Hashable, ...]],
    ) -> None:
        """`stage(x, weight, matrices, *arguments(index, part))` of each of *parts*.

        *index* counts them; group_list is read up to its end on the way.
        """
        numbers = count()

        def block(part: Part) -> None:
            matrices = self.operands.matrices(part)
            tiles = self.operands.tiles(part, matrices)
            repeat(self.builder, stage, *tiles, matrices, *arguments(next(numbers), part))

        walk(self.builder, self.operands, parts, block)


def walk(
    builder: Builder, operands: Operands, parts: tuple[Part, ...], write: Callable[[Part], None]
) -> None:
    """Have a core read group_list from end to end and write its *parts* of each group."""
    of_group = {index: tuple(own) for index, own in groupby(parts, lambda part: part.group.index)}
    for group in operands.p.groups:
        operands.read_entry(builder, group.index)
        for part in of_group.get(group.index, ()):
            write(part)


def sums_of(slot: Slot, dtype: DType, block: GmView) -> tuple[int, Local]:
    """Rows of *block* in L0C, padded, and its sums `(columns / 16, rows_padded, 16)` of *dtype*."""
    rows_padded = align_up(block.rows, FRACTAL_ROWS)
    return rows_padded, slot.of(dtype, rows_padded * align_up(block.columns, FRACTAL_ROWS))
