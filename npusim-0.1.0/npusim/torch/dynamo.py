"""`torch_npu.dynamo`, which brings torchair along."""

from __future__ import annotations

from npusim.torch import torchair

__all__ = ["torchair"]
