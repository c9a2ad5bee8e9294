"""`torch_npu._C`, which scripts use for functions without a public name."""

from __future__ import annotations

import torch

from npusim.torch import npu, settings
from npusim.torch.graphs import TaskGroup as _NPUTaskGroupHandle
from npusim.torch.refusals import others_of

__all__ = [
    "_NPUTaskGroupHandle",
    "_npu_getDevice",
    "_npu_getDeviceCount",
    "_npu_getOption",
    "_npu_setDevice",
    "_npu_setOption",
    "_weak_ref_tensor",
]

_npu_getDevice = npu.current_device  # noqa: N816
_npu_getDeviceCount = npu.device_count  # noqa: N816
_npu_setDevice = npu.set_device  # noqa: N816
_npu_setOption = settings.set_option  # noqa: N816


def _npu_getOption(name: str) -> bytes | None:  # noqa: N802
    """The value of option *name* set by `set_option`, or None."""
    found = settings.settings.options.get(name)
    return None if found is None else str(found).encode()


def _weak_ref_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor over the same memory. Unlike on a card, it keeps the memory alive."""
    return tensor.detach()


__getattr__ = others_of("torch_npu._C")
