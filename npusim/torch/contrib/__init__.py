"""`torch_npu.contrib`."""

from __future__ import annotations

from npusim.torch.contrib import function, module
from npusim.torch.refusals import others_of

__all__ = ["function", "module"]

__getattr__ = others_of("torch_npu.contrib", module, function)
