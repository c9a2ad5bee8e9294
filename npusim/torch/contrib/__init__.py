"""`torch_npu.contrib`."""

from __future__ import annotations

from npusim.torch.contrib import module

__all__ = ["module"]
