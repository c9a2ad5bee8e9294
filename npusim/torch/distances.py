"""Distances between rows and their gradients as a card's kernels find them, on tensors of the host.

Cdist takes differences, where torch may multiply rows and lose small distances. CdistGrad computes
in float32, and of the largest distance each column has a gradient whose difference is not below the
distance as it was rounded; torch wants them equal (CANN 8.1.RC1, cdist.py and cdist_grad.py).
"""

from __future__ import annotations

from math import inf

import torch

__all__ = ["KERNELS", "backward"]

WITHOUT_PRODUCT = 2
"""The `compute_mode` of torch that takes differences, be there many rows or few."""


def _forward(
    x: torch.Tensor,
    other: torch.Tensor,
    p: float = 2,
    compute_mode: int | None = None,  # noqa: ARG001
) -> torch.Tensor:
    """`cdist`: the distance of each row of *x* to each of *other*."""
    found: torch.Tensor = torch.ops.aten._cdist_forward(x, other, p, WITHOUT_PRODUCT)
    return found


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


KERNELS = {"cdist": _forward}
"""Operation of aten -> what it is on the card, before gradients are dealt with and after."""
