"""Which lists of tensors go with which way of grouping, and the shapes that follow.

ops-transformer@c29bc10 gmm/grouped_matmul/README.md, torch_npu-npu_grouped_matmul.md, and
op-plugin@517f2e7, GroupedMatmulKernelNpuOpApi.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops._contract import Contract, listed
from npusim.ops.npu_grouped_matmul.cases import Case
from npusim.ops.npu_grouped_matmul.problem import Problem

__all__ = ["Form", "check_form", "check_shapes"]

LARGEST_INNER = 65535
"""Limit of the last dimension of each x and weight (aclnn_grouped_matmul.cpp)."""
MAX_RANK = 6


@dataclass(frozen=True, slots=True)
class Form:
    """How a call is grouped."""

    group_type: int
    """-1: each x by its weight; 0: rows of x; 2: along k."""
    is_split: bool
    """Whether there is an output for each group."""


KNOWN: dict[tuple[int, bool], tuple[str, ...]] = {
    (-1, True): ("n/n/n",),
    (0, False): ("1/1/1", "1/n/1", "n/n/1"),
    (2, False): ("1/1/1",),
    (2, True): ("1/n/n",),
}
"""group_type, an output for each group -> tensors of x, of weight and of the output."""
KNOWN_OF_INTS: dict[tuple[int, bool], tuple[str, ...]] = {
    (-1, True): ("n/n/n",),
    (0, True): ("1/n/n",),
    (0, False): ("1/n/1", "n/n/1"),
}
"""The same where group_list is a list of integers, which is another function of aclnn."""
SPLITS = {True: "0 or 1", False: "2 or 3"}


def check_form(
    contract: Contract,
    case: Case,
    lists: tuple[tuple[Operand, ...], tuple[Operand, ...]],
    split_item: int,
    group_type: Any,
    group_list: Any,
) -> Form:
    """Hold the lengths of the lists against *group_type* and *split_item*."""
    contract.require(
        split_item in range(4),
        f"split_item must be 0, 1, 2 or 3, not {split_item}; pass 0 or 1 for an output for each "
        f"group, 2 or 3 for one",
    )
    is_split = split_item < 2
    xs, weights = lists
    is_of_ints = isinstance(group_list, list | tuple)
    kind = _group_type(contract, case, group_type, is_of_ints, len(xs) > 1 and is_split)
    contract.require(
        kind != -1 or group_list is None or is_of_ints,
        "group_list must be None with group_type=-1; leave it out",
    )
    contract.require(
        not is_of_ints or len(weights[0].shape) == 2,
        f"weight must be a list of (k, n) matrices if group_list is a list of integers, not of "
        f"shape {weights[0].shape}; unbind it, or pass group_list as a tensor",
    )
    known = (KNOWN_OF_INTS if is_of_ints else KNOWN).get((kind, is_split), ())
    if not known:
        splits = tuple(SPLITS[s] for k, s in (KNOWN_OF_INTS if is_of_ints else KNOWN) if k == kind)
        contract.fail(
            f"split_item must be {listed(splits)} with group_type={kind}, not {split_item}; "
            f"change it"
        )
    contract.require(
        any(_fits(form, xs, weights) for form in known),
        f"x and weight must be {listed(tuple(map(_words, known)))} with group_type={kind} and "
        f"split_item={split_item}, not {len(xs)} and {len(weights)} tensors; change the lists",
    )
    contract.require(
        not case.only_single or (len(xs), len(weights)) == (1, 1),
        f"x and weight must be one tensor each with {case}, not {len(xs)} and {len(weights)}; "
        f"stack them",
    )
    return Form(kind, is_split)


def _fits(form: str, xs: tuple[Operand, ...], weights: tuple[Operand, ...]) -> bool:
    """Whether the lists are as long as *form* says; one tensor is a list, too."""
    x, weight, _ = form.split("/")
    x_fits = len(xs) == (len(weights) if x == "n" else 1)
    return x_fits and (weight == "n" or len(weights) == 1)


def _words(form: str) -> str:
    """The lengths of x and weight of *form*, as errors name them."""
    x, weight, _ = form.split("/")
    if (x, weight) == ("n", "n"):
        return "as many tensors"
    return "one tensor and several" if weight == "n" else "one tensor each"


def _group_type(contract: Contract, case: Case, value: Any, is_of_ints: bool, is_each: bool) -> int:
    if value is None:
        contract.require(
            is_of_ints,
            "group_type must be given unless group_list is a list of integers, not None; pass -1, "
            "0 or 2",
        )
        return -1 if is_each else 0
    kind = contract.integer("group_type", value)
    contract.require(
        kind in (-1, 0, 2),
        f"group_type must be -1, 0 or 2, not {kind}; pass 0 to group the rows of x",
    )
    known = tuple(str(each) for each in case.group_types)
    contract.require(
        kind in case.group_types,
        f"group_type must be {listed(known)} with {case}, not {kind}; change it",
    )
    return kind


# ---- shapes ----


def check_shapes(contract: Contract, p: Problem, is_split: bool) -> dict[str, TensorSpec]:
    """Hold the shapes of x and weight against each other; returns the outputs."""
    for operand in (*p.x, *p.weight):
        contract.require(
            0 not in operand.shape,
            f"{operand.name} must not be empty, not of shape {operand.shape}; leave the call out",
        )
        contract.require(
            operand.shape[-1] <= LARGEST_INNER,
            f"the last dimension of {operand.name} must be at most {LARGEST_INNER}, not "
            f"{operand.shape[-1]}; split the call",
        )
    _check_ranks(contract, p)
    _check_turned(contract, p)
    if p.group_type == 2:
        _check_along_k(contract, p)
    else:
        _check_along_m(contract, p)
    if p.is_nz:
        _check_fractals(contract, p)
    return _outputs(p, is_split)


def _check_turned(contract: Contract, p: Problem) -> None:
    """x is a transposed view along k, and only there."""
    is_line = 1 in p.x[0].shape[-2:]
    if p.group_type == 2:
        contract.require(
            p.trans_x or is_line,
            "x must be the transposed view of a (k, m) matrix with group_type=2, not contiguous; "
            "pass the .T of one",
        )
    else:
        contract.require(
            not p.trans_x or is_line,
            f"x must be contiguous with group_type={p.group_type}, not a transposed view; make it "
            f"contiguous",
        )


def _check_ranks(contract: Contract, p: Problem) -> None:
    rank = len(p.x[0].shape)
    ranks, words = range(2, 3), "two dimensions"
    if p.group_type == -1:
        ranks, words = range(2, MAX_RANK + 1), "two to six dimensions, all as many,"
    for operand in p.x:
        contract.require(
            len(operand.shape) == rank and rank in ranks,
            f"{operand.name} must have {words} with group_type={p.group_type}, not shape "
            f"{operand.shape}; reshape it",
        )
    is_stack = p.group_type == 0 and len(p.weight) == 1 and len(p.x) == 1
    for operand in p.weight:
        contract.require(
            len(operand.shape) == 2 or (is_stack and len(operand.shape) == 3),
            f"{operand.name} must have {'the shape (e, k, n)' if is_stack else 'two dimensions'}, "
            f"not shape {operand.shape}; reshape it",
        )


def _check_along_m(contract: Contract, p: Problem) -> None:
    """k of each x is that of its weight; n is one if the output is."""
    places = range(len(p.weight))
    for place in places:
        x = place if len(p.x) > 1 else 0
        k, wanted = p.weight_shape(place)[0], p.x_shape(x)[1]
        contract.require(
            k == wanted,
            f"{p.weight[place].name} must have as many rows as {p.x[x].name} has columns, "
            f"{wanted}, not {k}; pass x as (m, k) and weight as (k, n)",
        )
    n = p.weight_shape(0)[1]
    for place in places:
        contract.require(
            p.group_type == -1 or p.weight_shape(place)[1] == n,
            f"{p.weight[place].name} must have as many columns as {p.weight[0].name}, {n}, not "
            f"{p.weight_shape(place)[1]}; pad it",
        )


def _check_along_k(contract: Contract, p: Problem) -> None:
    k, rows = p.x_shape(0)[1], sum(p.weight_shape(place)[0] for place in range(len(p.weight)))
    contract.require(
        not p.trans_weight,
        "weight must be contiguous with group_type=2, not a transposed view; make it contiguous",
    )
    is_one = len(p.weight) == 1
    many = "as many" if is_one else "at most as many"
    contract.require(
        rows == k if is_one else rows <= k,
        f"weight must have {many} rows as x has columns, {k}, not {rows}; pass x as (m, k) and "
        f"weight as (k, n)",
    )
    contract.require(not p.bias, "bias must be None with group_type=2; leave it out")


def _check_fractals(contract: Contract, p: Problem) -> None:
    """FRACTAL_NZ holds whole fractals only."""
    inner, outer = c0(p.case.weight), FRACTAL_ROWS
    units = (inner, outer) if p.trans_weight else (outer, inner)
    for place, operand in enumerate(p.weight):
        sizes = p.weight_shape(place)
        contract.require(
            sizes[0] % units[0] == 0 and sizes[1] % units[1] == 0,
            f"{operand.name} in FRACTAL_NZ must have k and n that are multiples of {units[0]} and "
            f"{units[1]}, not {sizes[0]} and {sizes[1]}; pad it",
        )


def _outputs(p: Problem, is_split: bool) -> dict[str, TensorSpec]:
    dtype = p.case.output.name
    shapes: list[tuple[int, ...]]
    if p.group_type == 2 and len(p.weight) == 1:
        shapes = [(p.experts, p.x_shape(0)[0], p.weight_shape(0)[1])]
    elif p.group_type == 2:
        shapes = [(p.x_shape(0)[0], p.weight_shape(i)[1]) for i in range(len(p.weight))]
    elif p.group_type == -1:
        shapes = [(*x.shape[:-1], p.weight_shape(i)[1]) for i, x in enumerate(p.x)]
    elif is_split:
        shapes = [(count, p.weight_shape(i)[1]) for i, (_, count) in enumerate(p.listed)]
    else:
        shapes = [(p.rows, p.weight_shape(0)[1])]
    names = ["output", *(f"output{place}" for place in range(1, len(shapes)))]
    return {name: TensorSpec(shape, dtype) for name, shape in zip(names, shapes, strict=True)}
