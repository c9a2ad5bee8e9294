"""Activations that npu_grouped_matmul applies to fp32 numbers, by their act_type.

asc-devkit@82b89a1 impl/adv_api/detail/activation: an operation each rounds to nearest, exp and the
division of the vector unit are taken to round once.
"""

from __future__ import annotations

from collections.abc import Callable

from npusim.isa import Binary, BinaryScalar, Local, Unary
from npusim.kernel.builder import Builder
from npusim.kernel.chain import step

__all__ = ["ACTIVATIONS", "FAST_GELU", "GELU_TANH", "NONE", "NUMBERS", "RELU", "SILU"]

NONE, RELU, GELU_TANH, FAST_GELU, SILU = 0, 1, 2, 4, 5
NUMBERS = {NONE: "none", RELU: "relu", GELU_TANH: "gelu_tanh", FAST_GELU: "fast_gelu", SILU: "silu"}
"""act_type -> its name; 3, the exact gelu, is refused (aclnn_grouped_matmul.cpp)."""
FAST = -1.702
CUBIC, SLOPE = 0.044715, 1.5957691
"""Of the tanh form: 2 x the square root of 2 / pi."""

Writer = Callable[[Builder, Local, Local, Local], None]
"""`write(builder, values, work, more)` replaces *values* by their activation; two others of its
size are overwritten."""


def _relu(builder: Builder, values: Local, _: Local, __: Local) -> None:
    step(builder, Unary("relu", values, values))


def _swish(factor: float) -> Writer:
    def write(builder: Builder, values: Local, work: Local, _: Local) -> None:
        """`x / (exp(x * factor) + 1)`."""
        step(builder, BinaryScalar("mul", work, values, factor))
        _divide(builder, values, values, work)

    return write


def _divide(builder: Builder, dst: Local, values: Local, work: Local) -> None:
    """`dst = values / (exp(work) + 1)`."""
    step(builder, Unary("exp", work, work))
    step(builder, BinaryScalar("add", work, work, 1.0))
    step(builder, Binary("div", dst, values, work))


def _gelu_tanh(builder: Builder, values: Local, work: Local, more: Local) -> None:
    """`exp(min(y, 0)) * (x / (exp(-|y|) + 1))`, y = (x + 0.044715 x^3) * 1.5957691."""
    step(builder, Binary("mul", work, values, values))
    step(builder, Binary("mul", work, values, work))
    step(builder, BinaryScalar("mul", work, work, CUBIC))
    step(builder, Binary("add", work, values, work))
    step(builder, BinaryScalar("mul", work, work, SLOPE))
    step(builder, BinaryScalar("min", more, work, 0.0))
    step(builder, Unary("exp", more, more))
    step(builder, Unary("abs", work, work))
    step(builder, BinaryScalar("mul", work, work, -1.0))
    _divide(builder, values, values, work)
    step(builder, Binary("mul", values, values, more))


ACTIVATIONS: dict[int, Writer] = {
    RELU: _relu,
    GELU_TANH: _gelu_tanh,
    FAST_GELU: _swish(FAST),
    SILU: _swish(-1.0),
}
"""act_type -> what writes it."""
