"""How msd_group is split over cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_cube import DigitProducts
from npusim.ops.npu_weight_quant_batchmatmul.templates.group_digits import workspaces
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan
from npusim.ops.npu_weight_quant_batchmatmul.traits import k_cores, k_step

__all__ = ["CORE_N", "PLACES", "MsdGroupPlan", "Share", "share_of", "tile"]

CORE_N = 2048
"""Columns of a cube core; each of its vector cores takes half."""
PLACES = 2
"""For the products of a cube core."""
PRODUCT_BYTES = 32768
"""Of products that a vector core loads at a time; assumed."""


@dataclass(frozen=True, slots=True)
class MsdGroupPlan(Plan):
    """How groups and columns are split over cube cores."""

    cores_k: int
    cores_n: int
    core_k: int
    """k of a core, whole groups."""
    core_n: int
    product_bytes: int
    """Of a core's products of one group in the workspace."""
    rows: int
    """Put together at a time."""


def tile(spec: DeviceSpec, p: Problem) -> MsdGroupPlan:
    """Cut n by 2048, and k into as many whole groups a core as leaves a core for each."""
    f, aic, products = p.traits, spec.cores["aic"].count, DigitProducts.of(p)
    cores_k, cores_n = k_cores(f, aic), ceil_div(f.n, CORE_N)
    block_dim, core_n = cores_k * cores_n, min(CORE_N, f.n)
    product_bytes = products.dtype.nbytes(products.digit_rows * core_n)
    row_bytes = products.dtype.nbytes(products.terms * min(core_n, CORE_N // 2))
    return MsdGroupPlan(
        template=p.choice.template,
        form=p.choice.form,
        reason=p.choice.reason,
        block_dim=block_dim,
        is_mix=True,
        workspaces=workspaces(p, products)
        | {
            "products": block_dim * PLACES * product_bytes,
            "total": FLOAT32.nbytes(f.m * f.n),
        },
        cores_k=cores_k,
        cores_n=cores_n,
        core_k=k_step(f, aic),
        core_n=core_n,
        product_bytes=product_bytes,
        rows=min(f.m, PRODUCT_BYTES // row_bytes),
    )


class Share(NamedTuple):
    """What a cube core multiplies."""

    group: int
    groups: int
    column: int
    columns: int


def share_of(p: Problem, plan: MsdGroupPlan, index: int) -> Share:
    """Cores with less k come first, so that they add first."""
    f = p.traits
    index_k, index_n = divmod(index, plan.cores_n)
    k, column = index_k * plan.core_k, index_n * CORE_N
    groups = min(plan.core_k, f.k - k) // f.group_size
    return Share(k // f.group_size, groups, column, min(CORE_N, f.n - column))
