"""A convolution that torch implements only with one CPU library, and that a card supports."""

from __future__ import annotations

import torch

__all__ = ["nnpack"]


def nnpack(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: list[int],
    stride: list[int] | int = 1,
) -> torch.Tensor:
    """`_nnpack_spatial_convolution`: a 2D convolution in float32, rounded once."""
    wide = bias if bias is None else bias.float()
    found = torch.nn.functional.conv2d(
        input.float(), weight.float(), wide, tuple(stride) if isinstance(stride, list) else stride,
        tuple(padding),
    )  # fmt: skip
    return found.to(input.dtype)
