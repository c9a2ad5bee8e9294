"""`torch_npu.contrib.function`."""

from __future__ import annotations

import torch

from npusim.torch.refusals import others_of

__all__ = ["dropout_with_byte_mask"]


def dropout_with_byte_mask(
    input1: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """Dropout, whose mask a card has as bytes."""
    found: torch.Tensor = torch.ops.npu.dropout_with_byte_mask(input1, p, training)
    return input1.copy_(found) if inplace else found


__getattr__ = others_of("torch_npu.contrib.function")
