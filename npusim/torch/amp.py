"""`torch.npu.amp`: the older names of `torch.autocast("npu")` and its scaler."""

from __future__ import annotations

from functools import partial

import torch

from npusim.torch.refusals import others_of

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]

custom_fwd = partial(torch.amp.custom_fwd, device_type="npu")
custom_bwd = partial(torch.amp.custom_bwd, device_type="npu")


class autocast(torch.autocast):  # noqa: N801
    """`torch.autocast("npu")`."""

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype = torch.float16,
        cache_enabled: bool = True,
    ) -> None:
        super().__init__("npu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("npu")`."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__("npu", *args, **kwargs)


__getattr__ = others_of("torch_npu.npu.amp")
