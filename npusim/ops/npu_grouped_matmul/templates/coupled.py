"""The template coupled: the kernel of 310P for float16, whose cores have a cube and a vector pipe.

Blocks of 256 x 256 follow each other row after row, core by core, through all groups. x takes 128
KiB of L1 and the weight 256 KiB, both in two pieces; half of the unified buffer is for turning x
into fractals and sums into rows (ops-transformer@c29bc10 gmm/grouped_matmul/op_host/op_tiling/
grouped_matmul_tiling.cpp). Assumed: that few rows make a block lower, as they do on A2, and of a
weight in ND, which aclnn turns into FRACTAL_NZ before, that the kernel turns it as it comes.
"""

from __future__ import annotations

from functools import partial

from npusim.data.dtypes import FLOAT16, FLOAT32
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.kernel.builder import Builder
from npusim.kernel.coupled import NdFeed, NdOut, RowTable
from npusim.kernel.cube import BaseTile, CubeWriter, GmFeed, GmTile
from npusim.kernel.program import Block, Program
from npusim.kernel.views import GmView, repeat
from npusim.ops.npu_grouped_matmul.operands import Matrices, Operands, bound
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.blocks import sums_of, walk
from npusim.ops.npu_grouped_matmul.templates.plan import (
    Part,
    Plan,
    parts_of_cores,
    reason,
    rows_of,
    whole_steps,
)

__all__ = ["build", "tile"]

CORE = "ai_core"
ROWS, COLUMNS, PIECE_K = 256, 256, 64
X_BYTES, WEIGHT_BYTES = 131072, 262144
"""Parts of L1."""


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Blocks of a base tile each, dealt out to all cores."""
    m = min(ROWS, align_up(rows_of(p), FRACTAL_ROWS))
    steps = (
        X_BYTES // 2 // FLOAT16.nbytes(m * PIECE_K),
        WEIGHT_BYTES // 2 // FLOAT16.nbytes(COLUMNS * PIECE_K),
    )
    return Plan(
        block_dim=spec.cores[CORE].count,
        template="coupled",
        reason=reason(p),
        tile=BaseTile(m, COLUMNS, PIECE_K, *whole_steps(*steps)),
        single_n=COLUMNS,
    )


def build(spec: DeviceSpec, p: Problem, plan: Plan) -> tuple[Block, ...]:
    """One block a core."""
    kernel, names = CoupledCore(spec, p, plan), bound(p)
    shares = parts_of_cores(p, plan.tile.m, plan.single_n, plan.block_dim, by_row=True)
    return tuple(
        Block(core, CORE, kernel.program(parts), names) for core, parts in enumerate(shares)
    )


class CoupledCore:
    """The kernel of a core: operands and results go through the unified buffer."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.operands, tile = p, Operands(p), plan.tile
        self.builder = builder = Builder("npu_grouped_matmul", spec.cores[CORE], spec.sync)
        first = p.groups[0]
        x, weight = self.operands.matrices(Part(first, 0, 0, first.m, first.n))
        self.x = NdFeed(builder, spec, x)
        # FRACTAL_NZ is the layout of L1 already: mte2 copies it there directly.
        self.weight = GmFeed(builder, weight) if p.is_nz else NdFeed(builder, spec, weight)
        self.writer = CubeWriter(builder, tile, self.x, self.weight, first.k, "vector")
        self.out = NdOut(builder, spec, tile.m, tile.n, FLOAT16)
        self.row = RowTable(builder, spec, tile.n, FLOAT16, FLOAT32) if p.bias else None

    def program(self, parts: tuple[Part, ...]) -> Program:
        """Compute *parts* one after the other."""
        walk(self.builder, self.operands, parts, self._write)
        return self.builder.build()

    def _write(self, part: Part) -> None:
        operands = self.operands
        matrices = operands.matrices(part)
        numbers = operands.output(part), operands.columns(self.p.bias, part)
        repeat(self.builder, self._block, *operands.tiles(part, matrices), matrices, *numbers)

    def _block(
        self,
        x: GmTile,
        weight: GmTile,
        matrices: Matrices,
        output: GmView,
        bias: GmView | None,
    ) -> None:
        """`output (rows, columns) = x (rows, k) @ weight (k, columns) + bias (columns,)`."""
        self.x.gm_matrix, self.weight.gm_matrix = matrices
        preload = None
        if bias is not None and self.row is not None:
            # There is no bias table: the sums start from rows of bias in L0C.
            rows_padded = align_up(output.rows, FRACTAL_ROWS)
            preload = partial(self.row.spread, bias, rows=rows_padded)
        slot = self.writer.product(x.extent, weight.extent, x.k, preload=preload)
        # L0C (columns / 16, rows_padded, 16) fp32 -> (rows, columns) fp16
        _, sums = sums_of(slot, FLOAT32, output)
        self.out.drain(sums, output, "cast")
        self.writer.release(slot)
