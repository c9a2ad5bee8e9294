"""split_k: a bf16 x and few rows; n goes by 1024, k over the rest of the cores.

The sums of every group of 64 are added in global memory. Vector cores dequantise 32 x 512 at a time
(ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel, *_custom_mix_splitk.h). That x leaves
L1 only if it does not fit, and in what parts a piece is multiplied, is assumed.
"""

from __future__ import annotations

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.cube import l1_bytes
from npusim.kernel.program import Block
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates import sharing
from npusim.ops.npu_weight_quant_batchmatmul.templates.dequant import Chain
from npusim.ops.npu_weight_quant_batchmatmul.templates.sharing import Recipe, SharingPlan
from npusim.ops.npu_weight_quant_batchmatmul.templates.strip import StripTile

__all__ = ["build", "tile"]

SLOTS, PIECE_N, GROUP = 4, 1024, 64
TILE_N, LOAD_N = 256, 512


def tile(spec: DeviceSpec, p: Problem) -> SharingPlan:
    """Blocks of n first; the cores that are left share k, in whole groups."""
    f, core = p.traits, spec.cores["aic"]
    blocks_n = ceil_div(f.n, PIECE_N)
    core_n = PIECE_N * ceil_div(blocks_n, core.count)
    cores_n = ceil_div(f.n, core_n)
    parts = core.count // cores_n
    core_k = align_up(ceil_div(f.k, parts), GROUP)
    cores_k = ceil_div(f.k, core_k)
    x_bytes = l1_bytes(BFLOAT16, f.m, min(core_k, f.k), False)
    return SharingPlan(
        template=p.choice.template,
        form=p.choice.form,
        reason=p.choice.reason,
        block_dim=core.count,
        is_mix=True,
        workspaces={
            "ring": cores_k * cores_n * SLOTS * 2 * PIECE_N * GROUP,
            "sums": 4 * f.m * f.n,
        },
        cores_k=cores_k,
        cores_n=cores_n,
        core_k=core_k,
        core_n=core_n,
        strip_k=GROUP,
        ring_slots=SLOTS,
        piece_n=PIECE_N,
        piece_k=GROUP,
        vector_n=512,
        vector_k=32,
        tile=StripTile(
            rows=f.m,
            m=f.m,
            n=TILE_N,
            k=GROUP,
            load_n=LOAD_N,
            load_k=GROUP,
            is_resident=x_bytes + 2 * 2 * LOAD_N * GROUP <= core.usable_bytes("l1"),
            l0c_depth=4,
        ),
        is_added=True,
    )


def build(spec: DeviceSpec, p: Problem, plan: SharingPlan) -> tuple[Block, ...]:
    """The offset is added in fp16, the scale applied in float32."""
    return sharing.build(spec, p, plan, Recipe(Chain(FLOAT16, FLOAT32, BFLOAT16), "rint"))
