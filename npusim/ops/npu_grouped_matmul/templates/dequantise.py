"""The template dequantise: int8 matrices whose sums vector cores turn into floats.

`((f32(sum) x scale) [+ 0] x per_token_scale) [+ bias]`, an activation, one rounding: cube cores
write int32 tiles into a ring of four places, and the vector cores beside them take them from there,
some rows at a time (ops-transformer@c29bc10 gmm/grouped_matmul/op_kernel,
grouped_matmul_quant_mixcore.h; asc-devkit@82b89a1, impl/adv_api/detail/quantization/dequant). One
vector core starts beside each cube core, both only for the long activation or where tuning_config
tells of many rows an expert (op_host/op_tiling/grouped_matmul_tiling.cpp).
"""

from __future__ import annotations

from dataclasses import replace

from npusim.data.dtypes import INT32
from npusim.data.integers import align_down
from npusim.devices.schema import DeviceSpec
from npusim.isa import Fixpipe
from npusim.kernel.builder import Builder
from npusim.kernel.cube import GmTile
from npusim.kernel.launch import mixed_launch
from npusim.kernel.program import Block, Program
from npusim.kernel.views import GmView
from npusim.ops.npu_grouped_matmul.activations import GELU_TANH
from npusim.ops.npu_grouped_matmul.operands import Matrices, bound
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.templates.blocks import GroupedCube, sums_of
from npusim.ops.npu_grouped_matmul.templates.epilogue import Epilogue
from npusim.ops.npu_grouped_matmul.templates.plan import (
    Part,
    cores_of,
    int8_tile,
    parts_of_cores,
    reason,
    single_columns,
)
from npusim.ops.npu_grouped_matmul.templates.ring import (
    FILLED,
    READ,
    MixedPlan,
    bound_ring,
    place_of,
    ring_bytes,
    tiles_of,
)

__all__ = ["build", "tile"]

RING = 4
"""Places of the ring."""
MANY_ROWS = 128
"""Rows an expert, as tuning_config tells them, from which both vector cores may work."""
SHORT_K, LONG_K = 1024, 2048
"""They do so where k is at most the one or at least the other."""
BYTES_EACH = {
    ("float16", False): 24,
    ("bfloat16", False): 20,
    ("float16", True): 28,
    ("bfloat16", True): 28,
}
"""Type of the output, whether scales of rows or an activation follow -> bytes of the unified buffer
that the vendor counts for a number."""
CHUNK = 2048
"""Numbers of a chunk are a multiple of it."""
STATIC_K = 8192
"""Up to this k plain calls run a form whose tiles the compiler knew."""


def tile(spec: DeviceSpec, p: Problem) -> MixedPlan:
    """Base tiles, and the chunks in which vector cores take them."""
    base = int8_tile(spec, p)
    vector_cores = _vector_cores(p)
    k = max(group.k for group in p.groups)
    is_plain = not p.bias and p.act_type == 0 and vector_cores == 1
    is_static = base.m == MANY_ROWS and k <= STATIC_K and is_plain
    plan = MixedPlan(
        block_dim=cores_of(spec, p),
        template="dequantise",
        reason=reason(p),
        is_mix=True,
        tile=base,
        single_n=single_columns(p, base, cores_of(spec, p)),
        ring=RING,
        vector_cores=vector_cores,
        chunk_rows=_chunk_rows(spec, p, base.m, base.n),
        unit_flag=is_static or p.is_nz,
        staggers_k=p.is_nz and not is_static,
    )
    return replace(plan, workspaces={"workspace": ring_bytes(plan)})


def _vector_cores(p: Problem) -> int:
    """How many vector cores start beside each cube core."""
    k = p.x_shape(0)[1]
    is_told = bool(p.per_token_scale and p.tuning and p.tuning[0] >= MANY_ROWS)
    return 2 if p.act_type == GELU_TANH or (is_told and not SHORT_K < k < LONG_K) else 1


def _chunk_rows(spec: DeviceSpec, p: Problem, rows: int, columns: int) -> int:
    """Rows of a tile that fit into the unified buffer, by the vendor's bytes a number."""
    scale = p.scale[0].element
    room = (spec.cores["aiv"].ub_bytes or 0) - 2 * (scale.nbytes(columns) + 4 * rows)
    passes = bool(p.per_token_scale or p.act_type)
    each_bytes = BYTES_EACH[p.output.dtype, passes]
    return max(1, align_down(room // each_bytes, CHUNK) // columns)


def build(spec: DeviceSpec, p: Problem, plan: MixedPlan) -> tuple[Block, ...]:
    """A cube core and one or two vector cores a group."""
    cube, vector = SumsCube(spec, p, plan), Epilogue(spec, p, plan)
    shares = parts_of_cores(p, plan.tile.m, plan.single_n, plan.block_dim)
    names = bound(p)
    return mixed_launch(
        len(shares),
        lambda core: names | bound_ring(plan, core),
        lambda core: cube.program(core, shares[core]),
        lambda core, half: vector.program(shares[core], half),
        plan.vector_cores,
    )


class SumsCube:
    """The kernel of a cube core."""

    def __init__(self, spec: DeviceSpec, p: Problem, plan: MixedPlan) -> None:
        self.p, self.plan = p, plan
        self.builder = Builder("npu_grouped_matmul", spec.cores["aic"], spec.sync)
        self.is_start = bool(p.bias) and p.bias[0].element is INT32
        bias = INT32 if self.is_start else None
        self.cube = GroupedCube(self.builder, p, plan, bias=bias, unit_flag=plan.unit_flag)

    def program(self, core: int, parts: tuple[Part, ...]) -> Program:
        """Compute *parts* one after the other, as core number *core*."""
        plan, operands = self.plan, self.cube.operands
        tiles = tuple(tile for part in parts for tile in tiles_of(plan, part))

        def arguments(number: int, part: Part) -> tuple[GmView | int | None, ...]:
            first_k = self.cube.writer.stagger(core, part.group.k) if plan.staggers_k else 0
            bias = operands.columns(self.p.bias, part) if self.is_start else None
            place = place_of(plan, number, part.rows, part.columns)
            return place, first_k, bias, number >= plan.ring

        self.cube.write(tiles, self._tile, arguments)
        return self.builder.build()

    def _tile(
        self,
        x: GmTile,
        weight: GmTile,
        matrices: Matrices,
        place: GmView,
        first_k: int,
        bias: GmView | None,
        is_reused: bool,
    ) -> None:
        """Write the int32 sums to *place* `(rows, columns)` of the ring."""
        slot = self.cube.product(x, weight, matrices, bias, first_k)
        if is_reused:
            # All places have been filled: this one must have been read.
            self.builder.cross_core_wait_flag("group", "fixpipe", READ)
        # L0C (columns / 16, rows_padded, 16) int32 -> (rows, columns) int32
        rows_padded, sums = sums_of(slot, INT32, place)
        op = Fixpipe(place.operand, sums, place.rows, place.columns, rows_padded, INT32)
        self.cube.writer.drain(slot, op)
        self.builder.cross_core_set_flag("group", "fixpipe", FILLED)
