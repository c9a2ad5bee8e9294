"""Backward through the operators: they are for inference, and say so instead of giving a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

import torch

from npusim.torch.schemas import named_tensors

__all__ = ["inference_only"]


class _NoBackward(torch.autograd.Function):
    """An output, as a function of inputs that it has no derivative by."""

    @staticmethod
    def forward(
        context: torch.autograd.function.FunctionCtx,
        name: str,
        output: torch.Tensor,
        *_: torch.Tensor,
    ) -> torch.Tensor:
        context.name = name
        return output

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, *_: torch.Tensor) -> NoReturn:
        name = context.name
        raise NotImplementedError(
            f"the derivative for '{name}' is not implemented.\n"
            f"{name}: no gradient must go through it, since it is for inference; "
            f"call it under torch.no_grad(), or detach its tensors"
        )


def inference_only(name: str, op: torch._ops.OpOverload) -> Callable[..., object]:
    """The autograd kernel of *op*: its floating outputs refuse to be differentiated."""

    def kernel(*args: object, **kwargs: object) -> object:
        with torch._C._AutoDispatchBelowAutograd():
            outputs = op(*args, **kwargs)
        if not torch.is_grad_enabled():
            return outputs
        given = dict(enumerate((*args, *kwargs.values())))
        inputs = [x for _, x in named_tensors(given) if x.requires_grad]
        if not inputs:
            return outputs
        if isinstance(outputs, torch.Tensor):
            return _refusing(name, outputs, inputs)
        refusing = (_refusing(name, output, inputs) for output in outputs)
        return list(refusing) if isinstance(outputs, list) else tuple(refusing)

    return kernel


def _refusing(name: str, output: torch.Tensor, inputs: Iterable[torch.Tensor]) -> torch.Tensor:
    if not isinstance(output, torch.Tensor) or not output.is_floating_point():
        return output
    refusing: torch.Tensor = _NoBackward.apply(name, output, *inputs)
    return refusing
