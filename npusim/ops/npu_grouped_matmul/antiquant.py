"""Weights of int8 or int4 by floats: which kernel takes a call.

ops-transformer@c29bc10 gmm/grouped_matmul, README.md and op_host/op_api/aclnn_grouped_matmul.cpp.
"""

from __future__ import annotations

from npusim.data.dtypes import INT4
from npusim.ops.npu_grouped_matmul.msd import takes_msd
from npusim.ops.npu_grouped_matmul.problem import Problem

__all__ = ["group_k", "in_digits", "is_single"]


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
    is_int8, of_rows = p.types.weight is not INT4, p.group_type == 0
    sizes = p.experts, p.rows, k, n
    return takes_msd(*sizes, int8=is_int8, single=is_single(p), of_rows=of_rows)


def is_single(p: Problem) -> bool:
    """Whether x and weight are one tensor each, of several experts."""
    return len(p.x) == len(p.weight) == 1 and len(p.weight[0].shape) == 3
