"""Weights of int4: which kernel takes a call.

ops-transformer@c29bc10 gmm/grouped_matmul, README.md and op_host/op_api/aclnn_grouped_matmul.cpp.
"""

from __future__ import annotations

from npusim.ops.npu_grouped_matmul.problem import Problem

__all__ = [
    "GROUP_K",
    "VECTOR_DEQUANTISED",
    "groups_of_k",
    "is_unpacked",
    "is_vector",
]

GROUP_K = 256
"""k of a group with int8 x."""
VECTOR_DEQUANTISED = ((1, 16, 256, 512), (256, 1024, 512, 32768))
"""(e, m, k, n) of calls with FRACTAL_NZ whose groups vector cores scale, in fp32."""
FEW_COLUMNS = 4
"""n of each row of an expert up to which the weight is unpacked to int8, without groups of k."""


def groups_of_k(p: Problem) -> int:
    """How many groups of k have scales of their own."""
    shape = p.scale[0].shape
    return shape[1] if len(shape) == 3 else 1


def is_vector(p: Problem) -> bool:
    """Whether vector cores scale the groups of k, all of 256."""
    k, n = p.weight_shape(0)
    is_listed = p.is_nz and (p.experts, p.rows, k, n) in VECTOR_DEQUANTISED
    return is_listed and not p.offset and groups_of_k(p) * GROUP_K == k


def is_unpacked(p: Problem) -> bool:
    """Whether a weight of int4 becomes int8 before rows of int8 are multiplied by it."""
    is_plain = groups_of_k(p) == 1 and not p.offset
    return is_plain and p.weight_shape(0)[1] * p.experts <= FEW_COLUMNS * p.rows
