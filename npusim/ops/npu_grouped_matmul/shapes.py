"""Shapes of x, weight and what goes with them, held against each other; and those of the outputs.

ops-transformer@c29bc10 gmm/grouped_matmul/README.md, torch_npu-npu_grouped_matmul.md.
"""

from __future__ import annotations

from npusim.data.layout import FRACTAL_ROWS, c0
from npusim.data.tensor import Operand, TensorSpec
from npusim.ops._contract import Contract, listed
from npusim.ops.npu_grouped_matmul.problem import Problem

__all__ = ["check_parameters", "outputs_of"]

LARGEST_INNER = 65535
"""Limit of the last dimension of each x and weight (aclnn_grouped_matmul.cpp)."""
MAX_RANK = 6


def outputs_of(contract: Contract, p: Problem, is_split: bool) -> dict[str, TensorSpec]:
    """The outputs, once the shapes of x and weight fit each other; raises OpError."""
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
    inner, outer = c0(p.types.weight), FRACTAL_ROWS
    units = (inner, outer) if p.trans_weight else (outer, inner)
    for place, operand in enumerate(p.weight):
        sizes = p.weight_shape(place)
        contract.require(
            sizes[0] % units[0] == 0 and sizes[1] % units[1] == 0,
            f"{operand.name} in FRACTAL_NZ must have k and n that are multiples of {units[0]} and "
            f"{units[1]}, not {sizes[0]} and {sizes[1]}; pad it",
        )


def _outputs(p: Problem, is_split: bool) -> dict[str, TensorSpec]:
    dtype = p.types.output.name
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


# ---- scales and biases ----


def check_parameters(contract: Contract, p: Problem) -> None:
    """bias, scale and per_token_scale; scales of groups of k are checked with their template."""
    _per_weight(contract, p, "bias", p.bias)
    if not p.types.scale_of_groups:
        _per_weight(contract, p, "scale", p.scale, p.types.one_scale)
    _per_row(contract, p)
    if p.tuning:
        contract.require(
            0 <= p.tuning[0] <= p.rows,
            f"tuning_config[0] must lie in [0, {p.rows}], the rows of x, not {p.tuning[0]}; pass "
            f"the rows that an expert is expected to have",
        )


def _per_weight(
    contract: Contract, p: Problem, name: str, found: tuple[Operand, ...], one: bool = False
) -> None:
    """A number a column for each weight: `(e, n)` for one tensor of weight, else `(n,)` each.

    With *one* also one number for all columns: `(e,)` or `(e, 1)`.
    """
    if not found:
        return
    contract.require(
        len(found) == len(p.weight),
        f"{name} must have as many tensors as weight, {len(p.weight)}, not {len(found)}; pass one "
        f"for each",
    )
    for place, operand in enumerate(found):
        n = p.weight_shape(place)[1]
        shapes: tuple[tuple[int, ...], ...] = ((n,),)
        if len(p.weight[place].shape) == 3:
            shapes = ((p.experts, n), (p.experts,), (p.experts, 1)) if one else ((p.experts, n),)
        contract.require(
            operand.shape in shapes,
            f"{operand.name} must have shape {listed(tuple(map(str, shapes)))} for "
            f"{p.weight[place].name} of shape {p.weight[place].shape}, not {operand.shape}; pass a "
            f"number a column",
        )


def _per_row(contract: Contract, p: Problem) -> None:
    """A number a row of x."""
    if not p.per_token_scale:
        return
    contract.require(
        len(p.per_token_scale) == len(p.x),
        f"per_token_scale must have as many tensors as x, {len(p.x)}, not "
        f"{len(p.per_token_scale)}; pass one for each",
    )
    for place, operand in enumerate(p.per_token_scale):
        rows = p.x_shape(place)[0]
        contract.require(
            operand.shape == (rows,),
            f"{operand.name} must have shape ({rows},) for {p.x[place].name} of shape "
            f"{p.x[place].shape}, not {operand.shape}; pass a number a row",
        )
