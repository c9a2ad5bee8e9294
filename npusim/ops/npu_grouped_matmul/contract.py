"""What npu_grouped_matmul accepts, and what its kernel receives."""

from __future__ import annotations

from dataclasses import replace

from npusim.data.errors import shown
from npusim.data.tensor import Operand
from npusim.ops._contract import Contract, listed
from npusim.ops._lists import joined
from npusim.ops._protocol import present
from npusim.ops._words import fixpipe_words
from npusim.ops.npu_grouped_matmul.grouping import check_groups, group_list_of, grouping_of
from npusim.ops.npu_grouped_matmul.limits import check_limits
from npusim.ops.npu_grouped_matmul.problem import Problem
from npusim.ops.npu_grouped_matmul.shapes import check_parameters, outputs_of
from npusim.ops.npu_grouped_matmul.support import PACKED, Types

__all__ = ["Problem", "check"]

Operands = tuple[Operand, ...]


def check(contract: Contract) -> Problem:
    """Hold a call against what ties its arguments together; raises OpError."""
    xs, weights = _matrices(contract)
    output = contract.value("output_dtype")
    contract.one_of("output_dtype", xs[0].element.name if output is None else output)
    groups = group_list_of(contract)
    grouping = grouping_of(contract, xs, weights)
    lists = {
        name: contract.optional_operands(name)
        for name in (
            *("bias", "scale", "offset", "per_token_scale"),
            *("antiquant_scale", "antiquant_offset"),
        )
    }
    act_type = contract.integer("act_type")
    types: Types = contract.rows[0].facts
    if any(scale.element in PACKED for scale in lists["scale"]):
        lists["scale"] = tuple(
            fixpipe_words(contract, scale, types.output) for scale in lists["scale"]
        )
    p = Problem(
        inputs=(),
        outputs={},
        types=types,
        x=xs,
        weight=weights,
        **lists,
        group_list=groups,
        group_type=grouping.group_type,
        group_list_type=contract.whole("group_list_type", contract.value("group_list_type")),
        act_type=act_type,
        tuning=_tuning(contract),
        asked=_asked(contract, types),
    )
    lists = {"x": xs, "weight": weights} | lists
    operands = [joined(name, parts) for name, parts in lists.items() if parts]
    outputs = outputs_of(contract, p, grouping.is_split)
    p = replace(p, inputs=present(*operands, groups), outputs=outputs)
    check_groups(contract, p)
    check_parameters(contract, p)
    check_limits(contract, p)
    return p


def _matrices(contract: Contract) -> tuple[Operands, Operands]:
    """Both lists, each of one layout, transposed or not as one."""
    xs, weights = contract.matrices("x"), contract.matrices("weight")
    for name, (first, *others) in (("x", xs), ("weight", weights)):
        for each in others:
            contract.require(
                each.spec.layout == first.spec.layout,
                f"{each.name} must be in {first.spec.layout} like {first.name}, not in "
                f"{each.spec.layout}; make all tensors of {name} alike",
            )
            contract.require(
                each.spec.transposed == first.spec.transposed or 1 in each.shape[-2:],
                f"{each.name} must be {_turned(first)} like {first.name}, not {_turned(each)}; "
                f"make all tensors of {name} alike",
            )
    return xs, weights


def _turned(operand: Operand) -> str:
    return "a transposed view" if operand.spec.transposed else "contiguous"


def _asked(contract: Contract, types: Types) -> str | None:
    """The kernel that the caller names."""
    template = contract.value("template")
    if template is None:
        return None
    contract.require(
        isinstance(template, str) and template in types.names,
        f"template must be {listed(types.names)} with {types}, not {shown(template)}; leave it out "
        f"to get the vendor's choice",
    )
    return str(template)


def _tuning(contract: Contract) -> tuple[int, ...]:
    value = contract.value("tuning_config")
    if value is None:
        return ()
    contract.require(
        isinstance(value, list | tuple),
        f"tuning_config must be a list of integers, not {shown(value)}; pass for example [128]",
    )
    return tuple(contract.whole(f"tuning_config[{place}]", one) for place, one in enumerate(value))
