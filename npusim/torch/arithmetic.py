"""Sums, differences, products and quotients of torch, larger elements and choices, on the card.

The type of the computation is that to which the types of both operands are promoted, even if one
is a tensor without dimensions; the result is cast to the type that torch gives it. A factor of the
second operand, and integers with bfloat16, take kernels of their own.

Sources: ops-math@c419332 math/{add,sub,mul,real_div,div,maximum,select}/op_api, op-plugin@517f2e7
op_plugin/ops/opapi.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from npusim.torch import arguments
from npusim.torch.card_ops import KernelOp, Take, run
from npusim.torch.views import cast

__all__ = ["TABLE"]

Operand: TypeAlias = "torch.Tensor | float"
AXPY = (torch.float32, torch.float16, torch.int32)
"""Types of Add whose multiples one kernel adds (aclnn_add.cpp)."""


class BinaryOp(KernelOp):
    """An operation whose last two arguments are the operands."""

    __slots__ = ()

    def on_card(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        return _in_type_of_torch(super().on_card(*args, **kwargs), *args[-2:])


class ProductOp(BinaryOp):
    """A product; that of bfloat16 and an integer is one of float32, between casts."""

    __slots__ = ()

    def on_card(self, x: torch.Tensor, other: Operand) -> torch.Tensor | None:
        value = arguments.number(other)
        if x.dtype != torch.bfloat16 or not isinstance(value, int):
            return super().on_card(x, other)
        wide = arguments.as_type(x, torch.float32)
        found = None if wide is None else run(self._name, {"x": wide, "other": value})
        return None if found is None else cast(found, x.dtype)


class SumOp(BinaryOp):
    """A sum whose second operand may have a factor: one kernel multiplies and adds.

    For bfloat16 two kernels do, and factor and product are rounded to bfloat16.
    """

    __slots__ = ()

    def on_card(self, x: torch.Tensor, other: Operand, *, alpha: float = 1) -> torch.Tensor | None:
        if alpha == 1:
            return super().on_card(x, other)
        given = arguments.two(x, other)
        if given is None:
            return None
        if given["x"].dtype == torch.bfloat16:
            found = self._after_product(given["x"], given["other"], alpha)
        else:
            is_known = given["x"].dtype in AXPY
            found = run("axpy", given | {"alpha": alpha}) if is_known else None
        return _in_type_of_torch(found, x, other)

    def _after_product(self, x: torch.Tensor, other: Operand, alpha: float) -> torch.Tensor | None:
        """*x* and the multiple of *other*, which a kernel of its own computes."""
        if not isinstance(other, torch.Tensor):
            other = arguments.element(other, x.dtype)
        multiple = run("mul", {"x": other, "other": arguments.element(alpha, x.dtype)})
        return None if multiple is None else run(self._name, {"x": x, "other": multiple})


class DifferenceOp(SumOp):
    """A difference whose second operand may have a factor, which is one kernel for floats.

    With a factor, tensors of floats are cast to float32 first.
    """

    __slots__ = ()

    def on_card(self, x: Operand, other: Operand, *, alpha: float = 1) -> torch.Tensor | None:
        first = arguments.number(x)
        if first is not None:
            x = arguments.element(first, torch.result_type(x, other))
        if alpha == 1 or not isinstance(x, torch.Tensor):
            return super().on_card(x, other)
        given = arguments.two(x, other)
        if given is None:
            return None
        if given["x"].dtype == torch.int32:
            return self._after_product(given["x"], given["other"], alpha)
        if arguments.number(other) is None:
            given = arguments.both_as(x, other, torch.float32)
        found = None if given is None else run("axpy", given | {"alpha": -alpha})
        return _in_type_of_torch(found, x, other)


class ReversedOp(SumOp):
    """`rsub`: the first operand, which may have a factor, is subtracted from the second."""

    __slots__ = ()

    def on_card(self, x: torch.Tensor, other: Operand, alpha: float = 1) -> torch.Tensor | None:
        given = arguments.two(x, other)
        if given is None:
            return None
        second, first = given["x"], given["other"]
        if not isinstance(first, torch.Tensor):
            first = arguments.element(first, second.dtype)
        if alpha == 1:
            found = run(self._name, {"x": first, "other": second})
        else:
            found = self._after_product(first, second, alpha)
        return _in_type_of_torch(found, x, other)


def _in_type_of_torch(
    found: torch.Tensor | None, x: Operand, other: Operand
) -> torch.Tensor | None:
    """*found* in the floating-point type that torch gives the result of *x* and *other*."""
    if found is None or not isinstance(other, torch.Tensor):
        return found
    wanted = torch.result_type(x, other)
    return found if found.dtype == wanted or not wanted.is_floating_point else cast(found, wanted)


TABLE: dict[str, tuple[type[KernelOp], str, Take]] = {
    "add.Tensor": (SumOp, "add", arguments.mixed),
    "sub.Tensor": (DifferenceOp, "sub", arguments.two),
    **{f"rsub.{kind}": (ReversedOp, "sub", arguments.two) for kind in ("Tensor", "Scalar")},
    "mul.Tensor": (ProductOp, "mul", arguments.mixed),
    "div.Tensor": (BinaryOp, "div", arguments.quotient),
    "maximum": (BinaryOp, "maximum", arguments.two),
    "minimum": (BinaryOp, "minimum", arguments.two),
    "where.self": (BinaryOp, "where", arguments.where),
}
"""Operation of aten -> its class, the operator, and the function that converts the arguments."""
