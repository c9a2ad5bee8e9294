"""What the templates of some types ask of a call, beyond what the rows of support say.

ops-transformer@c29bc10 gmm/grouped_matmul, README.md and op_host/op_api/aclnn_grouped_matmul.cpp.
"""

from __future__ import annotations

from npusim.data.dtypes import INT4
from npusim.data.errors import Code
from npusim.data.tensor import Operand
from npusim.ops._contract import Contract, listed
from npusim.ops.npu_grouped_matmul.antiquant import group_k, is_single
from npusim.ops.npu_grouped_matmul.groups import ROWS
from npusim.ops.npu_grouped_matmul.int4 import GROUP_K, groups_of_k
from npusim.ops.npu_grouped_matmul.msd import LONGEST_K as LONGEST_K_OF_DIGITS
from npusim.ops.npu_grouped_matmul.msd import UNIT, fits_msd
from npusim.ops.npu_grouped_matmul.problem import Problem

__all__ = ["check_limits"]

UNIT_K, LONGEST_K = 64, 18432
"""k with int8 x is a multiple of the one, and at most the other."""
UNIT_N = 8
UNIT_N_COUPLED = 16
"""n of Atlas inference is a multiple of it."""
OF_OFFSETS = ((7168, 4096), (2048, 7168))
"""(k, n) of the weights that may have offsets."""


def check_limits(contract: Contract, p: Problem) -> None:
    """Refuse what the template of the types of *p* does not take."""
    limits = LIMITS.get(p.types.template)
    if limits is not None:
        limits(contract, p)


def _coupled(contract: Contract, p: Problem) -> None:
    """Whole blocks of columns."""
    n = p.weight_shape(0)[1]
    contract.require(
        n % UNIT_N_COUPLED == 0,
        f"n must be a multiple of {UNIT_N_COUPLED} on {contract.spec.series}, not {n}; pad weight",
    )


def _a4w4(contract: Contract, p: Problem) -> None:
    """int4 by int4."""
    what = f" with {p.types}"
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


def _a8w4(contract: Contract, p: Problem) -> None:
    """int8 by int4."""
    what = f" with {p.types}"
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


def _antiquant(contract: Contract, p: Problem) -> None:
    """The shapes of scales and offsets, and what is simulated."""
    what = f" with {p.types}"
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
            is_single(p) and p.group_type == 0 and fits_msd(k, n),
            f"weight is one tensor (e, k, n), group_type 0, and k and n are multiples of {UNIT}, k "
            f"up to {LONGEST_K_OF_DIGITS}",
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
    fits = p.types.weight is INT4 and in_groups and shape[-2] > 0 and k % shape[-2] == 0
    known = str((*first, n))
    if p.types.weight is INT4:
        known += f" or ({', '.join([*map(str, first), 'groups of k', str(n)])})"
    contract.require(
        shape == (*first, n) or fits,
        f"{operand.name} must have shape {known}{what}, not {shape}; pass a number a column",
    )


LIMITS = {"antiquant": _antiquant, "a4w4": _a4w4, "a8w4": _a8w4, "coupled": _coupled}
"""Template -> what refuses a call."""
