"""The templates plain and fixpipe: matrices that cube cores multiply alone.

plain is for a single float type: the fixpipe rounds the sums as it stores them, following the last
Mmad by the unit flag, and k ascends on every core. Along k, vector cores start too: they fill the
outputs of groups without k with zeros (op_kernel/grouped_matmul_vector.h; that they alternate over
the rows of such an output is assumed).

fixpipe is for int8 by int8 to int8 or int32. The scale of each column, 64 bits, passes through the
fixpipe with the sums; or the single scale for all columns of an expert. Cores start at different
pieces of k, so that those that read the same rows or columns do not collide; integer sums are not
affected. That the scales are loaded again for each block is assumed.

ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel/grouped_matmul_utils.h.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.data.dtypes import INT8
from npusim.data.integers import align_down, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Duplicate
from npusim.kernel import Block, CubeCore, GmTile, GmView, ScaleTable, VectorCore
from npusim.kernel.builder import shared
from npusim.kernel.launch import CoreSteps, launch_mixed
from npusim.kernel.table import spread
from npusim.ops.npu_grouped_matmul import tiling
from npusim.ops.npu_grouped_matmul.parts import (
    Matrices,
    Parts,
    bound,
    matmul_of,
    read_list,
    staggered,
)
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.tiling import Plan

ZERO_BYTES = 32768
"""Bytes of zeros that are stored at a time (assumed)."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Blocks of one base tile each, or several adjacent ones, divided among all cube cores."""
    cores = tiling.cores_of(spec, p)
    if p.types.x is INT8:
        base = tiling.int8_tile(spec, p)
        single_n = tiling.single_columns(p, base, cores)
    else:
        tables = tiling.table_bytes(p)
        base = tiling.base_tile(spec, p.types.x, tiling.rows_of(p), table_bytes=tables)
        single_n = base.n
    return Plan(
        block_dim=cores,
        template=p.types.template,
        reason=tiling.reason(p),
        is_mix=p.group_type == 2,
        tile=base,
        single_n=single_n,
    )


class Stages:
    """The stages of a cube core and the buffers that they use, for groups of any sizes."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.core = CubeCore("npu_grouped_matmul", spec, alone=True)
        bias_type = p.bias[0].element if p.bias else None
        self.cube = matmul_of(self.core, p, plan.tile, bias=bias_type, unit_flag=True)
        self.scales = ScaleTable(self.core, plan.tile.n) if p.scale else None

    def block(
        self,
        x: GmTile,
        weight: GmTile,
        matrices: Matrices,
        output: GmView,
        first_k: int,
        bias: GmView | None,
        scale: GmView | None,
    ) -> None:
        """Compute a block of the output of a group."""
        # (rows, k) @ (k, columns), sums that start from the bias or from zero
        self.cube.use(*matrices)
        sums = self.cube.multiply(x.extent, weight.extent, x.k, bias=bias, first_k=first_k)
        if self.scales is None or scale is None:
            self.cube.fixpipe(output, sums)
        else:
            self.cube.fixpipe(output, sums, "req8", self.scales.load(scale))


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Build one block for each cube core; along k with one vector core each."""
    # Buffers have room for the longest product.
    key = Stages, int(p.groups.k.max())
    stages = shared(key, lambda: Stages(spec, p, plan))
    core, cube = stages.core, stages.cube

    def arguments(own: Parts) -> tuple[Any, ...]:
        first_k = staggered(cube, own) if p.types.x is INT8 else 0
        tables = own.of_columns(p.bias), own.of_columns(p.scale)
        return own.x, own.weight, own.matrices, own.output, first_k, *tables

    cores, names = plan.block_dim, bound(p)
    parts = Parts.dealt(p, plan.tile.m, plan.single_n, cores, plan.tile.n)
    steps = read_list(p, core, cores, parts), *parts.steps(stages.block, arguments)
    if not plan.is_mix:
        return core.launch(*steps, bound=lambda _: names, block_dim=cores)
    zeros = _zeros(spec, p, cores)
    return launch_mixed(cores, CoreSteps(core, steps), zeros, lambda _: names, vector_cores=1)


def _zeros(spec: DeviceSpec, p: Problem, cores: int) -> CoreSteps:
    """Let vector cores zero a share of the rows of every output of a group without k."""
    core, groups, dtype = VectorCore("npu_grouped_matmul", spec), p.groups, p.output.element
    count = ZERO_BYTES * 8 // dtype.bits
    zeros = core.tile(dtype, count)

    def begin() -> None:
        core.emit(Duplicate(zeros, 0))
        core.sync("vector", "mte3")

    def store(output: GmView) -> None:
        core.data_copy(output.operand, zeros[: output.columns])

    m, width = int(groups.m[0]), align_down(count, BLOCK_BYTES)
    empty = np.flatnonzero(groups.k == 0)
    across = -(-groups.n[empty] // width)
    which, number = spread(m * across)
    group, row, column = empty[which], number // across[which], number % across[which] * width
    one, columns = np.ones_like(row), np.minimum(width, groups.n[group] - column)
    order = 2 * np.arange(row.size) + 1
    owner = row // ceil_div(m, cores)
    parts = Parts(p, owner, order, one, group, row, column, one, columns)
    stores = parts.steps(store, lambda own: (own.output,))
    return CoreSteps(core, (read_list(p, core, cores, parts), *stores), begin)
