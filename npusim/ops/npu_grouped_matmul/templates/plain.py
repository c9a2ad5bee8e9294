"""The template plain: matrices of one type of floats, which cube cores multiply alone.

The fixpipe rounds the sums on their way out, behind the last Mmad by the unit flag, and k ascends
on every core (ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel/grouped_matmul_utils.h). Along
k, vector cores start too: they fill the outputs of groups without k with zeros.
"""

from __future__ import annotations

from npusim.data.dtypes import FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe
from npusim.isa.matrix import QuantMode
from npusim.kernel.builder import Builder
from npusim.kernel.cube import GmTile
from npusim.kernel.launch import mixed_launch
from npusim.kernel.program import Block, Program
from npusim.kernel.views import GmView
from npusim.ops.npu_grouped_matmul.operands import Matrices, bound
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.blocks import GroupedCube, sums_of
from npusim.ops.npu_grouped_matmul.templates.plan import (
    Part,
    Plan,
    base_tile,
    cores_of,
    parts_of_cores,
    reason,
    rows_of,
    table_bytes,
)
from npusim.ops.npu_grouped_matmul.templates.zeros import ZeroFill

__all__ = ["build", "tile"]


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
    """One block a cube core."""
    kernel = PlainCube(spec, p, plan)
    shares = parts_of_cores(p, plan.tile.m, plan.single_n, plan.block_dim)
    names = bound(p)
    if plan.is_mix:
        zeros = ZeroFill(spec, p, plan.block_dim)
        return mixed_launch(
            len(shares),
            lambda _: names,
            lambda core: kernel.program(shares[core]),
            lambda core, _: zeros.program(core),
            vector_cores=1,
        )
    return tuple(
        Block(core, "aic", kernel.program(parts), names) for core, parts in enumerate(shares)
    )


class PlainCube:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: Plan) -> None:
        self.p = p
        self.builder = Builder("npu_grouped_matmul", spec.cores["aic"], spec.sync, alone=True)
        bias = p.bias[0].element if p.bias else None
        self.cube = GroupedCube(self.builder, p, plan, bias=bias, unit_flag=True)

    def program(self, parts: tuple[Part, ...]) -> Program:
        """Compute *parts* one after the other."""
        operands = self.cube.operands

        def arguments(_: int, part: Part) -> tuple[GmView | None, ...]:
            return operands.output(part), operands.columns(self.p.bias, part)

        self.cube.write(parts, self._block, arguments)
        return self.builder.build()

    def _block(
        self,
        x: GmTile,
        weight: GmTile,
        matrices: Matrices,
        output: GmView,
        bias: GmView | None,
    ) -> None:
        """`output (rows, columns) = x (rows, k) @ weight (k, columns) + bias (columns,)`."""
        slot = self.cube.product(x, weight, matrices, bias)
        # L0C (columns / 16, rows_padded, 16) fp32 -> (rows, columns) of the output's type
        rows_padded, sums = sums_of(slot, FLOAT32, output)
        size = output.rows, output.columns, rows_padded
        mode: QuantMode = "none" if output.dtype is FLOAT32 else "cast"
        self.cube.writer.drain(slot, Fixpipe(output.operand, sums, *size, output.dtype, mode))
