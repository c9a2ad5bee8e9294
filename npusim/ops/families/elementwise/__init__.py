"""Elementwise operators: sums, products, functions, comparisons and selections of tensors.

One kernel serves all of them: ``expressions`` says what each computes, ``kernel`` how tiles are
cut and what a tile's micro-ops are, ``reference`` what comes out, in plain numpy. The second
operand may be a number or a tensor of a shape that is broadcast, and is of the type of the first.

`exp` and `ln` of the vector unit are taken to be correctly rounded (see
:class:`npusim.isa.Unary`), which is assumed; so is that a comparison on Atlas inference is one too,
where the vendor's kernel calculates with differences, and gives something else for NaN and for
infinities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npusim.data.dtypes import Array
from npusim.devices.schema import DeviceSpec
from npusim.ops._protocol import Operator
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


_FUNCTIONS = {
    "x": _of_one,
    "x, other": _of_two,
    "condition, x, other": _of_condition,
    "x, low, high": _of_bounds,
    "x, dtype": _of_dtype,
}
"""Parameters -> what makes the functions that have them."""


def _operator(expression: Expression) -> Operator:
    check_call, reference = _FUNCTIONS[expression.parameters](expression.name)
    types = ", ".join(dtype.name for dtype in expression.computed_in)
    return Operator(
        name=expression.name,
        document=(
            f"{expression.name}: {expression.caption}.\n\n.. code-block:: text\n\n"
            f"    {expression.formula}\n\n"
            f"The vendor's kernel is {expression.kernel}. It takes {types}; bfloat16 is computed "
            f"in float32 and rounded once."
        ),
        check=check_call,
        tile=tile,
        build=build,
        reference=reference,
    )


OPERATORS = tuple(map(_operator, EXPRESSIONS.values()))
