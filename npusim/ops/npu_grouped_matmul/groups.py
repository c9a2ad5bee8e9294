"""The groups of a call: which rows, or which part of k, each weight is multiplied with.

group_list says it in one of three forms (group_list_type): where each group ends, how many rows it
has, or pairs of an expert and its rows. Every core reads it from global memory while it runs, one
entry after the other, so it decides how a kernel is written, see `seen_by_kernel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from npusim.data.dtypes import Array
from npusim.data.tensor import Operand
from npusim.kernel.launch import share

__all__ = ["ENDS", "PAIRS", "ROWS", "Group", "Listed", "listed"]

ENDS, ROWS, PAIRS = 0, 1, 2
"""group_list_type."""


class Listed(NamedTuple):
    """An entry of group_list."""

    expert: int
    size: int
    """Rows, or numbers along k, of the group."""


@dataclass(frozen=True, slots=True)
class Group:
    """A product of its own: `(m, k) @ (k, n)`, and where its operands are."""

    index: int
    """Its place in group_list, or in the lists of tensors."""
    expert: int
    """Whose weight, bias and scales it takes."""
    m: int
    k: int
    n: int
    x: int
    """Which tensor of x, and where in it the group begins."""
    x_row: int
    x_k: int
    weight: int
    """Which tensor of weight, which matrix of that tensor, and where along k the group begins."""
    matrix: int
    weight_k: int
    output: int
    """Which output, and the first of its rows."""
    output_row: int
    row: int
    """How many rows come before it in all of x: where its scales of rows begin."""


def listed(group_list: Operand, kind: int, total: int) -> tuple[Listed, ...]:
    """The entries that a kernel reads, those without rows too.

    Without values *total* is dealt out evenly. Of pairs the first that has no rows ends the list
    (ops-transformer@c29bc10, op_kernel/grouped_matmul.h).
    """
    entries = group_list.shape[0]
    if group_list.array is None:
        return tuple(
            Listed(expert, len(share(total, entries, expert))) for expert in range(entries)
        )
    if kind == PAIRS:
        return _pairs(group_list.array)
    counts = _counts(group_list.array.tolist(), kind)
    return tuple(Listed(expert, count) for expert, count in enumerate(counts))


def _counts(numbers: Sequence[int], kind: int) -> list[int]:
    if kind == ROWS:
        return list(numbers)
    return [end - start for start, end in zip((0, *numbers[:-1]), numbers, strict=True)]


def _pairs(array: Array) -> tuple[Listed, ...]:
    found = []
    for expert, count in array.tolist():
        found.append(Listed(expert, count))
        if count <= 0:
            break
    return tuple(found)
