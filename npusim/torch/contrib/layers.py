"""Layers of `torch_npu.contrib.module` that are equivalent to torch operations.

Source: op-plugin@517f2e7, the documents torch_npu-contrib-module-*.md.
"""

from __future__ import annotations

import torch

__all__ = ["ChannelShuffle", "LabelSmoothingCrossEntropy", "Mish", "SiLU", "Swish"]


class Mish(torch.nn.Module):
    """`x * tanh(softplus(x))`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mish(x)


class SiLU(torch.nn.Module):
    """`x * sigmoid(x)`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x)


class Swish(SiLU):
    """SiLU under another name."""


class ChannelShuffle(torch.nn.Module):
    """Interleaves the channels of two tensors; returns one tensor, or its two halves."""

    def __init__(self, in_channels: int, groups: int = 2, split_shuffle: bool = True) -> None:
        super().__init__()
        self.in_channels, self.groups, self.split_shuffle = in_channels, groups, split_shuffle

    def forward(
        self, x1: torch.Tensor, x2: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        dealt = torch.stack([x1, x2], 2).flatten(1, 2)
        return dealt.chunk(2, 1) if self.split_shuffle else dealt


class LabelSmoothingCrossEntropy(torch.nn.Module):
    """The mean cross entropy with smoothed labels: *smooth_factor* is spread over other classes."""

    def __init__(self, num_classes: int = 1000, smooth_factor: float = 0.0) -> None:
        super().__init__()
        self.num_classes, self.smooth_factor = num_classes, smooth_factor

    def forward(self, pred: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        hit, other = 1 - self.smooth_factor, self.smooth_factor / max(1, self.num_classes - 1)
        labels = torch.nn.functional.one_hot(target.long(), self.num_classes).to(pred.dtype)
        shares = labels * (hit - other) + other
        return -(shares * torch.log_softmax(pred, -1)).sum(-1).mean()
