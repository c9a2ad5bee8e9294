"""How choices are sorted and rows shared out for npu_moe_init_routing_v2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npusim.data.dtypes import INT32, UINT64
from npusim.data.integers import align_down, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.ops import _protocol
from npusim.ops.npu_moe_init_routing_v2.contract import Problem

__all__ = ["LISTS", "Plan", "tile"]

LISTS = 4
"""Lists that are merged at a time."""
SORT_BYTES = 3 * 4 + 2 * 8 + 1
"""Of a choice that is sorted: its expert, key and number, two pairs, and the bits of a mask."""
LANES = 64
"""Keys of a repeat, of which comparisons take whole ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_protocol.Plan):
    """Some cores sort, then all copy rows."""

    template: Literal["one_core", "many_cores", "one_token"]
    parts: int
    """Lists that are sorted by themselves: 1, or a power of four."""
    part_rows: int
    """Choices of each."""


def tile(spec: DeviceSpec, p: Problem) -> Plan | None:
    """All vector cores; the choices are sorted by one of them if its buffer holds them.

    Otherwise 4^x parts are, each by a core, and merged four at a time (ops-transformer@c29bc10
    moe/moe_init_routing_v3). Assumed: what the buffer holds, see SORT_BYTES.
    """
    if not p.rows:
        return None
    room = spec.cores[spec.vector_kinds[0]].usable_bytes("ub")
    most = align_down(room // SORT_BYTES, LANES) - LANES
    parts = 1
    while ceil_div(p.rows, parts) > most:
        parts *= LISTS
    part_rows = ceil_div(p.rows, parts)
    template: Literal["one_core", "many_cores", "one_token"] = "one_core"
    if parts > 1:
        template = "many_cores"
    elif p.is_one_token:
        template = "one_token"
    pairs = dict.fromkeys(("pairs0", "pairs1"), UINT64.nbytes(p.rows)) if parts > 1 else {}
    return Plan(
        block_dim=len(spec.vector_cores),
        template=template,
        reason=f"{p.rows} choices, of which a core sorts {most}",
        parts=ceil_div(p.rows, part_rows),
        part_rows=part_rows,
        workspaces={
            "sorted_experts": INT32.nbytes(p.rows),
            "sorted_rows": INT32.nbytes(p.rows),
            "histogram": INT32.nbytes(len(p.active)),
        }
        | pairs,
    )
