"""How the rows of npu_moe_gating_top_k are split over cores, and which template sorts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npusim.data.integers import ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.isa import SORTED_AT_ONCE
from npusim.ops import _protocol
from npusim.ops.npu_moe_gating_top_k.contract import Problem

__all__ = ["Plan", "Template", "tile"]

Template = Literal["groups_of_32", "no_group", "any_groups"]
REASONS: dict[Template, str] = {
    "groups_of_32": "256 experts in eight groups of 32, four of which are kept",
    "no_group": "no group is left out",
    "any_groups": "groups are left out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Each core has a run of rows, which it goes through one at a time."""

    template: Template
    rows_per_core: int


def tile(spec: DeviceSpec, p: Problem) -> Plan:
    """Rows evenly over the vector cores (ops-transformer@c29bc10 moe/moe_gating_top_k/op_host)."""
    rows = ceil_div(p.rows, len(spec.vector_cores))
    template = _template(p)
    return Plan(
        block_dim=ceil_div(p.rows, rows),
        template=template,
        reason=REASONS[template],
        rows_per_core=rows,
    )


def _template(p: Problem) -> Template:
    """The same file: one kernel is for the gate of a certain model."""
    if not p.is_grouped:
        return "no_group"
    shape = (p.experts, p.groups, p.kept_groups) == (256, 8, 4)
    rest = p.has_bias and p.sums_two and p.is_sigmoid and not p.writes_all
    return "groups_of_32" if shape and rest and p.k <= SORTED_AT_ONCE else "any_groups"
