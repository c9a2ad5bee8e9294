"""Norms and losses composed of torch operations.

Sources: op-plugin@517f2e7, the documents of these functions and op_plugin_functions.yaml. float16
and bfloat16 are computed in float32 and rounded once, as in those kernels.
"""

from __future__ import annotations

import torch

from npusim.torch.relabel import overwrite

__all__ = [
    "add_layer_norm",
    "add_rms_norm_cast",
    "add_rms_norm_v2",
    "add_rms_norm_v2_functional",
    "deep_norm",
    "gemma_rms_norm",
    "group_norm_silu",
    "layer_norm_eval",
    "scaled_masked_softmax",
    "softmax_cross_entropy_with_logits",
]

MASKED = -10000.0
"""The value that replaces masked scores."""


def _statistics(
    x: torch.Tensor, rank: int, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The mean of fp32 *x* over its last *rank* axes, its inverse standard deviation, normed x."""
    axes = tuple(range(x.dim() - rank, x.dim()))
    mean = x.mean(axes, keepdim=True)
    apart = x - mean
    rstd = torch.rsqrt((apart * apart).mean(axes, keepdim=True) + epsilon)
    return mean, rstd, apart * rstd


def deep_norm(
    x: torch.Tensor,
    gx: torch.Tensor,
    beta: torch.Tensor,
    gamma: torch.Tensor,
    alpha: float = 0.3,
    epsilon: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The mean, the inverse standard deviation, and the layer norm of `alpha * x + gx`."""
    total = x.float() * alpha + gx.float()
    mean, rstd, normed = _statistics(total, gamma.dim(), epsilon)
    y = normed * gamma.float() + beta.float()
    return mean, rstd, y.to(x.dtype)


def add_layer_norm(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    epsilon: float = 1e-5,
    additional_output: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The layer norm of a sum, its mean and inverse standard deviation, and optionally the sum."""
    dtype = torch.promote_types(x1.dtype, x2.dtype)
    total = x1.float() + x2.float()
    mean, rstd, normed = _statistics(total, gamma.dim(), epsilon)
    y = (normed * gamma.float() + beta.float()).to(dtype)
    x = total.to(dtype) if additional_output else torch.empty_like(y)
    return y, mean, rstd, x


def add_rms_norm_v2_functional(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """npu_add_rms_norm with its results in another order: the inverse root mean square, the result
    and the sum."""
    y, rstd, x = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma, epsilon)
    return rstd, y, x


def add_rms_norm_v2(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> torch.Tensor:
    """The same in place: the kernel writes the result to x1 and the sum to x2."""
    rstd, y, x = add_rms_norm_v2_functional(x1, x2, gamma, epsilon)
    overwrite(x1, y)
    overwrite(x2, x)
    return rstd


def add_rms_norm_cast(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """npu_add_rms_norm, with its rounded result in float32 first (ops-nn@e5c3fa932
    norm/add_rms_norm_cast/README.md)."""
    y, rstd, x = torch.ops.npu.npu_add_rms_norm(x1, x2, gamma, epsilon)
    return y.float(), y, rstd, x


def gemma_rms_norm(
    self: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """npu_rms_norm with weights `gamma + 1`, in float32."""
    y, rstd = torch.ops.npu.npu_rms_norm(self, gamma.float() + 1, epsilon)
    return y, rstd


def layer_norm_eval(
    input: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> torch.Tensor:
    """torch's own layer norm."""
    return torch.nn.functional.layer_norm(input, normalized_shape, weight, bias, eps)


def group_norm_silu(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    group: int,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """silu of torch's group norm, the means and the inverse standard deviations."""
    count, channels = input.shape[:2]
    inner = input[0, 0].numel()
    found, mean, rstd = torch.native_group_norm(
        input, weight, bias, count, channels, inner, group, eps
    )
    return torch.nn.functional.silu(found), mean, rstd


def scaled_masked_softmax(
    x: torch.Tensor, mask: torch.Tensor, scale: float = 1, fixed_triu_mask: bool = False
) -> torch.Tensor:
    """softmax of the scaled scores; masked scores, or those above the diagonal, are `MASKED`."""
    if fixed_triu_mask:
        mask = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    scores = (x.float() * scale).masked_fill(mask.bool(), MASKED)
    return torch.softmax(scores, -1).to(torch.float16 if x.dtype == torch.float32 else x.dtype)


def softmax_cross_entropy_with_logits(self: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The cross entropy of each row with its labels, which are probabilities."""
    return -(labels * torch.log_softmax(self, -1)).sum(-1)
