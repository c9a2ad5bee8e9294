"""The template a4w4: int4 by int4, see `half_sums`.

ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel/grouped_matmul_a4w4.h.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.data.dtypes import FLOAT16, INT4
from npusim.devices.schema import DeviceSpec
from npusim.kernel.cube_core import CubeCore
from npusim.kernel.launch import mixed_launch
from npusim.kernel.program import Block, Program
from npusim.kernel.vector_core import VectorCore
from npusim.ops.npu_grouped_matmul.operands import bound
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.half_sums import (
    CHUNK,
    RING,
    VECTOR_CORES,
    HalfCube,
    HalfEpilogue,
)
from npusim.ops.npu_grouped_matmul.templates.plan import (
    base_tile,
    cores_of,
    parts_of_cores,
    reason,
    rows_of,
    table_bytes,
)
from npusim.ops.npu_grouped_matmul.templates.ring import MixedPlan, bound_ring, ring_bytes

__all__ = ["build", "tile"]

WIDTH, WIDTH_OF_MANY = 512, 256
MANY_ROWS = 64
"""Rows an expert, as tuning_config tells them, beyond which tiles are narrower."""


def tile(spec: DeviceSpec, p: Problem) -> MixedPlan:
    """Wide tiles, or narrower ones where experts have many rows."""
    width = WIDTH_OF_MANY if p.tuning and p.tuning[0] > MANY_ROWS else WIDTH
    words = table_bytes(p, words=True) * width // WIDTH_OF_MANY
    base = base_tile(spec, INT4, rows_of(p), width=width, table_bytes=words)
    plan = MixedPlan(
        block_dim=cores_of(spec),
        template="a4w4",
        reason=reason(p),
        is_mix=True,
        tile=base,
        single_n=base.n,
        ring=RING,
        vector_cores=VECTOR_CORES,
        chunk_rows=CHUNK // width,
        unit_flag=False,
        staggers_k=False,
    )
    return replace(plan, workspaces={"workspace": ring_bytes(plan, FLOAT16)})


def build(spec: DeviceSpec, p: Problem, plan: MixedPlan) -> tuple[Block, ...]:
    """A cube core and two vector cores a group."""
    cube = HalfCube(CubeCore("npu_grouped_matmul", spec), p, plan)
    builder = VectorCore("npu_grouped_matmul", spec)
    vector = HalfEpilogue(builder, p, plan, digits=False)
    shares = parts_of_cores(p, plan.tile.m, plan.single_n, plan.block_dim)
    names = bound(p)

    def finish(core: int, half: int) -> Program:
        vector.write(shares[core], half)
        return builder.build()

    return mixed_launch(
        len(shares),
        lambda core: names | bound_ring(plan, core, FLOAT16),
        lambda core: cube.program(shares[core]),
        finish,
    )
