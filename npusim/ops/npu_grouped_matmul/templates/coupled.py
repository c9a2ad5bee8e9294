"""The template coupled: the kernel of 310P for float16, whose cores have a cube and a vector pipe.

Blocks of 256 x 256 are assigned to the cores in row-major order, through all groups. x takes 128
KiB of L1 and the weight 256 KiB, both in two pieces; half of the unified buffer serves to convert x
to fractals and sums to rows (ops-transformer@c29bc10 gmm/grouped_matmul/op_host/op_tiling/
grouped_matmul_tiling.cpp). Assumed: that few rows make a block lower, as on A2, and that the kernel
converts an ND weight as it loads it, which aclnn converts to FRACTAL_NZ beforehand.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.kernel import (
    AiCore,
    BaseTile,
    Block,
    GmTile,
    GmView,
    Matmul,
    NdFeed,
    NdOut,
    RowTable,
)
from npusim.kernel.tiles import whole_steps
from npusim.ops.npu_grouped_matmul.parts import Matrices, Parts, bound, matrices_of, read_list
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.tiling import Plan, reason, rows_of

ROWS, COLUMNS, PIECE_K = 256, 256, 64
X_BYTES, WEIGHT_BYTES = 131072, 262144
"""Parts of L1."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Blocks of one base tile each, divided among all cores."""
    m = min(ROWS, align_up(rows_of(p), FRACTAL_ROWS))
    steps = (
        X_BYTES // 2 // FLOAT16.nbytes(m * PIECE_K),
        WEIGHT_BYTES // 2 // FLOAT16.nbytes(COLUMNS * PIECE_K),
    )
    return Plan(
        block_dim=spec.cores[spec.cube_kind].count,
        template="coupled",
        reason=reason(p),
        tile=BaseTile(m, COLUMNS, PIECE_K, *whole_steps(*steps)),
        single_n=COLUMNS,
    )


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """Build one block for each core: operands and results go through the unified buffer."""
    core = AiCore("npu_grouped_matmul", spec)
    a, b = matrices_of(p, 0, 0)
    # FRACTAL_NZ is the layout of L1 already: mte2 copies it there directly.
    left, right = NdFeed(core, a), b if p.is_nz else NdFeed(core, b)
    cube = Matmul(core, plan.tile, left, right, int(p.groups.k[0]), "vector")
    out = NdOut(core, plan.tile.m, plan.tile.n, FLOAT16)
    row = RowTable(core, plan.tile.n, FLOAT16, FLOAT32) if p.bias else None

    def block(
        x: GmTile, weight: GmTile, matrices: Matrices, output: GmView, bias: GmView | None
    ) -> None:
        cube.use(*matrices)
        preload = None
        if bias is not None and row is not None:
            # There is no bias table: the sums start from rows of bias in L0C.
            preload = partial(row.spread, bias, rows=align_up(output.rows, FRACTAL_ROWS))
        sums = cube.multiply(x.extent, weight.extent, x.k, preload=preload)
        # L0C (columns / 16, rows_padded, 16) fp32 -> (rows, columns) fp16
        out.store(output, sums)
        cube.free(sums)

    def arguments(own: Parts) -> tuple[Any, ...]:
        return own.x, own.weight, own.matrices, own.output, own.of_columns(p.bias)

    cores, names = plan.block_dim, bound(p)
    parts = Parts.dealt(p, plan.tile.m, plan.single_n, cores, by_row=True)
    steps = read_list(p, core, cores, parts), *parts.steps(block, arguments)
    return core.launch(*steps, bound=lambda _: names, block_dim=cores)
