"""Gated activations composed of torch operations; 16-bit floats are computed in float32.

Sources: op-plugin@517f2e7, the documents torch_npu-npu_gelu_mul.md,
torch_npu-npu_clipped_swiglu.md and torch_npu-npu_group_norm_swish.md, and ops-nn@e5c3fa932
activation/ge_glu_v2/docs/aclnnGeGluV3.md.
"""

from __future__ import annotations

import torch

__all__ = ["clipped_swiglu", "geglu", "gelu", "gelu_mul", "group_norm_swish"]

ROOT_HALF = 0.5**0.5


def gelu(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """gelu by erf, or in its tanh form, which torch's gelu is on a card."""
    if approximate == "tanh":
        return torch.nn.functional.gelu(x, approximate="tanh")
    return 0.5 * x * (1 + torch.erf(x * ROOT_HALF))


def gelu_mul(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """gelu of the first half of a row, times the second half."""
    first, second = input.float().chunk(2, -1)
    return (gelu(first, approximate) * second).to(input.dtype)


def geglu(
    input: torch.Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """One half of *input* along *dim* times the gelu of the other, and that gelu; by erf if
    *approximate* is 0."""
    left, right = input.float().chunk(2, dim)
    inner, other = (left, right) if activate_left else (right, left)
    found = gelu(inner, "tanh" if approximate else "none")
    return (other * found).to(input.dtype), found.to(input.dtype)


def clipped_swiglu(
    x: torch.Tensor,
    *,
    group_index: torch.Tensor | None = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> torch.Tensor:
    """`a * sigmoid(alpha * a) * (b + bias)` of clamped halves, or of clamped interleaved elements.

    Rows after the last group are zero. A card does not write them.
    """
    axis = dim % x.dim()
    shape = (*x.shape[:axis], x.shape[axis] // 2, *x.shape[axis + 1 :])
    rows = x.flatten(axis).flatten(0, axis - 1) if axis else x.reshape(1, -1)
    count = rows.shape[0] if group_index is None else int(group_index.sum())
    wide = rows[:count].float()
    a, b = (wide[:, 0::2], wide[:, 1::2]) if interleaved else wide.chunk(2, -1)
    a, b = a.clamp(max=limit), b.clamp(-limit, limit)
    found = a * torch.sigmoid(alpha * a) * (b + bias)
    found = torch.nn.functional.pad(found, (0, 0, 0, rows.shape[0] - count))
    return found.to(x.dtype).reshape(shape)


def group_norm_swish(
    input: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float | None = 1e-5,
    swish_scale: float | None = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """torch's group norm times a sigmoid of it, the means and the inverse standard deviations."""
    count, channels = input.shape[:2]
    inner = input.numel() // max(1, count * channels)
    found, mean, rstd = torch.native_group_norm(
        input, weight, bias, count, channels, inner, num_groups, 1e-5 if eps is None else eps
    )
    scale = 1.0 if swish_scale is None else swish_scale
    return found * torch.sigmoid(scale * found), mean, rstd
