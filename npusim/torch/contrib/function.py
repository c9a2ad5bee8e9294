"""`torch_npu.contrib.function`."""

from __future__ import annotations

import torch

from npusim.torch.refusals import others_of

__all__ = [
    "dropout_with_byte_mask",
    "fuse_add_softmax_dropout",
    "matmul_transpose",
    "npu_fast_condition_index_put",
    "roll",
]

FUSED_ROWS = 128, 256, 384, 512
"""Rows of scores that fuse_add_softmax_dropout passes to the fused kernel (Ascend/pytorch,
torch_npu/contrib/function/fuse_add_softmax_dropout.py)."""
FUSED_BATCHES = 32
"""Batches times heads must be a multiple of this for the fused kernel (the same file)."""


def dropout_with_byte_mask(
    input1: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """Dropout; on a card its mask is stored as bytes."""
    found: torch.Tensor = torch.ops.npu.dropout_with_byte_mask(input1, p, training)
    return input1.copy_(found) if inplace else found


def fuse_add_softmax_dropout(
    training: bool,
    dropout: torch.nn.Module,
    attn_mask: torch.Tensor,
    attn_scores: torch.Tensor,
    attn_head_size: int,
    p: float = 0.5,
    dim: int = -1,  # noqa: ARG001
) -> torch.Tensor:
    """softmax of the scaled scores plus the mask, and its dropout.

    With rows and batches as the fused kernel takes them, that is npu_dropout_with_add_softmax with
    probability *p* in *training*; otherwise torch's softmax along the last axis and *dropout*.
    """
    batches, heads, rows, _ = attn_scores.shape
    scale = attn_head_size**-0.5
    if rows in FUSED_ROWS and batches * heads % FUSED_BATCHES == 0:
        found: torch.Tensor = torch.ops.npu.npu_dropout_with_add_softmax(
            attn_scores, attn_mask, scale, p if training else 0.0, -1
        )[2]
        return found
    scores = torch.add(attn_mask, attn_scores, alpha=scale)
    return dropout(torch.softmax(scores, -1))


def matmul_transpose(tensor1: torch.Tensor, tensor2: torch.Tensor) -> torch.Tensor:
    """`tensor1 @ tensor2.mT`."""
    return torch.matmul(tensor1, tensor2.mT)


def npu_fast_condition_index_put(
    x: torch.Tensor, condition: torch.Tensor, value: float
) -> torch.Tensor:
    """*x* with *value* where *condition* is true. Raises TypeError unless that is bool."""
    if condition.dtype != torch.bool:
        raise TypeError(
            "npu_fast_condition_index_put: condition must be of torch.bool, not "
            f"{condition.dtype}; compare first"
        )
    return torch.where(condition, value, x)


def roll(input1: torch.Tensor, shifts: tuple[int, ...], dims: tuple[int, ...]) -> torch.Tensor:
    """torch.roll."""
    return torch.roll(input1, shifts, dims)


__getattr__ = others_of("torch_npu.contrib.function")
