"""How choices are sorted and rows shared out for npu_moe_init_routing_v2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from npusim.data.dtypes import INT32, UINT64, Array
from npusim.data.integers import align_down, ceil_div
from npusim.devices.schema import DeviceSpec
from npusim.ops import _vocabulary as ops
from npusim.ops._sorting import LISTS_AT_ONCE
from npusim.ops.npu_moe_init_routing_v2.check import NOWHERE, Problem

__all__ = ["LANES", "Order", "Plan", "in_fours", "tile"]

SORT_BYTES = 3 * 4 + 2 * 8 + 1
"""Of a choice that is sorted: its expert, key and number, two pairs, and the bits of a mask."""
LANES = 64
"""Keys of a repeat, of which comparisons take whole ones."""
Template = Literal["one_core", "many_cores", "one_token"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ops.Plan):
    """Some cores sort, then all copy rows."""

    template: Template
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
        parts *= LISTS_AT_ONCE
    part_rows = ceil_div(p.rows, parts)
    template: Template = "one_token" if p.is_one_token else "one_core"
    pairs = dict.fromkeys(("pairs0", "pairs1"), UINT64.nbytes(p.rows)) if parts > 1 else {}
    return Plan(
        block_dim=len(spec.vector_cores),
        template="many_cores" if parts > 1 else template,
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


@dataclass(frozen=True, slots=True)
class Order:
    """What the sort gives, which decides what is read from where."""

    keys: Array
    """The expert of each choice `(rows,)`; one behind all for those that are not active."""
    rounds: tuple[tuple[Array, ...], ...]
    """The lists of choices after each round of merging, the parts first; one in the end."""
    places: Array
    """The row that comes out of each choice of that list `(rows,)`, or NOWHERE."""

    @staticmethod
    def of(p: Problem, plan: Plan) -> Order:
        """The order of the choices of *p*, in the rounds of *plan*."""
        keys = p.expert_keys()
        starts = range(0, p.rows, plan.part_rows)
        parts = [np.arange(start, min(start + plan.part_rows, p.rows)) for start in starts]
        rounds = [tuple(_sorted(keys, part) for part in parts)]
        while len(rounds[-1]) > 1:
            groups = (np.concatenate(group) for group in in_fours(rounds[-1]))
            rounds.append(tuple(_sorted(keys, group) for group in groups))
        return Order(keys, tuple(rounds), _places(p, keys[rounds[-1][0]]))

    @property
    def choices(self) -> Array:
        """All choices in order, `(rows,)`."""
        return self.rounds[-1][0]

    @property
    def experts(self) -> Array:
        """The expert of each of them, `(rows,)`."""
        return np.asarray(self.keys[self.choices])


def in_fours(lists: tuple[Array, ...]) -> list[tuple[Array, ...]]:
    """*lists* in groups of those that are merged to one."""
    return [lists[x : x + LISTS_AT_ONCE] for x in range(0, len(lists), LISTS_AT_ONCE)]


def _places(p: Problem, experts: Array) -> Array:
    """Where the rows of choices of *experts* `(rows,)`, which rise, come out."""
    places = np.arange(len(experts))
    fits = experts < p.experts
    if p.capacity is not None:
        number = places - np.searchsorted(experts, experts)
        places = experts * p.capacity + number
        fits &= number < p.capacity
    return np.where(fits, places, NOWHERE)


def _sorted(keys: Array, choices: Array) -> Array:
    return np.asarray(choices[np.argsort(keys[choices], kind="stable")])
