"""Elementwise operators: sums, products, functions, comparisons, selections, broadcasts, fills.

One kernel serves all of them: ``expressions`` says what each computes, ``kernel`` how tiles are
cut and what a tile's micro-ops are, ``reference`` what comes out, in plain numpy. The second
operand may be a number or a tensor of a shape that is broadcast. It is of the type of the first;
of `add` and `mul` one may be float32 and the other float16 or bfloat16, which gives float32.

`exp` and `ln` of the vector unit are taken to be correctly rounded (see
:class:`npusim.isa.Unary`), which is assumed. On Atlas inference `gt` and `lt` calculate with
differences, which gives something else for infinities and for differences below 2**-126; that the
other comparisons do not is assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npusim.data.dtypes import BFLOAT16, FLOAT32, Array
from npusim.devices.schema import DeviceSpec
from npusim.ops._protocol import Operator
from npusim.ops._torch import TorchFunction
from npusim.ops.families.elementwise.contract import Problem, check
from npusim.ops.families.elementwise.expressions import EXPRESSIONS, Expression
from npusim.ops.families.elementwise.kernel import Plan, build, tile
from npusim.ops.families.elementwise.reference import compute

__all__ = ["OPERATORS", "Plan", "Problem"]


def _of_one(name: str) -> tuple[Callable[..., Problem], Callable[..., Array]]:
    def check_one(spec: DeviceSpec, x: Any) -> Problem:
        return check(name, spec, x=x)

    def reference(x: Array, *, spec: DeviceSpec | None = None) -> Array:
        return compute(name, x, spec=spec)

    return check_one, reference


def _of_two(name: str) -> tuple[Callable[..., Problem], Callable[..., Array]]:
    def check_two(spec: DeviceSpec, x: Any, other: Any) -> Problem:
        return check(name, spec, x=x, other=other)

    def reference(x: Array, other: Array | float, *, spec: DeviceSpec | None = None) -> Array:
        return compute(name, x, other, spec=spec)

    return check_two, reference


def _of_factor(name: str) -> tuple[Callable[..., Problem], Callable[..., Array]]:
    def check_factor(spec: DeviceSpec, x: Any, other: Any, alpha: Any = 1) -> Problem:
        return check(name, spec, x=x, other=other, alpha=alpha)

    def reference(
        x: Array, other: Array | float, alpha: float = 1, *, spec: DeviceSpec | None = None
    ) -> Array:
        return compute(name, x, other, alpha=alpha, spec=spec)

    return check_factor, reference


def _of_form(name: str) -> tuple[Callable[..., Problem], Callable[..., Array]]:
    def check_form(spec: DeviceSpec, x: Any, *, approximate: Any = "none") -> Problem:
        return check(name, spec, x=x, approximate=approximate)

    def reference(x: Array, *, approximate: str = "none", spec: DeviceSpec | None = None) -> Array:
        return compute(name if approximate == "none" else "gelu", x, spec=spec)

    return check_form, reference


def _of_condition(name: str) -> tuple[Callable[..., Problem], Callable[..., Array]]:
    def check_condition(spec: DeviceSpec, condition: Any, x: Any, other: Any) -> Problem:
        return check(name, spec, condition=condition, x=x, other=other)

    def reference(condition: Array, x: Array, other: Array | float) -> Array:
        return compute(name, x, other, condition=condition)

    return check_condition, reference


def _of_bounds(name: str) -> tuple[Callable[..., Problem], Callable[..., Array]]:
    def check_bounds(spec: DeviceSpec, x: Any, low: Any = None, high: Any = None) -> Problem:
        return check(name, spec, x=x, low=low, high=high)

    def reference(
        x: Array,
        low: float | None = None,
        high: float | None = None,
        *,
        spec: DeviceSpec | None = None,
    ) -> Array:
        return compute(name, x, low=low, high=high, spec=spec)

    return check_bounds, reference


def _of_dtype(name: str) -> tuple[Callable[..., Problem], Callable[..., Array]]:
    def check_dtype(spec: DeviceSpec, x: Any, dtype: Any) -> Problem:
        return check(name, spec, x=x, dtype=dtype)

    def reference(x: Array, dtype: str, *, spec: DeviceSpec | None = None) -> Array:
        return compute(name, x, dtype=dtype, spec=spec)

    return check_dtype, reference


def _of_shape(name: str) -> tuple[Callable[..., Problem], Callable[..., Array]]:
    def check_shape(spec: DeviceSpec, x: Any, shape: Any) -> Problem:
        return check(name, spec, x=x, shape=shape)

    def reference(x: Array, shape: tuple[int, ...]) -> Array:
        return np.ascontiguousarray(np.broadcast_to(x, shape))

    return check_shape, reference


def _of_value(name: str) -> tuple[Callable[..., Problem], Callable[..., Array]]:
    def check_value(spec: DeviceSpec, x: Any, value: Any) -> Problem:
        return check(name, spec, x=x, value=value)

    def reference(x: Array, value: float) -> Array:
        with np.errstate(over="ignore"):
            return np.full(x.shape, np.array(value).astype(x.dtype))

    return check_value, reference


def _of_exponent(name: str) -> tuple[Callable[..., Problem], Callable[..., Array]]:
    def check_exponent(spec: DeviceSpec, x: Any, exponent: Any) -> Problem:
        return check(name, spec, x=x, exponent=exponent)

    def reference(x: Array, exponent: float, *, spec: DeviceSpec | None = None) -> Array:
        return compute(name, x, exponent=exponent, spec=spec)

    return check_exponent, reference


_FUNCTIONS = {
    "x": _of_one,
    "x, other": _of_two,
    "x, other, alpha": _of_factor,
    "x, approximate": _of_form,
    "condition, x, other": _of_condition,
    "x, low, high": _of_bounds,
    "x, dtype": _of_dtype,
    "x, shape": _of_shape,
    "x, value": _of_value,
    "x, exponent": _of_exponent,
}
"""Parameters -> what makes the functions that have them."""


def _computed(expression: Expression) -> str:
    """What becomes of bfloat16."""
    is_wide = expression.computed_in.get(BFLOAT16) is FLOAT32
    return "; bfloat16 is computed in float32 and rounded once" if is_wide else ""


def _mul_type(_: DeviceSpec, p: Problem, __: Plan) -> str:
    """bfloat16 times a number has a kernel of its own (ops-math, aclnn_mul.cpp)."""
    is_muls = p.has_number and p.inputs[0].element is BFLOAT16
    return "Muls" if is_muls else p.expression.kernel


def _operator(expression: Expression) -> Operator:
    check_call, reference = _FUNCTIONS[expression.parameters](expression.name)
    types = ", ".join(dtype.name for dtype in expression.computed_in)
    return Operator(
        name=expression.name,
        document=(
            f"{expression.name}: {expression.caption}.\n\n.. code-block:: text\n\n"
            f"    {expression.formula}\n\n"
            f"The vendor's kernel is {expression.kernel}. It takes {types}{_computed(expression)}."
        ),
        kernel_type=_mul_type if expression.name == "mul" else expression.kernel,
        check=check_call,
        tile=tile,
        build=build,
        reference=reference,
        torch=TORCH.get(expression.name, ()),
    )


TORCH = {
    "npu_gelu": (
        TorchFunction(
            schema="npu_gelu(Tensor self, *, str approximate='none') -> Tensor",
            aclnn=lambda _: "aclnnGeluV2",
            outputs=lambda given, _: ((given["x"].shape, given["x"].dtype),),
            names={"self": "x"},
        ),
    ),
}
"""Operators that are functions of torch_npu; all others torch has itself."""

OPERATORS = tuple(map(_operator, EXPRESSIONS.values()))
