"""The template fixpipe: int8 matrices whose sums the fixpipe makes int8 or int32, on cube cores.

The scale of each column, one of 64 bits, goes with the sums through the fixpipe; of one scale for
all columns of an expert, that one. Cores begin at different pieces of k, so that those who read the
same rows or columns do not meet (ops-transformer@c29bc10
gmm/grouped_matmul/op_kernel/grouped_matmul_utils.h); integers do not mind. That the scales of a
block are loaded anew for each is assumed.
"""

from __future__ import annotations

from typing import Any

from npusim.devices.schema import DeviceSpec
from npusim.kernel import Block, CubeCore, GmTile, GmView, ScaleTable
from npusim.ops.npu_grouped_matmul.parts import (
    Matrices,
    Parts,
    bound,
    matmul_of,
    read_list,
    staggered,
)
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.tiling import (
    Plan,
    cores_of,
    int8_tile,
    reason,
    single_columns,
)


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Blocks of a base tile each, dealt out to all cube cores."""
    base = int8_tile(spec, p)
    return Plan(
        block_dim=cores_of(spec, p),
        template="fixpipe",
        reason=reason(p),
        tile=base,
        single_n=single_columns(p, base, cores_of(spec, p)),
    )


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a cube core."""
    core = CubeCore("npu_grouped_matmul", spec, alone=True)
    bias_type = p.bias[0].element if p.bias else None
    cube = matmul_of(core, p, plan.tile, bias=bias_type, unit_flag=True)
    scales = ScaleTable(core, plan.tile.n) if p.scale else None

    def block(
        x: GmTile,
        weight: GmTile,
        matrices: Matrices,
        output: GmView,
        first_k: int,
        bias: GmView | None,
        scale: GmView | None,
    ) -> None:
        # (rows, k) @ (k, columns), int32 sums; the columns' scales make them int8
        cube.use(*matrices)
        sums = cube.multiply(x.extent, weight.extent, x.k, bias=bias, first_k=first_k)
        if scales is None or scale is None:
            cube.fixpipe(output, sums)
        else:
            cube.fixpipe(output, sums, "req8", scales.load(scale))

    def arguments(own: Parts) -> tuple[Any, ...]:
        first_k = staggered(cube, own)
        tables = own.of_columns(p.bias), own.of_columns(p.scale)
        return own.x, own.weight, own.matrices, own.output, first_k, *tables

    cores, names = plan.block_dim, bound(p)
    parts = Parts.dealt(p, plan.tile.m, plan.single_n, cores, plan.tile.n)
    steps = read_list(p, core, cores, parts), *parts.steps(block, arguments)
    return core.launch(*steps, bound=lambda _: names, block_dim=cores)
