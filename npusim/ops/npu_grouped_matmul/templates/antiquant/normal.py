"""The template antiquant: a vector core beside each cube core makes the columns of its blocks.

All of k of the columns of a block, again for each block of rows; of two places in the workspace one
is filled while the cube core multiplies by the other.
"""

from __future__ import annotations

from itertools import count

from npusim.devices.schema import DeviceSpec
from npusim.kernel.builder import Builder
from npusim.kernel.launch import mixed_launch
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView, repeat
from npusim.ops.npu_grouped_matmul.operands import bound
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.antiquant.weights import (
    FILLED,
    READ,
    UB_COLUMNS_OF_K,
    WORKSPACE,
    AntiquantPlan,
    Products,
    WeightMaker,
    cube_tile,
    longest_k,
    ub_rows,
)
from npusim.ops.npu_grouped_matmul.templates.blocks import walk
from npusim.ops.npu_grouped_matmul.templates.plan import (
    Part,
    cores_of,
    parts_of_cores,
    reason,
)

__all__ = ["build", "tile"]

PLACES = 2


def tile(spec: DeviceSpec, p: Problem) -> AntiquantPlan:
    """Base tiles, whose columns are those of the workspace."""
    base = cube_tile(spec, p)
    # k lies inside a transposed weight; else the chunk is as wide as the tile.
    columns = UB_COLUMNS_OF_K if p.trans_weight else base.n
    cores = cores_of(spec)
    place_bytes = p.types.x.nbytes(longest_k(p) * base.n)
    return AntiquantPlan(
        block_dim=cores,
        template="antiquant",
        reason=reason(p),
        is_mix=True,
        workspaces={WORKSPACE: PLACES * cores * place_bytes},
        tile=base,
        single_n=base.n,
        ub_rows=ub_rows(spec, p, columns),
        ub_columns=columns,
        round_n=base.n,
    )


def build(spec: DeviceSpec, p: Problem, plan: AntiquantPlan) -> tuple[Block, ...]:
    """A cube core and one vector core a group."""
    cube, vector = _CubeCore(spec, p, plan), _VectorCore(spec, p, plan)
    shares = parts_of_cores(p, plan.tile.m, plan.single_n, plan.block_dim)
    names, place_bytes = bound(p), p.types.x.nbytes(longest_k(p) * plan.round_n)
    return mixed_launch(
        len(shares),
        lambda core: names | {WORKSPACE: Binding(WORKSPACE, PLACES * core * place_bytes)},
        lambda core: cube.program(shares[core]),
        lambda core, _: vector.program(shares[core]),
        vector_cores=1,
    )


class _CubeCore:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: AntiquantPlan) -> None:
        self.p, self.plan = p, plan
        self.builder = Builder("npu_grouped_matmul", spec.cores["aic"], spec.sync)
        self.products = Products(self.builder, p, plan)
        self.place_bytes = p.types.x.nbytes(longest_k(p) * plan.round_n)

    def program(self, parts: tuple[Part, ...]) -> Program:
        """Compute *parts* one after the other."""
        numbers = count()
        walk(
            self.builder,
            self.products.operands,
            parts,
            lambda part: self._write(next(numbers), part),
        )
        return self.builder.build()

    def _write(self, number: int, part: Part) -> None:
        builder, start = self.builder, number % PLACES * self.place_bytes
        repeat(builder, builder.cross_core_wait_flag, "group", "mte2", FILLED)
        repeat(builder, self.products.block, *self.products.arguments(part, 0, start))
        repeat(builder, builder.cross_core_set_flag, "group", "fixpipe", READ)


class _VectorCore:
    """The kernel of a vector core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: AntiquantPlan) -> None:
        self.p, self.plan = p, plan
        self.builder = VectorCore("npu_grouped_matmul", spec)
        self.weights = WeightMaker(self.builder, p, plan)
        self.place_bytes = p.types.x.nbytes(longest_k(p) * plan.round_n)

    def program(self, parts: tuple[Part, ...]) -> Program:
        """Make the columns of *parts* one after the other."""
        numbers = count()
        walk(
            self.builder,
            self.weights.operands,
            parts,
            lambda part: self._write(next(numbers), part),
        )
        return self.builder.build()

    def _write(self, number: int, part: Part) -> None:
        builder, p, width = self.builder, self.p, self.plan.round_n
        if number >= PLACES:
            repeat(builder, builder.cross_core_wait_flag, "group", "mte3", READ)
        k = part.group.k
        whole = GmView.of(WORKSPACE, p.types.x, *((width, k) if p.trans_weight else (k, width)))
        place = whole.shifted_to(number % PLACES * self.place_bytes)
        self.weights.write(part, range(k), place)
        repeat(builder, builder.cross_core_set_flag, "group", "mte3", FILLED)
