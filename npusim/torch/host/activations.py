"""Functions of types that a card takes, and torch's CPU kernels do not."""

from __future__ import annotations

import torch

__all__ = ["hardsigmoid", "hardsigmoid_into", "log_softmax", "softmax"]


def hardsigmoid(x: torch.Tensor) -> torch.Tensor:
    """`hardsigmoid`; of whole numbers in float32, and cut off (the vendor's test of it)."""
    if x.is_floating_point():
        return torch.nn.functional.hardsigmoid(x)
    return torch.nn.functional.hardsigmoid(x.float()).to(x.dtype)


def hardsigmoid_into(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """The same written to *out*."""
    return out.resize_(x.shape).copy_(hardsigmoid(x))


def softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """`_softmax`, also of float16 that gives float32."""
    return torch._softmax(x.float() if half_to_float else x, dim, False)


def log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """`_log_softmax`, also of float16 that gives float32."""
    return torch._log_softmax(x.float() if half_to_float else x, dim, False)
