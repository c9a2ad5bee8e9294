"""LayerNorm of 16-bit types as the kernel of a card computes it, on host tensors.

LayerNormV3 computes in float32; if x and weight both have the same 16-bit type, it rounds mean and
rstd to that type before it uses them (layer_norm_v3.py of CANN 8.1.RC1). The order of summation is
that of torch (assumed), and so is everything for other types.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["backward", "forward"]

HALF_TYPES = (torch.float16, torch.bfloat16)


def forward(
    x: torch.Tensor,
    shape: list[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`native_layer_norm`: the result, mean and rstd."""
    if x.dtype not in HALF_TYPES:
        whole: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = torch.native_layer_norm(
            x, shape, weight, bias, eps
        )
        return whole
    axes, wide = tuple(range(-len(shape), 0)), x.float()
    narrow = x.dtype if weight is not None and weight.dtype == x.dtype else torch.float32
    share = 1 / torch.Size(shape).numel()
    mean = (wide * share).sum(axes, keepdim=True).to(narrow).float()
    apart = wide - mean
    variance = (apart * apart * share).sum(axes, keepdim=True)
    rstd = (1 / torch.sqrt(variance + eps)).to(narrow).float()
    found = apart * rstd
    found = found if weight is None else found * weight.float()
    found = found if bias is None else found + bias.float()
    return found.to(x.dtype), mean, rstd


def backward(
    grad: torch.Tensor, x: torch.Tensor, shape: list[int], *others: Any
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of `native_layer_norm`, in float32 like mean and rstd."""
    *given, mask = others
    wide = [each if each is None else each.float() for each in given]
    own = x.dtype if x.dtype in HALF_TYPES else None
    if own is None:
        grads = torch.ops.aten.native_layer_norm_backward(grad, x, shape, *given, mask)
    else:
        both = grad.float(), x.float()
        grads = torch.ops.aten.native_layer_norm_backward(*both, shape, *wide, mask)
    weight = given[2]
    types = own, weight is not None and weight.dtype, weight is not None and weight.dtype
    return tuple(
        each if each is None or not dtype else each.to(dtype)
        for each, dtype in zip(grads, types, strict=True)
    )
