"""Shapes of the numbers that go with weights, and with rows of x."""

from __future__ import annotations

from npusim.data.tensor import Operand
from npusim.ops._contract import Contract, listed
from npusim.ops.npu_grouped_matmul.problem import Problem

__all__ = ["check_parameters", "per_weight"]


def check_parameters(contract: Contract, p: Problem) -> None:
    """bias, scale and per_token_scale; those of weights of 16 bits' kin are checked by `limits`."""
    per_weight(contract, p, "bias", p.bias)
    if not p.case.scale_of_groups:
        per_weight(contract, p, "scale", p.scale, p.case.one_scale)
    _per_row(contract, p)
    if p.tuning:
        contract.require(
            0 <= p.tuning[0] <= p.rows,
            f"tuning_config[0] must lie in [0, {p.rows}], the rows of x, not {p.tuning[0]}; pass "
            f"the rows that an expert is expected to have",
        )


def per_weight(
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
