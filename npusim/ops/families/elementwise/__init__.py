"""Elementwise operators: sums, products, functions, comparisons, selections, broadcasts, fills.

One kernel serves all of them: ``expressions`` defines what each computes, ``kernel`` how tiles are
cut and the micro-ops of a tile, ``reference`` the result in plain numpy. The second operand may be
a number or a tensor of a shape that is broadcast. It has the type of the first; for `add` and
`mul` one may be float32 and the other float16 or bfloat16, which gives float32.

`exp` and `ln` of the vector unit are assumed to be correctly rounded (see
:class:`npusim.isa.Unary`). On Atlas inference `gt` and `lt` compute differences, which gives other
results for infinities and for differences below 2**-126; that the other comparisons do not is
assumed.
"""

from __future__ import annotations

from functools import partial

from npusim.data.dtypes import BFLOAT16, FLOAT32
from npusim.devices.schema import DeviceSpec
from npusim.ops._protocol import Operator, Plan
from npusim.ops._torch import Gradient, TorchFunction
from npusim.ops.families.elementwise.contract import Problem, check, support
from npusim.ops.families.elementwise.expression import Expression
from npusim.ops.families.elementwise.expressions import EXPRESSIONS
from npusim.ops.families.elementwise.kernel import build
from npusim.ops.families.elementwise.pieces import at_once
from npusim.ops.families.elementwise.reference import oracle_of
from npusim.ops.families.elementwise.tiling import tile


def _computed(expression: Expression) -> str:
    """How bfloat16 is computed."""
    is_wide = expression.computed_in.get(BFLOAT16) is FLOAT32
    return "; bfloat16 is computed in float32 and rounded once" if is_wide else ""


def _mul_type(_: DeviceSpec, p: Problem, __: Plan) -> str:
    """bfloat16 times a number has a separate kernel (ops-math, aclnn_mul.cpp)."""
    is_muls = p.has_number and p.inputs[0].element is BFLOAT16
    return "Muls" if is_muls else p.expression.kernel


def _operator(expression: Expression) -> Operator:
    name, torch = expression.name, TORCH.get(expression.name, ())
    types = ", ".join(dtype.name for dtype in expression.computed_in)
    return Operator(
        signature="" if torch else f"{name}({expression.parameters}) -> Tensor",
        document=(
            f"{name}: {expression.caption}.\n\n.. code-block:: text\n\n"
            f"    {expression.formula}\n\n"
            f"The vendor's kernel is {expression.kernel}. It takes {types}{_computed(expression)}."
        ),
        kernel_type=_mul_type if name == "mul" else expression.kernel,
        support=support(expression),
        contract=check,
        tile=tile,
        build=build,
        oracle=oracle_of(name),
        # Zeros of clamp would have other signs.
        at_once=None if name == "clamp" else partial(at_once, name),
        torch=torch,
    )


def _function(schema: str, aclnn: str, gradient: str = "", **names: str) -> TorchFunction:
    """A function of torch_npu whose result is like x."""
    return TorchFunction(
        schema=schema,
        aclnn=lambda _: aclnn,
        outputs=lambda given, _: ((given["x"].shape, given["x"].dtype),),
        names={"self": "x", **names},
        gradient=Gradient(f"self: {gradient}") if gradient else None,
    )


TORCH = {
    "npu_gelu": (
        _function(
            "npu_gelu(Tensor self, *, str approximate='none') -> Tensor",
            "aclnnGeluV2",
            "npu_gelu_backward(grad, self, approximate)",
        ),
    ),
    "npu_gelu_backward": (
        _function(
            "npu_gelu_backward(Tensor grad_output, Tensor self, *, str approximate='none') -> "
            "Tensor",
            "aclnnGeluBackwardV2",
        ),
    ),
    "npu_fast_gelu": tuple(
        _function(
            f"{name}(Tensor self) -> Tensor",
            "aclnnFastGelu",
            "npu_fast_gelu_backward(grad, self)",
        )
        for name in ("npu_fast_gelu", "fast_gelu")
    ),
    "npu_fast_gelu_backward": (
        _function(
            "npu_fast_gelu_backward(Tensor grad, Tensor self) -> Tensor",
            "aclnnFastGeluBackward",
            grad="grad_output",
        ),
    ),
}
"""Operators that are functions of torch_npu; all others are torch's own."""

OPERATORS = tuple(map(_operator, EXPRESSIONS.values()))
