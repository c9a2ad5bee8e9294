"""The template fixpipe: int8 matrices whose sums the fixpipe makes int8 or int32, on cube cores.

The scale of each column, one of 64 bits, goes with the sums through the fixpipe; of one scale for
all columns of an expert, that one. Cores begin at different pieces of k, so that those who read the
same rows or columns do not meet (ops-transformer@c29bc10
gmm/grouped_matmul/op_kernel/grouped_matmul_utils.h); integers do not mind. That the scales of a
block are loaded anew for each is assumed.
"""

from __future__ import annotations

from npusim.data.dtypes import INT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe
from npusim.isa.matrix import QuantMode
from npusim.kernel.builder import Builder
from npusim.kernel.cube import GmTile
from npusim.kernel.program import Block, Program
from npusim.kernel.views import GmView
from npusim.ops.npu_grouped_matmul.operands import Matrices, bound
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.blocks import GroupedCube, sums_of
from npusim.ops.npu_grouped_matmul.templates.plan import (
    Part,
    Plan,
    cores_of,
    int8_tile,
    parts_of_cores,
    reason,
    single_columns,
)
from npusim.ops.npu_grouped_matmul.templates.ring import tiles_of

__all__ = ["build", "tile"]


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
    kernel = FixpipeCube(spec, p, plan)
    shares = parts_of_cores(p, plan.tile.m, plan.single_n, plan.block_dim)
    names = bound(p)
    return tuple(
        Block(core, "aic", kernel.program(core, parts), names) for core, parts in enumerate(shares)
    )


class FixpipeCube:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p, self.plan = p, plan
        self.builder = Builder("npu_grouped_matmul", spec.cores["aic"], spec.sync, alone=True)
        bias = p.bias[0].element if p.bias else None
        self.cube = GroupedCube(
            self.builder, p, plan, bias=bias, words=bool(p.scale), unit_flag=True
        )
        self.mode: QuantMode = "req8" if p.scale else "none"

    def program(self, core: int, parts: tuple[Part, ...]) -> Program:
        """Compute *parts* one after the other, as core number *core*."""
        p, operands = self.p, self.cube.operands

        def arguments(_: int, part: Part) -> tuple[GmView | int | None, ...]:
            bias, scale = operands.columns(p.bias, part), operands.columns(p.scale, part)
            first_k = self.cube.writer.stagger(core, part.group.k)
            return operands.output(part), first_k, bias, scale

        tiles = tuple(tile for part in parts for tile in tiles_of(self.plan, part))
        self.cube.write(tiles, self._block, arguments)
        return self.builder.build()

    def _block(
        self,
        x: GmTile,
        weight: GmTile,
        matrices: Matrices,
        output: GmView,
        first_k: int,
        bias: GmView | None,
        scale: GmView | None,
    ) -> None:
        """Make *output* `(rows, columns)` of int32 sums, *bias* and *scale* `(columns,)`."""
        slot = self.cube.product(x, weight, matrices, bias, first_k)
        words = None if scale is None else self.cube.tables.take_scale(scale)
        # L0C (columns / 16, rows_padded, 16) int32 -> (rows, columns) of the output's type
        rows_padded, sums = sums_of(slot, INT32, output)
        size = output.rows, output.columns, rows_padded
        op = Fixpipe(output.operand, sums, *size, output.dtype, self.mode, words)
        self.cube.writer.drain(slot, op)
