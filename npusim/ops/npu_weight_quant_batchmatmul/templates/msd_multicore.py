"""The msd template for int8 weights with a scale for each column, forms multicore and multicore_hp.

.. code-block:: text

    vector cores  a row of x each: largest magnitude, sum, two digits, to global memory
    cube cores    meanwhile load some of the weight, so that it lies in the L2
                  then digits (2 m, k) @ weight: int32 sums, to global memory
    vector cores  the first of each pair: sums of both digits together, scaled, y

Each stage begins when the one before is over: all vector cores wait for each other and then let
their cube core go on, which lets its own vector cores go on (ops-nn@e5c3fa9 matmul/
weight_quant_batch_matmul_v2, op_kernel/*_msd_multicore.h, op_host/op_tiling/*_msd_tiling.cpp).
Assumed: the last stage takes at most 1024 columns at a time, and two of its pieces are under way.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.data.dtypes import INT8, INT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.builder import Builder
from npusim.kernel.cube import BaseTile
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.rows import balanced
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_cube import (
    DigitCube,
    core_columns,
    digits_tile,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.msd_multicore_ends import Finish, RowSplit
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits

__all__ = ["MulticorePlan", "build", "tile"]

OP = "npu_weight_quant_batchmatmul"
SPLIT, READY, MULTIPLIED = range(3)
"""Flags between cores: a vector core, all vector cores have their digits; sums are there."""
FINISH_ELEMENTS = 7712
MOST_COLUMNS = 1024
PRELOADS = 3
FEWER_PRELOADS = {(1, 5568, 6656): 1, (16, 8192, 7168): 2}
"""(m, k, n) of transposed weights without bias for which the vendor settled on fewer."""


@dataclass(frozen=True, slots=True)
class MulticorePlan(Plan):
    """Rows of x for each vector core, columns of the output for each cube core."""

    split_cores: int
    """Vector cores that write digits."""
    split_rows: int
    cube_cores: int
    core_n: int
    cube: BaseTile
    preloads: int
    """Pieces of the weight that a cube core loads while it waits."""
    finish_rows: int
    """The last stage takes so many rows at a time,"""
    finish_columns: int
    """and so many columns."""


def tile(spec: DeviceSpec, p: Problem) -> MulticorePlan:
    """Split as the vendor does where its rules are open."""
    f = p.traits
    split_cores = balanced(f.m, spec.cores["aiv"].count)
    core_n = core_columns(f, spec.cores["aic"].count)
    cube_cores = ceil_div(f.n, core_n)
    cube = digits_tile(spec, p, f.k, min(core_n, f.n), keeps=True)
    columns = min(core_n, f.n, MOST_COLUMNS)
    workspaces = {
        "digits": 2 * f.m * f.k,
        "most": 4 * f.m,
        "sums": 4 * f.m,
        "products": 2 * INT32.nbytes(f.m * f.n),
    }
    return MulticorePlan(
        template=p.choice.template,
        form=p.choice.form,
        reason=p.choice.reason,
        block_dim=max(cube_cores, ceil_div(split_cores, 2)),
        is_mix=True,
        workspaces=workspaces,
        split_cores=split_cores,
        split_rows=ceil_div(f.m, split_cores),
        cube_cores=cube_cores,
        core_n=core_n,
        cube=cube,
        preloads=_preloads(f, cube),
        finish_rows=min(f.m, FINISH_ELEMENTS // align_up(columns, 64)),
        finish_columns=columns,
    )


def _preloads(f: CallTraits, cube: BaseTile) -> int:
    fewer = FEWER_PRELOADS if f.trans_weight and not f.has_bias else {}
    return fewer.get((f.m, f.k, f.n), min(PRELOADS, f.k // (cube.k * cube.steps_b)))


def build(spec: DeviceSpec, p: Problem, plan: MulticorePlan) -> tuple[Block, ...]:
    """A cube core and its two vector cores for each group that is launched."""
    names = [operand.name for operand in p.inputs] + ["output", *plan.workspaces]
    bindings = {name: Binding(name) for name in names}
    cube, vector = _Cube(spec, p, plan), _Vector(spec, p, plan)
    blocks = []
    for group in range(plan.block_dim):
        first = 3 * group
        blocks.append(Block(first, "aic", cube.program(group), bindings, group))
        for half in (0, 1):
            program = vector.program(group, half)
            blocks.append(Block(first + 1 + half, "aiv", program, bindings, group))
    return tuple(blocks)


class _Cube:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: MulticorePlan) -> None:
        self.f, self.plan = p.traits, plan
        self.builder = Builder(OP, spec.cores["aic"], spec.sync)
        self.digits = DigitCube(self.builder, p, plan.cube, p.traits.k)

    def program(self, group: int) -> Program:
        f, plan, builder = self.f, self.plan, self.builder
        column = group * plan.core_n
        columns = min(plan.core_n, f.n - column)
        if columns > 0:
            self.digits.prefetch_l2(0, f.k, column, columns, plan.preloads)
        builder.cross_core_wait_flag("group", "mte2", READY)
        if columns > 0:
            pitch = INT32.nbytes(f.n)
            self.digits.multiply(0, f.k, column, columns, INT32.nbytes(column), pitch)
            builder.cross_core_set_flag("group", "fixpipe", MULTIPLIED)
        return builder.build()


class _Vector:
    """The kernel of a vector core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: MulticorePlan) -> None:
        self.p, self.plan = p, plan
        self.builder = Builder(OP, spec.cores["aiv"], spec.sync)
        self.split = RowSplit(self.builder, p, INT8)
        self.builder.reset_buffers()
        self.finish = Finish(self.builder, p, plan.finish_rows, plan.finish_columns)

    def program(self, group: int, half: int) -> Program:
        f, plan, builder = self.p.traits, self.plan, self.builder
        first = (2 * group + half) * plan.split_rows
        for row in range(first, min(first + plan.split_rows, f.m)):
            self.split.row(row)
        builder.cross_core_set_flag("all", "mte3", SPLIT)
        builder.cross_core_wait_flag("all", "mte2", SPLIT)
        builder.cross_core_set_flag("group", "mte2", READY)
        if group < plan.cube_cores:
            builder.end_stage()
            builder.cross_core_wait_flag("group", "mte2", MULTIPLIED)
            if half == 0:
                column = group * plan.core_n
                self.finish.columns(column, min(plan.core_n, f.n - column))
        return builder.build()
