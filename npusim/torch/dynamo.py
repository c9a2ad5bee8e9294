"""`torch_npu.dynamo`, which contains torchair."""

from __future__ import annotations

from npusim.torch import torchair
from npusim.torch.refusals import others_of

__all__ = ["torchair"]

__getattr__ = others_of("torch_npu.dynamo")
