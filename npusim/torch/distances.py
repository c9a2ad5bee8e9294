"""Gradients of distances between rows as the kernel of a card finds them, on tensors of the host.

CdistGrad computes in float32. Of the largest distance each column has a gradient whose difference
is not below the distance as it was rounded (cdist_grad.py of CANN 8.1.RC1); torch wants them equal.
"""

from __future__ import annotations

from math import inf

import torch

__all__ = ["backward"]


def backward(
    grad: torch.Tensor, x: torch.Tensor, other: torch.Tensor, p: float, distance: torch.Tensor
) -> torch.Tensor:
    """`_cdist_backward`: the gradient of *x*, `(..., rows, columns)`."""
    if p != inf or not distance.numel():
        found: torch.Tensor = torch.ops.aten._cdist_backward(grad, x, other, p, distance)
        return found
    wide = torch.promote_types(x.dtype, torch.float32)
    apart = x.to(wide).unsqueeze(-2) - other.to(wide).unsqueeze(-3)
    is_largest = apart.abs() >= distance.to(wide).unsqueeze(-1)
    each = grad.to(wide).unsqueeze(-1) * apart.sign() * is_largest
    return each.sum(-2).to(x.dtype)
