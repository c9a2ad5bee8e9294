"""The template a8w4: int8 by int4, every row of x written as two rows of int4.

Vector cores write the digits of all rows of x first, a row at a time each, and the sums of rows
where weights have an offset, and all wait for each other; then see `half_sums`. Tiles have 128 rows
of digits, or 64 and twice the columns where experts have few rows (ops-transformer@c29bc10
gmm/grouped_matmul/op_kernel, grouped_matmul_antiquant_a8w4_msd*.h).
"""

from __future__ import annotations

from dataclasses import replace

from npusim.data.dtypes import FLOAT16, FLOAT32, INT4, INT8
from npusim.data.integers import align_up
from npusim.data.layout import FRACTAL_ROWS
from npusim.devices.schema import DeviceSpec
from npusim.kernel.cross_core import sync_all
from npusim.kernel.cube import BaseTile, GmMatrix
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.launch import mixed_launch
from npusim.kernel.program import Binding, Block, Program
from npusim.kernel.vector_core import VectorCore
from npusim.kernel.views import GmView
from npusim.ops._int4_matmul import DigitSplitter, digits_of
from npusim.ops.npu_grouped_matmul.int4 import is_unpacked, is_vector
from npusim.ops.npu_grouped_matmul.operands import bound
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates import a8w4_unpacked
from npusim.ops.npu_grouped_matmul.templates.a8w4_vector import GroupCube, GroupEpilogue
from npusim.ops.npu_grouped_matmul.templates.half_sums import (
    CHUNK,
    RING,
    VECTOR_CORES,
    HalfCube,
    HalfEpilogue,
)
from npusim.ops.npu_grouped_matmul.templates.plan import Part, cores_of, parts_of_cores, reason
from npusim.ops.npu_grouped_matmul.templates.ring import MixedPlan, bound_ring, ring_bytes
from npusim.ops.npu_grouped_matmul.templates.row_sums import ROW_SUMS, RowSums

__all__ = ["build", "tile"]

SPLIT, ALL_VECTORS = 2, 3
"""Flags: the digits are in global memory; all vector cores wait for each other."""
ROWS, COLUMNS = 128, 256
ROWS_OF_FEW, COLUMNS_OF_FEW = 64, 512
"""Of digits, in a tile."""
FEW_ROWS = 32
"""Rows an expert on average, below which tiles are wide."""
PIECE_K, STEPS = 256, 4


def tile(spec: DeviceSpec, p: Problem) -> MixedPlan:
    """Tiles of digits; x has half as many rows.

    A weight of few columns is unpacked instead, and two shapes have groups that vector cores scale.
    """
    if is_unpacked(p):
        return a8w4_unpacked.tile(spec, p)
    is_few = p.rows < FEW_ROWS * p.experts
    rows, columns = (ROWS_OF_FEW, COLUMNS_OF_FEW) if is_few else (ROWS, COLUMNS)
    k = PIECE_K * COLUMNS // columns
    rows = min(rows, align_up(2 * p.rows, FRACTAL_ROWS))
    plan = MixedPlan(
        block_dim=cores_of(spec),
        template="a8w4_vector" if is_vector(p) else "a8w4",
        reason=reason(p),
        is_mix=True,
        tile=BaseTile(rows, columns, k, STEPS, STEPS),
        single_n=columns,
        ring=RING,
        vector_cores=VECTOR_CORES,
        chunk_rows=CHUNK // columns,
        unit_flag=False,
        staggers_k=False,
    )
    digits_bytes = INT4.nbytes(2 * p.rows * p.x_shape(0)[1])
    ring = ring_bytes(plan, FLOAT16)
    workspaces = {"workspace": ring, "digits": digits_bytes}
    if p.offset:
        workspaces[ROW_SUMS] = FLOAT32.nbytes(p.rows)
    return replace(plan, workspaces=workspaces)


def build(spec: DeviceSpec, p: Problem, plan: MixedPlan) -> tuple[Block, ...]:
    """A cube core and two vector cores a group."""
    if plan.template == "a8w4_unpacked":
        return a8w4_unpacked.build(spec, p, plan)
    k = p.x_shape(0)[1]
    digits = GmMatrix("digits", INT4, 2 * p.rows, k, k_is_first=False)
    cube_of = GroupCube if is_vector(p) else HalfCube
    cube = cube_of(CubeCore("npu_grouped_matmul", spec), p, plan, digits)
    vector = _VectorCore(spec, p, plan)
    shares = parts_of_cores(p, plan.tile.m // 2, plan.single_n, plan.block_dim)
    written = [name for name in plan.workspaces if name != "workspace"]
    names = bound(p) | {name: Binding(name) for name in written}
    return mixed_launch(
        len(shares),
        lambda core: names | bound_ring(plan, core, FLOAT16),
        lambda core: cube.program(shares[core], SPLIT),
        lambda core, half: vector.program(core, shares[core], half),
    )


class _VectorCore:
    """The kernel of a vector core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: MixedPlan) -> None:
        self.p, self.plan = p, plan
        self.builder = builder = VectorCore("npu_grouped_matmul", spec)
        self.splitter = DigitSplitter(builder, p.x_shape(0)[1])
        self.sums = RowSums(builder, p.x_shape(0)[1]) if p.offset else None
        builder.reset_buffers()
        self.epilogue: HalfEpilogue | GroupEpilogue
        if is_vector(p):
            self.epilogue = GroupEpilogue(builder, p, plan)
        else:
            self.epilogue = HalfEpilogue(builder, p, plan, digits=True)

    def program(self, core: int, parts: tuple[Part, ...], half: int) -> Program:
        """Split rows of x, then finish *parts*."""
        builder, p = self.builder, self.p
        rows, k = p.x_shape(0)
        self.splitter.prepare()
        x, digits = GmView.of("x", INT8, rows, k), digits_of(rows, k)
        own = 2 * core + half, 2 * self.plan.block_dim
        self.splitter.rows(x, digits, *own)
        if self.sums is not None:
            self.sums.rows(x, *own)
        builder.end_stage()
        sync_all(builder, "mte3", "mte2", ALL_VECTORS, SPLIT)
        self.epilogue.write(parts, half)
        return builder.build()
