"""Functions of whole numbers that a card takes, and torch's CPU kernels do not."""

from __future__ import annotations

import torch

__all__ = ["hardsigmoid"]


def hardsigmoid(x: torch.Tensor) -> torch.Tensor:
    """`hardsigmoid`; of whole numbers in float32, and cut off (the vendor's test of it)."""
    if x.is_floating_point():
        return torch.nn.functional.hardsigmoid(x)
    return torch.nn.functional.hardsigmoid(x.float()).to(x.dtype)
