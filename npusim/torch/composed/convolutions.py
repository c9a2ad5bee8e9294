"""torch's convolutions under the names of torch_npu.

Source: op-plugin@517f2e7, op_plugin_functions.yaml.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from npusim.torch.relabel import overwrite

__all__ = [
    "backward",
    "convolution",
    "convolution_out",
    "transposed",
]


def convolution(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """torch's convolution over as many axes as *weight* has."""
    axes = weight.dim() - 2
    options = stride, padding, dilation, False, [0] * axes, groups
    return torch.convolution(input, weight, bias, *options)


def convolution_out(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """The same into *out*."""
    overwrite(out, convolution(input, weight, bias, stride, padding, dilation, groups))
    return out


def transposed(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """torch's transposed convolution over as many axes as *weight* has."""
    options = stride, padding, dilation, True, output_padding, groups
    return torch.convolution(input, weight, bias, *options)


def backward(
    input: torch.Tensor,
    grad_output: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of the input, the weight and the bias that *output_mask* requests."""
    axes = weight.dim() - 2
    options = stride, padding, dilation, False, [0] * axes, groups, output_mask
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = torch.ops.aten.convolution_backward(
        grad_output, input, weight, [weight.shape[0]], *options
    )
    return found
