"""renorm on host tensors, also with the norm of power 0, and its gradient.

16-bit floats are computed in float32. The norm of power 0, which torch's CPU kernel rejects, is the
number of elements that are not zero. An epsilon is added to divisors (the vendor's test of renorm).
"""

from __future__ import annotations

import torch

__all__ = ["renorm", "renorm_", "renorm_backward", "renorm_into"]

LITTLE = 1e-7


def renorm(input: torch.Tensor, p: float, dim: int, maxnorm: float) -> torch.Tensor:
    """Scale the slices of *input* along *dim* so that their norm is at most *maxnorm*."""
    if p != 0:
        return torch.renorm(input, p, dim, maxnorm)
    axes = [axis for axis in range(input.dim()) if axis != dim % input.dim()]
    counts = (input != 0).sum(axes, keepdim=True).float()
    share = torch.where(counts > maxnorm, maxnorm / (counts + LITTLE), torch.ones(()))
    return (input.float() * share).to(input.dtype)


def renorm_(input: torch.Tensor, p: float, dim: int, maxnorm: float) -> torch.Tensor:
    """:func:`renorm` in place."""
    return input.copy_(renorm(input, p, dim, maxnorm))


def renorm_into(
    input: torch.Tensor, p: float, dim: int, maxnorm: float, *, out: torch.Tensor
) -> torch.Tensor:
    """:func:`renorm` written to *out*."""
    return out.resize_(input.shape).copy_(renorm(input, p, dim, maxnorm))


def renorm_backward(
    grad: torch.Tensor, input: torch.Tensor, p: float, dim: int, maxnorm: float
) -> torch.Tensor:
    """The gradient of `torch.renorm` by torch's autograd."""
    wide = torch.promote_types(input.dtype, torch.float32)
    given = input.detach().to(wide)
    _, back = torch.func.vjp(lambda x: torch.renorm(x, p, dim, maxnorm), given)
    found: torch.Tensor = back(grad.to(wide))[0]
    return found.to(input.dtype)
