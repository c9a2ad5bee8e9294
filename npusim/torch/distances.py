"""Distances between rows and their gradients as a card's kernels compute them, on host tensors.

Cdist computes differences, while torch may multiply rows and lose small distances. CdistGrad
computes in float32. For the maximum norm, each column gets a gradient whose difference is not below
the rounded distance; torch requires equality (CANN 8.1.RC1, cdist.py and cdist_grad.py).
"""

from __future__ import annotations

from math import inf

import torch

__all__ = ["KERNELS", "backward"]

WITHOUT_PRODUCT = 2
"""The `compute_mode` of torch that computes differences for any number of rows."""


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
"""Operation of aten -> its kernel on the card, registered both above and below autograd."""
