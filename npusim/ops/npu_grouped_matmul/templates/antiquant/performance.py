"""The template antiquant_performance: all vector cores make the columns of a round together.

A round is as many blocks of 256 columns as there are cores, or as a part of the workspace holds.
The vector cores share its k, two of a group taking turns with the chunks of their share, and wait
for each other; then the cube cores share its blocks. Of two parts of the workspace one is filled
while the other is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.builder import Builder
from npusim.kernel.cross_core import sync_all
from npusim.kernel.launch import mixed_launch
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import pieces
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, repeat
from npusim.ops.npu_grouped_matmul.groups import Group
from npusim.ops.npu_grouped_matmul.operands import bound
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.antiquant.weights import (
    FILLED,
    READ,
    UB_COLUMNS,
    WORKSPACE,
    AntiquantPlan,
    Products,
    WeightMaker,
    cube_tile,
    longest_k,
    ub_rows,
)
from npusim.ops.npu_grouped_matmul.templates.plan import (
    Part,
    cores_of,
    reason,
)

__all__ = ["build", "tile"]

ALL_VECTORS, ALL_CUBES = 2, 3
PLACES = 2
ROUND_NUMBERS, ROUND_NUMBERS_OF_WIDE = 16 * 2**20, 10 * 2**20
"""Numbers of a round, and where there are many columns."""
WIDE = 5120
LEAST_ROWS = 8
"""k of a vector core's share."""


def tile(spec: DeviceSpec, p: Problem) -> AntiquantPlan:
    """Base tiles, and rounds of as many blocks of columns as cores take."""
    base = cube_tile(spec, p)
    cores, k = cores_of(spec), longest_k(p)
    n = max(group.n for group in p.groups)
    numbers = ROUND_NUMBERS if n <= WIDE else ROUND_NUMBERS_OF_WIDE
    used = min(ceil_div(numbers, k * base.n), cores, ceil_div(n, base.n))
    round_n = used * base.n
    return AntiquantPlan(
        block_dim=cores,
        template="antiquant_performance",
        reason=reason(p),
        is_mix=True,
        workspaces={WORKSPACE: PLACES * p.types.x.nbytes(k * round_n)},
        tile=base,
        single_n=base.n,
        ub_rows=ub_rows(spec, p, UB_COLUMNS),
        ub_columns=UB_COLUMNS,
        round_n=round_n,
    )


class Round(NamedTuple):
    """Columns of a group, and which of all rounds they are."""

    number: int
    group: Group
    column: int
    columns: int

    @property
    def part(self) -> Part:
        return Part(self.group, 0, self.column, self.group.m, self.columns)


def rounds(p: Problem, plan: AntiquantPlan) -> tuple[Round, ...]:
    """Of all groups with rows, in order."""
    found: list[Round] = []
    for group in p.groups:
        if group.m and group.k:
            for column, columns in pieces(group.n, plan.round_n):
                found.append(Round(len(found), group, column, columns))
    return tuple(found)


def build(spec: DeviceSpec, p: Problem, plan: AntiquantPlan) -> tuple[Block, ...]:
    """A cube core and two vector cores a group."""
    cube, vector = _CubeCore(spec, p, plan), _VectorCore(spec, p, plan)
    names = bound(p) | {WORKSPACE: Binding(WORKSPACE)}
    return mixed_launch(plan.block_dim, lambda _: names, cube.program, vector.program)


@dataclass
class _Core:
    """What both kinds of core know."""

    p: Problem
    plan: AntiquantPlan

    def start_bytes(self, one: Round) -> int:
        """Where the part of the workspace begins that has the columns of a round."""
        return one.number % PLACES * self.p.types.x.nbytes(longest_k(self.p) * self.plan.round_n)


class _CubeCore(_Core):
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: AntiquantPlan) -> None:
        super().__init__(p, plan)
        self.builder = Builder("npu_grouped_matmul", spec.cores["aic"], spec.sync)
        self.products = Products(self.builder, p, plan)

    def program(self, core: int) -> Program:
        """The blocks of core number *core*, a round after the other."""
        builder, plan, operands = self.builder, self.plan, self.products.operands
        for group in self.p.groups:
            operands.read_entry(builder, group.index)
        every = rounds(self.p, plan)
        for one in every:
            repeat(builder, builder.cross_core_wait_flag, "group", "mte2", FILLED)
            for index, part in enumerate(self._blocks(one)):
                if index % plan.block_dim == core:
                    column = part.column - one.column
                    start = self.start_bytes(one)
                    arguments = self.products.arguments(part, column, start)
                    repeat(builder, self.products.block, *arguments)
            if one.number + PLACES < len(every):
                repeat(builder, sync_all, builder, "fixpipe", "fixpipe", ALL_CUBES, READ)
        return builder.build()

    def _blocks(self, one: Round) -> list[Part]:
        """Those of all cores, row after row."""
        group, base = one.group, self.plan.tile
        return [
            Part(group, row, one.column + column, rows, columns)
            for row, rows in pieces(group.m, base.m)
            for column, columns in pieces(one.columns, base.n)
        ]


class _VectorCore(_Core):
    """The kernel of a vector core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: AntiquantPlan) -> None:
        super().__init__(p, plan)
        self.builder = VectorCore("npu_grouped_matmul", spec)
        self.weights = WeightMaker(self.builder, p, plan)

    def program(self, core: int, half: int) -> Program:
        """The share of vector core number *half* beside cube core number *core*."""
        builder, p, plan = self.builder, self.p, self.plan
        for group in p.groups:
            self.weights.operands.read_entry(builder, group.index)
        for one in rounds(p, plan):
            if one.number >= PLACES:
                repeat(builder, builder.cross_core_wait_flag, "group", "mte3", READ)
            k = one.group.k
            place = GmView.of(WORKSPACE, p.types.x, k, plan.round_n)
            place = place.shifted_to(self.start_bytes(one))
            share = max(LEAST_ROWS, align_up(ceil_div(k, plan.block_dim), LEAST_ROWS))
            own = range(min(core * share, k), min((core + 1) * share, k))
            for index, (first, rows) in enumerate(pieces(len(own), plan.ub_rows)):
                if index % 2 == half:
                    ks = range(own.start + first, own.start + first + rows)
                    self.weights.write(one.part, ks, place[ks.start : ks.stop, :])
            repeat(builder, sync_all, builder, "mte3", "mte3", ALL_VECTORS, FILLED)
        return builder.build()
