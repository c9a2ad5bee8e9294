"""Products and their gradients, composed of torch operations.

Sources: op-plugin@517f2e7 op_plugin_functions.yaml and derivatives.yaml, LinearKernelNpu.cpp and
BmmV2KernelNpu.cpp. Each product is one launch, as in torch itself.
"""

from __future__ import annotations

import torch

__all__ = [
    "bmm_v2",
    "bmm_v2_mat1_backward",
    "bmm_v2_mat2_backward",
    "linear",
    "linear_backward",
]


def linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`input @ weight.T + bias`."""
    return torch.nn.functional.linear(input, weight, bias)


def linear_backward(
    grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of input and of weight."""
    rows = grad.reshape(-1, grad.shape[-1])
    return grad @ weight, rows.mT @ input.reshape(-1, input.shape[-1])


def bmm_v2(self: torch.Tensor, mat2: torch.Tensor, output_sizes: list[int]) -> torch.Tensor:
    """A product of broadcast batches, reshaped if *output_sizes* is not empty."""
    found = torch.matmul(self, mat2)
    return found.reshape(output_sizes) if output_sizes else found


def bmm_v2_mat1_backward(
    grad: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, size: list[int]
) -> torch.Tensor:
    """The gradient of the first factor."""
    grad = grad.reshape((mat1 @ mat2).shape)
    return (grad @ mat2.mT).sum_to_size(size)


def bmm_v2_mat2_backward(
    grad: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, size: list[int]
) -> torch.Tensor:
    """The gradient of the second factor."""
    grad = grad.reshape((mat1 @ mat2).shape)
    return (mat1.mT @ grad).sum_to_size(size)
