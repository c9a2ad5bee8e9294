"""Weights of int4: what their combinations of types ask of a call beside its types.

ops-transformer@c29bc10 gmm/grouped_matmul, README.md and op_host/op_api/aclnn_grouped_matmul.cpp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.data.errors import Code
from npusim.ops._contract import Contract, listed

if TYPE_CHECKING:
    from npusim.ops.npu_grouped_matmul.problem import Problem

__all__ = [
    "GROUP_K",
    "VECTOR_DEQUANTISED",
    "a4w4_limits",
    "a8w4_limits",
    "groups_of_k",
    "is_unpacked",
    "is_vector",
]

GROUP_K = 256
"""k of a group with int8 x."""
UNIT_K, LONGEST_K = 64, 18432
"""k with int8 x is a multiple of the one, and at most the other."""
UNIT_N = 8
ROWS = 1
"""group_list_type: the rows of each group."""
VECTOR_DEQUANTISED = ((1, 16, 256, 512), (256, 1024, 512, 32768))
"""(e, m, k, n) of calls with FRACTAL_NZ whose groups vector cores scale, in fp32."""
OF_OFFSETS = ((7168, 4096), (2048, 7168))
"""(k, n) of the weights that may have offsets."""
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


def a4w4_limits(contract: Contract, p: Problem) -> None:
    """int4 by int4."""
    what = f" with {p.case}"
    _check_scale(contract, p, what)
    k, n = p.weight_shape(0)
    contract.require(
        k % groups_of_k(p) == 0 and k // groups_of_k(p) % 2 == 0,
        f"k of a group must be a whole, even number{what}, not {k} / {groups_of_k(p)}; change the "
        f"groups of scale",
    )
    contract.require(
        p.is_nz or n % UNIT_N == 0, f"n must be a multiple of {UNIT_N}{what}, not {n}; pad weight"
    )


def a8w4_limits(contract: Contract, p: Problem) -> None:
    """int8 by int4."""
    what = f" with {p.case}"
    _check_scale(contract, p, what)
    k, n = p.weight_shape(0)
    contract.require(
        p.group_list_type == ROWS,
        f"group_list_type must be 1{what}, not {p.group_list_type}; list the rows of each group",
    )
    contract.require(
        not p.trans_weight, f"weight must be contiguous{what}, not a transposed view; turn it"
    )
    contract.require(
        k % UNIT_K == 0 and k <= LONGEST_K and n % UNIT_N == 0,
        f"k must be a multiple of {UNIT_K} up to {LONGEST_K} and n one of {UNIT_N}{what}, not {k} "
        f"and {n}; pad weight, or split the call",
    )
    _check_offset(contract, p, what)
    counts = tuple(str(count) for count in dict.fromkeys((1, k // GROUP_K)) if count)
    contract.require(
        groups_of_k(p) == 1 or groups_of_k(p) * GROUP_K == k,
        f"scale must have {listed(counts)} groups of k{what} and k = {k}, not {groups_of_k(p)}; "
        f"pass a scale for each {GROUP_K} of k",
    )
    contract.require(
        len(p.tuning) < 2,
        f"tuning_config must have at most one number{what}, not {len(p.tuning)}, which ask for a "
        f"kernel that is not simulated; pass the first one",
        Code.UNSUPPORTED,
    )


def _check_offset(contract: Contract, p: Problem, what: str) -> None:
    """A number a column and expert, of weights of two shapes only."""
    if not p.offset:
        return
    k, n = p.weight_shape(0)
    contract.require(
        (k, n) in OF_OFFSETS,
        f"offset must be None for weights that are not of {listed(tuple(map(str, OF_OFFSETS)))}"
        f"{what}, not given for {(k, n)}; leave it out",
    )
    shapes = tuple(operand.shape for operand in p.offset)
    contract.require(
        shapes == ((p.experts, 1, n),),
        f"offset must be one tensor of shape {(p.experts, 1, n)}{what}, not {list(shapes)}; pass "
        f"a number a column",
    )


def _check_scale(contract: Contract, p: Problem, what: str) -> None:
    """A number a column and expert, or one for each group of k, column and expert."""
    (scale,) = p.scale
    n = p.weight_shape(0)[1]
    shape = scale.shape
    fits = shape == (p.experts, n) or (
        len(shape) == 3 and (shape[0], shape[2]) == (p.experts, n) and shape[1] > 0
    )
    contract.require(
        len(p.weight[0].shape) == 3,
        f"weight must have the shape (e, k, n){what}, not shape {p.weight[0].shape}; reshape it",
    )
    contract.require(
        fits,
        f"scale must have shape ({p.experts}, {n}) or ({p.experts}, groups of k, {n}){what}, not "
        f"{shape}; pass a number a column",
    )
