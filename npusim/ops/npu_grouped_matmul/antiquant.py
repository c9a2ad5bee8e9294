"""Weights of int8 or int4 beside floats: what these combinations of types ask beside their types.

ops-transformer@c29bc10 gmm/grouped_matmul, README.md and op_host/op_api/aclnn_grouped_matmul.cpp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.data.dtypes import INT4
from npusim.data.errors import Code
from npusim.ops._contract import Contract
from npusim.ops.npu_grouped_matmul.msd import LONGEST_K, UNIT, fits_msd, takes_msd

if TYPE_CHECKING:
    from npusim.data.tensor import Operand
    from npusim.ops.npu_grouped_matmul.problem import Problem

__all__ = ["antiquant_limits", "group_k", "in_digits"]


def group_k(p: Problem, weight: int) -> int:
    """k of a group with numbers of its own, of weight number *weight*: all of it without groups."""
    k = p.weight_shape(weight)[0]
    shape = p.antiquant_scale[weight].shape
    has_groups = len(shape) == len(p.weight[weight].shape)
    return k // shape[-2] if has_groups else k


def in_digits(p: Problem) -> bool:
    """Whether x is written in digits, see `msd`."""
    if p.asked is not None:
        return p.asked == "msd"
    k, n = p.weight_shape(0)
    is_int8, of_rows = p.case.weight is not INT4, p.group_type == 0
    sizes = p.experts, p.rows, k, n
    return takes_msd(*sizes, int8=is_int8, single=_is_single(p), of_rows=of_rows)


def _is_single(p: Problem) -> bool:
    """Whether x and weight are one tensor each, of several experts."""
    return len(p.x) == len(p.weight) == 1 and len(p.weight[0].shape) == 3


def antiquant_limits(contract: Contract, p: Problem) -> None:
    """The shapes of scales and offsets, and what is simulated."""
    what = f" with {p.case}"
    for name, found in (
        ("antiquant_scale", p.antiquant_scale),
        ("antiquant_offset", p.antiquant_offset),
    ):
        contract.require(
            len(found) == len(p.weight),
            f"{name} must have as many tensors as weight, {len(p.weight)}, not {len(found)}; pass "
            f"one for each",
        )
        for place, operand in enumerate(found):
            _check_shape(contract, p, place, operand, what)
    for scale, offset in zip(p.antiquant_scale, p.antiquant_offset, strict=True):
        contract.require(
            scale.shape == offset.shape,
            f"{offset.name} must have the shape of {scale.name}, {scale.shape}, not "
            f"{offset.shape}; pass an offset for each scale",
        )
    sizes = {group_k(p, place) for place in range(len(p.weight))}
    has_groups = len(p.antiquant_scale[0].shape) == len(p.weight[0].shape)
    contract.require(
        not has_groups or len(sizes) == 1,
        f"groups of k must be equally long in all weights{what}, not {sorted(sizes)}; split the "
        f"call",
    )
    contract.require(
        not has_groups or not p.trans_weight,
        f"weight must be contiguous{what} and scales of groups, not a transposed view, whose "
        f"kernel is not simulated; make it contiguous",
        Code.UNSUPPORTED,
    )
    _check_asked(contract, p)


def _check_asked(contract: Contract, p: Problem) -> None:
    """Refuse a kernel that cannot run the call."""
    k, n = p.weight_shape(0)
    needs = {
        "antiquant_performance": (not p.trans_weight, "weight is contiguous"),
        "msd": (
            _is_single(p) and p.group_type == 0 and fits_msd(k, n),
            f"weight is one tensor (e, k, n), group_type 0, and k and n are multiples of {UNIT}, k "
            f"up to {LONGEST_K}",
        ),
    }
    for name, (holds, what) in needs.items():
        contract.require(
            p.asked != name or holds,
            f"template {name!r} can run only if {what}; leave it out to get the vendor's choice",
        )


def _check_shape(contract: Contract, p: Problem, place: int, operand: Operand, what: str) -> None:
    """A number a column, `(e, n)` or `(n,)`; with int4 also `(e, groups, n)` or `(groups, n)`."""
    k, n = p.weight_shape(place)
    first = (p.experts,) if len(p.weight[place].shape) == 3 else ()
    shape = operand.shape
    in_groups = len(shape) == len(first) + 2 and shape[:-2] == first and shape[-1] == n
    fits = p.case.weight is INT4 and in_groups and shape[-2] > 0 and k % shape[-2] == 0
    known = str((*first, n))
    if p.case.weight is INT4:
        known += f" or ({', '.join([*map(str, first), 'groups of k', str(n)])})"
    contract.require(
        shape == (*first, n) or fits,
        f"{operand.name} must have shape {known}{what}, not {shape}; pass a number a column",
    )
