"""split_k: a bf16 x and few rows; n is split by 1024, k over the rest of the cores.

The sums of every group of 64 are added in global memory. Vector cores dequantise 32 x 512 at a time
(ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel, *_custom_mix_splitk.h). That x leaves
L1 only if it does not fit, and in what parts a block is multiplied, is assumed. See `shared_k` for
the kernel.
"""

from __future__ import annotations

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.cube import l1_bytes
from npusim.kernel.program import Block
from npusim.ops._dequantised_weight import Precision
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.shared_k import kernel
from npusim.ops.npu_weight_quant_batchmatmul.templates.shared_k.kernel import Numerics, SharedKPlan
from npusim.ops.npu_weight_quant_batchmatmul.templates.shared_k.strip import StripTiles

__all__ = ["build", "tile"]

SLOTS, BLOCK_N, GROUP = 4, 1024, 64
TILE_N, LOAD_N = 256, 512


def tile(spec: DeviceSpec, p: Problem) -> SharedKPlan:
    """Blocks of n first; the cores that are left share k, in whole groups."""
    f, core = p.traits, spec.cores["aic"]
    blocks_n = ceil_div(f.n, BLOCK_N)
    core_n = BLOCK_N * ceil_div(blocks_n, core.count)
    cores_n = ceil_div(f.n, core_n)
    parts = core.count // cores_n
    core_k = align_up(ceil_div(f.k, parts), GROUP)
    cores_k = ceil_div(f.k, core_k)
    x_bytes = l1_bytes(BFLOAT16, f.m, min(core_k, f.k), False)
    return SharedKPlan(
        template=p.choice.template,
        form=p.choice.form,
        reason=p.choice.reason,
        block_dim=core.count,
        is_mix=True,
        workspaces={
            "ring": cores_k * cores_n * SLOTS * 2 * BLOCK_N * GROUP,
            "sums": 4 * f.m * f.n,
        },
        cores_k=cores_k,
        cores_n=cores_n,
        core_k=core_k,
        core_n=core_n,
        strip_k=GROUP,
        ring_slots=SLOTS,
        block_n=BLOCK_N,
        block_k=GROUP,
        vector_n=512,
        vector_k=32,
        tiles=StripTiles(
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


def build(spec: DeviceSpec, p: Problem, plan: SharedKPlan) -> tuple[Block, ...]:
    """The offset is added in fp16, the scale applied in float32."""
    precision = Precision(offset=FLOAT16, scale=FLOAT32, out=BFLOAT16)
    return kernel.build(spec, p, plan, Numerics(precision, rounding="rint"))
