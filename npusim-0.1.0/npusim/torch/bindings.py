"""`torch_npu._C`, which scripts reach into for what has no public name."""

from __future__ import annotations

from typing import Any

from npusim.torch import npu
from npusim.torch.refusals import refusal

__all__ = ["_npu_getDevice", "_npu_getDeviceCount", "_npu_setDevice"]

_npu_getDevice = npu.current_device  # noqa: N816
_npu_getDeviceCount = npu.device_count  # noqa: N816
_npu_setDevice = npu.set_device  # noqa: N816


def __getattr__(name: str) -> Any:
    """Its other functions refuse when they are called."""
    if name.startswith("_npu_"):
        return refusal("torch_npu._C", name)
    raise AttributeError(f"module 'torch_npu._C' has no attribute {name!r}")
