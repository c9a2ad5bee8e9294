"""group_list: its forms, and its values where they are known."""

from __future__ import annotations

from typing import Any

import numpy as np

from npusim.data.dtypes import INT64
from npusim.data.tensor import Operand
from npusim.ops._contract import Contract
from npusim.ops.npu_grouped_matmul.cases import Case
from npusim.ops.npu_grouped_matmul.groups import ENDS, PAIRS, ROWS
from npusim.ops.npu_grouped_matmul.problem import Problem

__all__ = ["check_groups", "group_list_of"]

MOST_GROUPS = 1024
MOST_OF_LISTS = 128
"""Groups of one weight tensor, and of several (torch_npu-npu_grouped_matmul.md)."""


def group_list_of(contract: Contract, value: Any, kind: int, case: Case) -> Operand | None:
    """group_list as the kernel reads it; a list of integers becomes a tensor of them."""
    contract.require(
        kind in (ENDS, ROWS, PAIRS),
        f"group_list_type must be 0, 1 or 2, not {kind}; pass 0 for ends, 1 for rows, 2 for pairs "
        f"of an expert and its rows",
    )
    if value is None:
        return None
    if isinstance(value, list | tuple):
        contract.require(
            kind == ENDS,
            f"group_list_type must be 0 if group_list is a list of integers, not {kind}; pass the "
            f"end of each group",
        )
        numbers = [contract.integer(f"group_list[{place}]", one) for place, one in enumerate(value)]
        value = np.array(numbers, np.int64)
    groups = contract.operand("group_list", value, (INT64,))
    contract.require(
        kind != PAIRS or case.takes_pairs,
        f"group_list_type must be 0 or 1 with {case}, not 2; list the ends or the rows of all "
        f"experts",
    )
    wanted = "(e, 2)" if kind == PAIRS else "(e,)"
    is_pairs = len(groups.shape) == 2 and groups.shape[1] == 2
    contract.require(
        (is_pairs if kind == PAIRS else len(groups.shape) == 1) and groups.shape[0] > 0,
        f"group_list must have shape {wanted} with group_list_type={kind}, not {groups.shape}; "
        f"{'pass an expert and its rows each' if kind == PAIRS else 'pass a number a group'}",
    )
    return groups


def check_groups(contract: Contract, p: Problem) -> None:
    """Hold the length of group_list, and its values if there are any, against the tensors."""
    groups = p.group_list
    several = len(p.x) > 1
    if groups is None:
        contract.require(
            p.group_type == -1 or several or (len(p.weight) > 1 and p.group_type == 2),
            f"group_list must be given with group_type={p.group_type} and one x, not None; pass "
            f"the end of each group",
        )
        return
    contract.require(
        p.group_type != 2 or len(p.weight) == 1,
        "group_list must be None with group_type=2 and several weights; leave it out",
    )
    most = MOST_GROUPS if len(p.weight) == 1 else MOST_OF_LISTS
    held = "one tensor" if len(p.weight) == 1 else "several tensors"
    contract.require(
        groups.shape[0] <= most,
        f"group_list must have at most {most} groups with {held} of weight, not "
        f"{groups.shape[0]}; split the call",
    )
    contract.require(
        p.group_type == 2 or groups.shape[0] == p.experts,
        f"group_list must have as many groups as there are weights, {p.experts}, not "
        f"{groups.shape[0]}; pass one for each",
    )
    if groups.array is not None:
        _check_values(contract, p)


def _check_values(contract: Contract, p: Problem) -> None:
    """The card reads them unseen; what would have it read beyond x is refused here."""
    entries = p.listed
    total = p.x_shape(0)[1] if p.group_type == 2 else p.rows
    what = "columns" if p.group_type == 2 else "rows"
    must = "not decrease" if p.group_list_type == ENDS else "have no negative numbers"
    # A pair without rows ends the list, whatever its number is.
    lowest = 0 if p.group_list_type == PAIRS else min(count for _, count in entries)
    contract.require(
        lowest >= 0,
        f"group_list must {must}, but a group has {lowest} {what}; pass the groups in order",
    )
    found = sum(max(count, 0) for _, count in entries)
    contract.require(
        found <= total,
        f"group_list must list at most the {total} {what} of x, not {found}; pass the groups of "
        f"this x",
    )
    for expert, _ in entries:
        contract.require(
            0 <= expert < p.experts,
            f"group_list must name experts from 0 to {p.experts - 1}, not {expert}; pass the "
            f"number of a weight",
        )
    if len(p.x) > 1:
        for place, (_, count) in enumerate(entries):
            rows = p.x_shape(place)[0]
            contract.require(
                count == rows,
                f"group_list must give {p.x[place].name} its {rows} rows, not {count}; leave it "
                f"out",
            )
