"""`torch_npu.contrib`."""

from __future__ import annotations

from npusim.torch.contrib import module
from npusim.torch.refusals import others_of

__all__ = ["module"]

__getattr__ = others_of("torch_npu.contrib", module)
