"""Schemas as parameters: names, order, types, defaults, and how they are given."""

from __future__ import annotations

from dataclasses import replace
from inspect import Parameter as PythonParameter

import pytest

from npusim import ops
from npusim.ops._signature import NO_DEFAULT, Parameter, parameters_of

SCHEMA = (
    "npu_f.overload(Tensor(a!) self, Tensor[]? more, *, SymInt[]? sizes=None, float eps=1e-06, "
    "str mode='half', int[] range=[], bool[2]? mask=None) -> (Tensor(a!), Tensor)"
)


def test_a_schema_is_its_parameters() -> None:
    assert parameters_of(SCHEMA) == (
        Parameter("self", "Tensor"),
        Parameter("more", "Tensor[]?"),
        Parameter("sizes", "SymInt[]?", None, by_name=True),
        Parameter("eps", "float", 1e-6, by_name=True),
        Parameter("mode", "str", "half", by_name=True),
        Parameter("range", "int[]", (), by_name=True),
        Parameter("mask", "bool[2]?", None, by_name=True),
    )


@pytest.mark.parametrize(
    ("kind", "annotation", "facts"),
    [
        ("Tensor", "Array", (True, False, False)),
        ("Tensor?", "Array | None", (True, False, True)),
        ("Tensor[]?", "Sequence[Array] | None", (True, True, True)),
        ("Tensor|float", "Array | float", (True, False, False)),
        ("SymInt[]?", "Sequence[int] | None", (False, False, True)),
        ("bool", "bool", (False, False, False)),
    ],
)
def test_types_are_those_of_python(
    kind: str, annotation: str, facts: tuple[bool, bool, bool]
) -> None:
    parameter = Parameter("x", kind)
    assert parameter.annotation == annotation
    assert (parameter.is_tensor, parameter.is_list, parameter.may_be_none) == facts
    assert parameter.in_python == PythonParameter(
        "x", PythonParameter.POSITIONAL_OR_KEYWORD, annotation=annotation
    )


def test_template_and_extras_come_last() -> None:
    norm = ops.load("npu_rms_norm")
    assert str(ops.signature(norm)) == (
        "(x: 'Array', gamma: 'Array', epsilon: 'float' = 1e-06, *, template: 'str | None' = None)"
    )
    more = replace(norm, extras="bool deterministic=False, int? seed=None")
    assert [(each.name, each.default, each.by_name) for each in more.parameters] == [
        ("x", NO_DEFAULT, False),
        ("gamma", NO_DEFAULT, False),
        ("epsilon", 1e-6, False),
        ("template", None, True),
        ("deterministic", False, True),
        ("seed", None, True),
    ]


def test_arguments_are_bound_by_the_signature() -> None:
    with pytest.raises(TypeError, match=r"^missing a required argument: 'x'$"):
        ops.load("npu_swiglu").reference(dim=0)
    with pytest.raises(TypeError, match=r"^got an unexpected keyword argument 'axis'$"):
        ops.load("npu_swiglu").reference(1, axis=0)
