"""nz_splitk: a FRACTAL_NZ weight, whose k is split over cores by 1024 or more.

A core's columns are split into tiles of 128; the weight passes the ring in blocks of 128 x 512, of
which each vector core dequantises 32 x 512 at a time. x stays in L1 if the core's share of it fits
into 256 KiB (ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_host/op_tiling,
*_custom_nz_splitk.cpp). That a block is loaded into L1 in halves, and multiplied there by 256
rows of x, is assumed. See `shared_k` for the kernel.
"""

from __future__ import annotations

from npusim.data.dtypes import BFLOAT16, FLOAT16
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.program import Block
from npusim.ops._dequantised_weight import Precision
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.shared_k import kernel
from npusim.ops.npu_weight_quant_batchmatmul.templates.shared_k.kernel import Numerics, SharedKPlan
from npusim.ops.npu_weight_quant_batchmatmul.templates.shared_k.strip import StripTiles
from npusim.ops.npu_weight_quant_batchmatmul.traits import k_cores, k_step

__all__ = ["build", "tile"]

SLOTS, BLOCK_K = 4, 512
TILE = 128
"""Of m, n and k."""
LOAD_K = 256
RESIDENT_BYTES = 262144


def tile(spec: DeviceSpec, p: Problem) -> SharedKPlan:
    """Split k, then give what is left of the cores to n."""
    f, aic = p.traits, spec.cores["aic"].count
    cores_k, core_k = k_cores(f, aic), k_step(f, aic)
    core_n = align_up(ceil_div(align_up(f.n, 16), aic // cores_k), 64)
    cores_n = ceil_div(f.n, core_n)
    tile_n = TILE if core_n >= TILE else 64
    tile_m = min(f.m, TILE)
    rows = min(f.m, 2 * TILE)
    is_added = f.x == "bfloat16" or f.has_bias or cores_k > 1
    slot_bytes = 2 * tile_n * BLOCK_K
    used = cores_k * cores_n
    workspaces = {"ring": used * SLOTS * slot_bytes}
    if is_added:
        workspaces["sums"] = 4 * f.m * f.n
    return SharedKPlan(
        template=p.choice.template,
        form=p.choice.form,
        reason=p.choice.reason,
        block_dim=aic if is_added else used,
        is_mix=True,
        workspaces=workspaces,
        cores_k=cores_k,
        cores_n=cores_n,
        core_k=core_k,
        core_n=core_n,
        strip_k=core_k,
        ring_slots=SLOTS,
        block_n=tile_n,
        block_k=BLOCK_K,
        vector_n=32,
        vector_k=BLOCK_K,
        tiles=StripTiles(
            rows=rows,
            m=tile_m,
            n=tile_n,
            k=TILE,
            load_n=tile_n,
            load_k=LOAD_K,
            is_resident=2 * f.m * core_k <= RESIDENT_BYTES,
            l0c_depth=2,
        ),
        is_added=is_added,
    )


def build(spec: DeviceSpec, p: Problem, plan: SharedKPlan) -> tuple[Block, ...]:
    """For a bf16 x the scale is applied after the product."""
    precision = Precision(offset=FLOAT16, scale=None, out=BFLOAT16)
    if p.traits.x == "float16":
        precision = Precision(offset=FLOAT16, scale=FLOAT16, out=FLOAT16)
    return kernel.build(spec, p, plan, Numerics(precision, rounding="round"))
