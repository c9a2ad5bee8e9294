"""Functions for types that a card supports and torch's CPU kernels do not."""

from __future__ import annotations

import torch

__all__ = [
    "hardsigmoid",
    "hardsigmoid_into",
    "log_softmax",
    "log_softmax_backward",
    "softmax",
    "softmax_backward",
]


def hardsigmoid(x: torch.Tensor) -> torch.Tensor:
    """`hardsigmoid`; integers are computed in float32 and truncated (the vendor's test of it)."""
    if x.is_floating_point():
        return torch.nn.functional.hardsigmoid(x)
    return torch.nn.functional.hardsigmoid(x.float()).to(x.dtype)


def hardsigmoid_into(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """:func:`hardsigmoid` written to *out*."""
    return out.resize_(x.shape).copy_(hardsigmoid(x))


def softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """`_softmax`, also from float16 to float32."""
    return torch._softmax(x.float() if half_to_float else x, dim, False)


def log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """`_log_softmax`, also from float16 to float32."""
    return torch._log_softmax(x.float() if half_to_float else x, dim, False)


def softmax_backward(
    grad_output: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
) -> torch.Tensor:
    """The gradient of `_softmax` in the type of its input, which may be narrower."""
    if grad_output.dtype == input_dtype:
        return torch._softmax_backward_data(grad_output, output, dim, input_dtype)
    wide = grad_output.float(), output.float()
    return torch._softmax_backward_data(*wide, dim, torch.float32).to(input_dtype)


def log_softmax_backward(
    grad_output: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
) -> torch.Tensor:
    """The gradient of `_log_softmax` in the type of its input, which may be narrower."""
    if grad_output.dtype == input_dtype:
        return torch._log_softmax_backward_data(grad_output, output, dim, input_dtype)
    wide = grad_output.float(), output.float()
    return torch._log_softmax_backward_data(*wide, dim, torch.float32).to(input_dtype)
