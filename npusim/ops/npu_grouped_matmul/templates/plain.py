"""The template plain: matrices of one type of floats, which cube cores multiply alone.

The fixpipe rounds the sums on their way out, behind the last Mmad by the unit flag, and k ascends
on every core (ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel/grouped_matmul_utils.h). Along
k, vector cores start too: they fill the outputs of groups without k with zeros (op_kernel/
grouped_matmul_vector.h; that they take turns with the rows of such an output is assumed).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.data.integers import align_down, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import BLOCK_BYTES, Duplicate
from npusim.kernel import Block, CubeCore, GmTile, GmView, VectorCore
from npusim.kernel.launch import CoreSteps, launch_mixed
from npusim.ops.npu_grouped_matmul.parts import Matrices, Parts, bound, matmul_of, read_list
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.tiling import (
    Plan,
    base_tile,
    cores_of,
    reason,
    rows_of,
    table_bytes,
)

ZERO_BYTES = 32768
"""Zeros that are stored at a time (assumed)."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Blocks of a base tile each, dealt out to all cube cores."""
    base = base_tile(spec, p.types.x, rows_of(p), table_bytes=table_bytes(p))
    return Plan(
        block_dim=cores_of(spec, p),
        template="plain",
        reason=reason(p),
        is_mix=p.group_type == 2,
        tile=base,
        single_n=base.n,
    )


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a cube core; along k with one vector core each."""
    core = CubeCore("npu_grouped_matmul", spec, alone=True)
    bias_type = p.bias[0].element if p.bias else None
    cube = matmul_of(core, p, plan.tile, bias=bias_type, unit_flag=True)

    def block(
        x: GmTile, weight: GmTile, matrices: Matrices, output: GmView, bias: GmView | None
    ) -> None:
        # (rows, k) @ (k, columns), fp32 sums that start from the bias or from zero
        cube.use(*matrices)
        sums = cube.multiply(x.extent, weight.extent, x.k, bias=bias)
        cube.fixpipe(output, sums)

    def arguments(own: Parts) -> tuple[Any, ...]:
        return own.x, own.weight, own.matrices, own.output, own.of_columns(p.bias)

    parts = Parts.dealt(p, plan.tile.m, plan.single_n, plan.block_dim)
    steps = read_list(p, core, plan.block_dim, parts), *parts.steps(block, arguments)
    names, cores = bound(p), plan.block_dim
    if not plan.is_mix:
        return core.launch(*steps, bound=lambda _: names, block_dim=cores)
    zeros = _zeros(spec, p, cores)
    return launch_mixed(cores, CoreSteps(core, steps), zeros, lambda _: names, vector_cores=1)


def _zeros(spec: DeviceSpec, p: Problem, cores: int) -> CoreSteps:
    """Vector cores fill a share of the rows of every output of a group without k."""
    core, groups, dtype = VectorCore("npu_grouped_matmul", spec), p.groups, p.output.element
    count = ZERO_BYTES * 8 // dtype.bits
    zeros = core.tile(dtype, count)

    def begin() -> None:
        core.emit(Duplicate(zeros, 0))
        core.sync("vector", "mte3")

    def store(output: GmView) -> None:
        core.data_copy(output.operand, zeros[: output.columns])

    m, width = int(groups.m[0]), align_down(count, BLOCK_BYTES)
    group, row, column = np.concatenate(
        [
            np.mgrid[each : each + 1, :m, : groups.n[each] : width].reshape(3, -1)
            for each in np.flatnonzero(groups.k == 0)
        ]
        or [np.zeros((3, 0), np.int64)],
        axis=1,
    )
    parts = Parts(
        p,
        core=row // ceil_div(m, cores),
        order=2 * np.arange(row.size) + 1,
        turn=np.zeros_like(row),
        group=group,
        row=row,
        column=column,
        rows=np.ones_like(row),
        columns=np.minimum(width, groups.n[group] - column),
    )
    stores = parts.steps(store, lambda own: (own.output,))
    return CoreSteps(core, (read_list(p, core, cores, parts), *stores), begin)
