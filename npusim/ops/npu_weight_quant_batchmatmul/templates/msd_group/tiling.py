"""How msd_group is split over cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from npusim.data.dtypes import FLOAT32
from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.kernel.views import GmView
from npusim.ops.npu_weight_quant_batchmatmul.contract import Problem
from npusim.ops.npu_weight_quant_batchmatmul.templates.digits.groups import (
    GroupProducts,
    group_views,
)
from npusim.ops.npu_weight_quant_batchmatmul.templates.plan import Plan
from npusim.ops.npu_weight_quant_batchmatmul.templates.workspaces import workspace_bytes
from npusim.ops.npu_weight_quant_batchmatmul.traits import CallTraits, k_cores, k_step

__all__ = [
    "CORE_N",
    "SLOTS",
    "MsdGroupPlan",
    "Share",
    "share_of",
    "slots_view",
    "tile",
    "total_view",
]

CORE_N = 2048
"""Columns of a cube core; each of its vector cores takes half."""
SLOTS = 2
"""For the products of a cube core: one is written while the other is read."""
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
    rows: int
    """Put together at a time."""


def tile(spec: DeviceSpec, p: Problem) -> MsdGroupPlan:
    """Cut n by 2048, and k into as many whole groups a core as leaves a core for each."""
    f, aic, products = p.traits, spec.cores["aic"].count, GroupProducts.of(p)
    cores_k, cores_n = k_cores(f, aic), ceil_div(f.n, CORE_N)
    block_dim, core_n = cores_k * cores_n, min(CORE_N, f.n)
    row_bytes = products.dtype.nbytes(products.terms * min(core_n, CORE_N // 2))
    return MsdGroupPlan(
        template=p.choice.template,
        form=p.choice.form,
        reason=p.choice.reason,
        block_dim=block_dim,
        is_mix=True,
        workspaces=workspace_bytes(*group_views(f), *block_dim * [slots_view(p)], total_view(f)),
        cores_k=cores_k,
        cores_n=cores_n,
        core_k=k_step(f, aic),
        core_n=core_n,
        rows=min(f.m, PRODUCT_BYTES // row_bytes),
    )


def slots_view(p: Problem) -> GmView:
    """Room for the products of two groups of one cube core, `(2 x terms x m, columns)`."""
    products = GroupProducts.of(p)
    rows, columns = SLOTS * products.digit_rows, min(CORE_N, p.traits.n)
    return GmView.of("products", products.dtype, rows, columns)


def total_view(f: CallTraits) -> GmView:
    """What all cores add to, float32 `(m, n)`."""
    return GmView.of("total", FLOAT32, f.m, f.n)


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
