"""What npu_grouped_matmul accepts, and what its kernel receives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from npusim.data.dtypes import FLOAT32, DType
from npusim.data.errors import shown
from npusim.data.tensor import LAYOUTS, Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.ops._contract import Contract, listed
from npusim.ops._lists import joined
from npusim.ops._protocol import present
from npusim.ops._words import fixpipe_words
from npusim.ops.npu_grouped_matmul.activations import NUMBERS
from npusim.ops.npu_grouped_matmul.cases import CASES, PACKED, Case, cases_of
from npusim.ops.npu_grouped_matmul.forms import check_form, check_shapes
from npusim.ops.npu_grouped_matmul.inference import (
    CASE_NAMES,
    INFERENCE,
    TEMPLATE,
    inference_limits,
    require_tensor,
)
from npusim.ops.npu_grouped_matmul.lists import check_groups, group_list_of
from npusim.ops.npu_grouped_matmul.parameters import check_parameters
from npusim.ops.npu_grouped_matmul.problem import Problem

__all__ = ["Problem", "check"]

Operands = tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class _Given:
    """Parameters that are lists of numbers, as they were given; None where they were not."""

    bias: Any
    scale: Any
    per_token_scale: Any
    antiquant_scale: Any
    antiquant_offset: Any


def check(
    spec: DeviceSpec,
    x: Any,
    weight: Any,
    *,
    bias: Any = None,
    scale: Any = None,
    offset: Any = None,
    antiquant_scale: Any = None,
    antiquant_offset: Any = None,
    per_token_scale: Any = None,
    group_list: Any = None,
    activation_input: Any = None,
    activation_quant_scale: Any = None,
    activation_quant_offset: Any = None,
    split_item: Any = 0,
    group_type: Any = None,
    group_list_type: Any = 0,
    act_type: Any = 0,
    tuning_config: Any = None,
    output_dtype: Any = None,
    template: Any = None,
) -> Problem:
    """Hold a call against the contract of its product line; raises OpError."""
    contract = Contract("npu_grouped_matmul", spec)
    unused = {
        "activation_input": activation_input,
        "activation_quant_scale": activation_quant_scale,
        "activation_quant_offset": activation_quant_offset,
    }
    _require_absent(contract, unused)
    xs, weights = _matrices(contract, x, weight)
    given = _Given(bias, scale, per_token_scale, antiquant_scale, antiquant_offset)
    case = _case(contract, xs, weights, output_dtype, given)
    kind = contract.integer("group_list_type", group_list_type)
    groups = group_list_of(contract, group_list, kind, case)
    split = contract.integer("split_item", split_item)
    if spec.series == INFERENCE:
        require_tensor(contract, group_list, group_type)
    form = check_form(contract, case, (xs, weights), split, group_type, group_list)
    p = Problem(
        inputs=(),
        outputs={},
        case_name=case.name,
        x=xs,
        weight=weights,
        bias=_numbers(contract, "bias", given.bias, case.bias, case.needs_bias, case),
        scale=_scale(contract, given.scale, case),
        offset=_offset(contract, offset, case),
        per_token_scale=_per_token(contract, given.per_token_scale, case),
        antiquant_scale=_antiquant(contract, "antiquant_scale", given.antiquant_scale, case),
        antiquant_offset=_antiquant(contract, "antiquant_offset", given.antiquant_offset, case),
        group_list=groups,
        group_type=form.group_type,
        group_list_type=kind,
        act_type=_activation(contract, act_type, case),
        tuning=_tuning(contract, tuning_config),
        asked=_asked(contract, template, case),
    )
    return _checked(contract, p, form.is_split)


def _checked(contract: Contract, p: Problem, is_split: bool) -> Problem:
    """*p* with its inputs and outputs, once shapes and values fit each other."""
    outputs = check_shapes(contract, p, is_split)
    p = _with(p, outputs)
    check_groups(contract, p)
    check_parameters(contract, p)
    p.case.limits(contract, p)
    if contract.spec.series == INFERENCE:
        inference_limits(contract, p)
    return p


def _with(p: Problem, outputs: dict[str, TensorSpec]) -> Problem:
    lists = {
        "x": p.x,
        "weight": p.weight,
        "bias": p.bias,
        "scale": p.scale,
        "offset": p.offset,
        "per_token_scale": p.per_token_scale,
        "antiquant_scale": p.antiquant_scale,
        "antiquant_offset": p.antiquant_offset,
    }
    operands = [joined(name, parts) for name, parts in lists.items() if parts]
    return replace(p, inputs=present(*operands, p.group_list), outputs=outputs)


def _require_absent(contract: Contract, unused: dict[str, Any]) -> None:
    """Refuse parameters that no kernel of these chips reads."""
    for name, value in unused.items():
        is_absent = value is None or (isinstance(value, list | tuple) and not value)
        contract.require(is_absent, f"{name} must be None; leave it out")


def _known(contract: Contract) -> tuple[Case, ...]:
    """The combinations of types that the product line has."""
    if contract.spec.series != INFERENCE:
        return CASES
    return tuple(case for case in CASES if case.name in CASE_NAMES)


def _matrices(contract: Contract, x: Any, weight: Any) -> tuple[Operands, Operands]:
    """Both lists, each of one type and layout, transposed or not as one."""
    cases = _known(contract)
    known_x = tuple(dict.fromkeys(case.stored[0] for case in cases))
    xs = tuple(contract.matrix(n, v, known_x) for n, v in contract.tensors("x", x))
    known = tuple(dict.fromkeys(c.stored[1] for c in cases if c.stored[0] is xs[0].element))
    when = f" with {xs[0].element} x"
    weights = tuple(
        contract.matrix(n, v, known, when, LAYOUTS) for n, v in contract.tensors("weight", weight)
    )
    for name, several in (("x", xs), ("weight", weights)):
        first = several[0]
        for each in several[1:]:
            contract.require(
                each.element is first.element and each.spec.layout == first.spec.layout,
                f"{each.name} must be {first.element} in {first.spec.layout} like {first.name}, "
                f"not {each.element} in {each.spec.layout}; make all tensors of {name} alike",
            )
            contract.require(
                each.spec.transposed == first.spec.transposed or 1 in each.shape[-2:],
                f"{each.name} must be {_turned(first)} like {first.name}, not {_turned(each)}; "
                f"make all tensors of {name} alike",
            )
    return xs, weights


def _turned(operand: Operand) -> str:
    return "a transposed view" if operand.spec.transposed else "contiguous"


def _case(
    contract: Contract, xs: Operands, weights: Operands, output_dtype: Any, given: _Given
) -> Case:
    """The combination of types."""
    x, weight = xs[0].element, weights[0].element
    cases = tuple(case for case in cases_of(x, weight) if case in _known(contract))
    assert cases  # the weight was held against all that go with x
    names = tuple(dict.fromkeys(case.output.name for case in cases))
    name = x.name if output_dtype is None else output_dtype
    name = contract.choice("output_dtype", name, names, f" with {x} x and {weight} weight")
    fitting = [case for case in cases if case.output.name == name]
    bias = _element_of(contract, given.bias)
    case = next((case for case in fitting if bias in case.bias), fitting[0])
    layout = weights[0].spec.layout
    layouts = tuple(dict.fromkeys(each for one in fitting for each in one.layouts))
    contract.require(
        layout in case.layouts,
        f"weight must have layout {listed(case.layouts if bias else layouts)} with {case}, not "
        f"{layout}; pass it through npu_format_cast",
    )
    return case


def _element_of(contract: Contract, value: Any) -> DType | None:
    """The type of the first tensor of a list, if there is one."""
    if value is None or (isinstance(value, list | tuple) and not value):
        return None
    ((name, first), *_) = contract.tensors("bias", value)
    return contract.operand(name, first, _BIASES, " as a bias").element


_BIASES = tuple(dict.fromkeys(dtype for case in CASES for dtype in case.bias))


def _numbers(
    contract: Contract, name: str, value: Any, known: tuple[DType, ...], needed: bool, case: Case
) -> Operands:
    """A list of tensors of numbers of one of the *known* types; empty where it is left out."""
    if isinstance(value, list | tuple) and not value:
        value = None
    what = f" with {case}"
    if not known:
        contract.require(value is None, f"{name} must be None{what}; leave it out")
    if value is None and not needed:
        return ()
    return tuple(contract.operand(n, v, known, what) for n, v in contract.tensors(name, value))


def _scale(contract: Contract, value: Any, case: Case) -> Operands:
    """The scales, those for the fixpipe as its words."""
    found = _numbers(contract, "scale", value, case.scale, bool(case.scale), case)
    if case.scale != PACKED:
        return found
    return tuple(fixpipe_words(contract, each, case.output) for each in found)


def _offset(contract: Contract, value: Any, case: Case) -> Operands:
    if not case.offset:
        _require_absent(contract, {"offset": value})
    return _numbers(contract, "offset", value, case.offset, False, case) if case.offset else ()


def _per_token(contract: Contract, value: Any, case: Case) -> Operands:
    known = () if case.per_token == "none" else (FLOAT32,)
    return _numbers(contract, "per_token_scale", value, known, case.per_token == "required", case)


def _antiquant(contract: Contract, name: str, value: Any, case: Case) -> Operands:
    known = (case.x,) if case.has_antiquant else ()
    return _numbers(contract, name, value, known, case.has_antiquant, case)


def _activation(contract: Contract, act_type: Any, case: Case) -> int:
    kind = contract.integer("act_type", act_type)
    known = ", ".join(f"{number} ({name})" for number, name in NUMBERS.items())
    contract.require(
        kind in NUMBERS,
        f"act_type must be one of {known}, not {kind}; apply another function to the output",
    )
    contract.require(
        kind == 0 or case.has_activation,
        f"act_type must be 0 with {case}, not {kind}; apply the activation to the output",
    )
    return kind


def _asked(contract: Contract, template: Any, case: Case) -> str | None:
    """The kernel that the caller names."""
    if template is None:
        return None
    names = case.kernels or (case.template,)
    if contract.spec.series == INFERENCE:
        names = (TEMPLATE,)
    contract.require(
        isinstance(template, str) and template in names,
        f"template must be {listed(names)} with {case}, not {shown(template)}; leave it out to get "
        f"the vendor's choice",
    )
    return str(template)


def _tuning(contract: Contract, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    contract.require(
        isinstance(value, list | tuple),
        f"tuning_config must be a list of integers, not {shown(value)}; pass for example [128]",
    )
    return tuple(
        contract.integer(f"tuning_config[{place}]", one) for place, one in enumerate(value)
    )
