"""split_k and nz_splitk: cube cores share k, see `shared_k` for the kernel.

split_k takes a bf16 x and few rows. n is split by 1024, k over the rest of the cores, and the sums
of every group of 64 are added in global memory. Vector cores dequantise 32 x 512 at a time
(ops-nn@e5c3fa9 matmul/weight_quant_batch_matmul_v2/op_kernel, *_custom_mix_splitk.h). That x leaves
L1 only if it does not fit, and in what parts a block is multiplied, is assumed.

nz_splitk takes a FRACTAL_NZ weight, whose k is split over cores by 1024 or more. A core's columns
are split into tiles of 128; the weight passes the ring in blocks of 128 x 512, of which each vector
core dequantises 32 x 512 at a time. x stays in L1 if the core's share of it fits into 256 KiB
(op_host/op_tiling, *_custom_nz_splitk.cpp). That a block is loaded into L1 in halves, and
multiplied there by 256 rows of x, is assumed.
"""

from __future__ import annotations

from npusim.data.dtypes import BFLOAT16, FLOAT16, FLOAT32
from npusim.data.integers import align_up, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.matrices import l1_bytes
from npusim.kernel.program import Block
from npusim.ops._dequantised_weight import Precision
from npusim.ops.npu_weight_quant_batchmatmul.choice import k_cores, k_step
from npusim.ops.npu_weight_quant_batchmatmul.problem import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.shared_k import SharedKPlan, build_shared_k
from npusim.ops.npu_weight_quant_batchmatmul.templates.strips import StripTiles

SLOTS = 4
"""Blocks in the ring of a cube core."""
BLOCK_N, GROUP = 1024, 64
TILE_N, LOAD_N = 256, 512
"""Columns of a tile and of a load of split_k."""
NZ_BLOCK_K, NZ_LOAD_K = 512, 256
NZ_TILE = 128
"""Tiles of m, n and k in nz_splitk."""
RESIDENT_BYTES = 262144


def tile(spec: DeviceSpec, p: Problem) -> SharedKPlan:
    """Split as the template does that takes the call."""
    return _split_k(spec, p) if p.choice.template == "split_k" else _nz_splitk(spec, p)


def build(spec: DeviceSpec, p: Problem, plan: SharedKPlan) -> tuple[Block, ...]:
    """In the types that the template computes in."""
    if plan.template == "split_k":
        # The offset is added in fp16, the scale applied in float32.
        precision = Precision(offset=FLOAT16, scale=FLOAT32, out=BFLOAT16)
        return build_shared_k(spec, p, plan, precision, rounding="rint")
    # For a bf16 x the scale is applied after the product.
    precision = Precision(offset=FLOAT16, scale=None, out=BFLOAT16)
    if p.traits.x == "float16":
        precision = Precision(offset=FLOAT16, scale=FLOAT16, out=FLOAT16)
    return build_shared_k(spec, p, plan, precision, rounding="round")


def _split_k(spec: DeviceSpec, p: Problem) -> SharedKPlan:
    """Blocks of n first; the cores that are left share k, in whole groups."""
    f, core = p.traits, spec.cores["aic"]
    blocks_n = ceil_div(f.n, BLOCK_N)
    core_n = BLOCK_N * ceil_div(blocks_n, core.count)
    cores_n = ceil_div(f.n, core_n)
    core_k = align_up(ceil_div(f.k, core.count // cores_n), GROUP)
    cores_k = ceil_div(f.k, core_k)
    x_bytes = l1_bytes(BFLOAT16, f.m, min(core_k, f.k), False)
    ring_bytes = cores_k * cores_n * SLOTS * BFLOAT16.nbytes(BLOCK_N * GROUP)
    return SharedKPlan(
        **p.chosen,
        block_dim=core.count,
        is_mix=True,
        workspaces={"ring": ring_bytes, "sums": FLOAT32.nbytes(f.m * f.n)},
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


def _nz_splitk(spec: DeviceSpec, p: Problem) -> SharedKPlan:
    """Split k, then give what is left of the cores to n."""
    f, aic = p.traits, spec.cores["aic"].count
    cores_k, core_k = k_cores(f, aic), k_step(f, aic)
    core_n = align_up(ceil_div(align_up(f.n, 16), aic // cores_k), 64)
    cores_n = ceil_div(f.n, core_n)
    tile_n = NZ_TILE if core_n >= NZ_TILE else 64
    is_added = f.x == "bfloat16" or f.has_bias or cores_k > 1
    used = cores_k * cores_n
    workspaces = {"ring": used * SLOTS * p.x.element.nbytes(tile_n * NZ_BLOCK_K)}
    if is_added:
        workspaces["sums"] = FLOAT32.nbytes(f.m * f.n)
    return SharedKPlan(
        **p.chosen,
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
        block_k=NZ_BLOCK_K,
        vector_n=32,
        vector_k=NZ_BLOCK_K,
        tiles=StripTiles(
            rows=min(f.m, 2 * NZ_TILE),
            m=min(f.m, NZ_TILE),
            n=tile_n,
            k=NZ_TILE,
            load_n=tile_n,
            load_k=NZ_LOAD_K,
            is_resident=p.x.element.nbytes(f.m * core_k) <= RESIDENT_BYTES,
            l0c_depth=2,
        ),
        is_added=is_added,
    )
