"""Binary cross entropy of logits, and its gradient, as the kernels of a card compute them.

SigmoidCrossEntropyWithLogitsV2 computes in float32 and rounds each loss, and ReduceMean or
ReduceSum reduces them; missing weights are tensors of ones. The gradient is one kernel
(ops-nn@e5c3fa9, aclnn_binary_cross_entropy_with_logits.cpp and _backward.cpp; CANN 8.1.RC1,
sigmoid_cross_entropy_with_logits_grad_v2.py). The target has no gradient (op-plugin,
derivatives.yaml).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from npusim.torch import card
from npusim.torch.fallback import HostOp, on_host
from npusim.torch.works.call import bits_of
from npusim.torch.works.streams import Stream

__all__ = ["AUTOGRAD", "KERNELS", "backward"]

NONE, MEAN, SUM = range(3)
"""Reductions, as numbered in ATen."""
OP = torch.ops.aten.binary_cross_entropy_with_logits.default
GRADIENT_STEPS = ("mul", "exp", "add", "div", "mul", "add", "sub", "mul", "sub", "mul", "mul")

_each = HostOp(OP)


def _loss(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    pos_weight: torch.Tensor | None = None,
    reduction: int = MEAN,
) -> torch.Tensor:
    _play_ones(x, weight, pos_weight)
    found: Any = _each(x, target, weight, pos_weight, NONE)
    if reduction == NONE:
        return found
    return torch.mean(found) if reduction == MEAN else torch.sum(found)


def _play_ones(x: torch.Tensor, *weights: torch.Tensor | None) -> None:
    for weight in weights:
        if weight is None and x.numel():
            card.play(Stream(kernel="OnesLike", elements=x.numel(), loads=(), stores=(bits_of(x),)))


def backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    target: torch.Tensor,
    weight_opt: torch.Tensor | None,
    pos_weight_opt: torch.Tensor | None,
    reduction: int,
) -> torch.Tensor:
    """`npu_binary_cross_entropy_with_logits_backward`: the gradient of the logits."""

    @on_host
    def gradient() -> torch.Tensor:
        wide = torch.promote_types(input.dtype, torch.float32)
        x, y, above = (each.to(wide) for each in (input, target, grad_output))
        of_ones = y if pos_weight_opt is None else pos_weight_opt.to(wide) * y
        found = ((of_ones + 1 - y) * torch.sigmoid(x) - of_ones) * above
        if weight_opt is not None:
            found = found * weight_opt.to(wide)
        if reduction == MEAN:
            found = found * (1 / max(1, x.numel()))
        return found.to(input.dtype)

    found = gradient()
    if input.numel():
        _play_ones(input, weight_opt, pos_weight_opt)
        bits = bits_of(input)
        card.play(
            Stream(
                kernel="SigmoidCrossEntropyWithLogitsGradV2",
                elements=input.numel(),
                loads=(bits,) * 5,
                stores=(bits,),
                steps=GRADIENT_STEPS,
            )
        )
    return found


class _Recorded(torch.autograd.Function):
    """A loss that saves the tensors that its gradient needs."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, *others: Any) -> Any:
        *tensors, context.reduction = others
        context.save_for_backward(x, *tensors)
        with torch._C._AutoDispatchBelowAutograd():
            return OP(x, *others)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(context: Any, grad: torch.Tensor) -> Any:
        found = torch.ops.npu.npu_binary_cross_entropy_with_logits_backward(
            grad, *context.saved_tensors, context.reduction
        )
        return found, None, None, None, None


def _above(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    pos_weight: torch.Tensor | None = None,
    reduction: int = MEAN,
) -> Any:
    return _Recorded.apply(x, target, weight, pos_weight, reduction)


KERNELS: dict[str, Callable[..., Any]] = {"binary_cross_entropy_with_logits": _loss}
"""Operation of aten -> its kernel for the card."""
AUTOGRAD: dict[str, Callable[..., Any]] = {"binary_cross_entropy_with_logits": _above}
"""Operation of aten -> its autograd kernel."""
