"""`torch_npu.testing.common_utils`: inputs for tests, and which cards a test is for."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Sequence
from functools import wraps

import numpy as np
import torch

from npusim.torch import card

__all__ = ["SupportedDevices", "create_common_tensor", "create_dtype_tensor", "get_npu_device"]

ANY = -1
"""Whatever format a tensor has."""


def get_npu_device() -> str:
    """The card that tests run on."""
    return "npu:0"


def create_common_tensor(
    item: tuple[np.typing.DTypeLike, int, Sequence[int]],
    minValue: float,  # noqa: N803
    maxValue: float,  # noqa: N803
    device: torch.device | str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same random numbers on the CPU and on the card.

    *item*: numpy dtype, format and shape.
    """
    dtype, npu_format, shape = item
    numbers = np.random.uniform(minValue, maxValue, size=shape).astype(dtype)
    on_cpu = torch.from_numpy(numbers)
    return on_cpu, _placed(on_cpu, npu_format, device)


def create_dtype_tensor(
    shape: Sequence[int],
    dtype: torch.dtype,
    npu_format: int = -1,
    min_value: float = -5,
    max_value: float = 5,
    no_zero: bool = False,
    device: torch.device | str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, of a torch dtype; *no_zero* puts ones in the place of zeros."""
    if dtype == torch.bool:
        on_cpu = torch.from_numpy(np.random.choice([True, False], size=shape))
    else:
        on_cpu = torch.from_numpy(np.random.uniform(min_value, max_value, shape)).to(dtype)
    if no_zero:
        on_cpu = torch.where(on_cpu == 0, torch.ones_like(on_cpu), on_cpu)
    return on_cpu, _placed(on_cpu, npu_format, device)


def _placed(on_cpu: torch.Tensor, npu_format: int, device: object) -> torch.Tensor:
    placed = on_cpu.to(device or get_npu_device())
    if npu_format == ANY:
        return placed
    return torch.ops.npu.npu_format_cast(placed, npu_format)


class SupportedDevices:
    """Skips a test unless the card's name begins with one of those that are given."""

    def __init__(self, supported_devices: str | Sequence[str]) -> None:
        names = [supported_devices] if isinstance(supported_devices, str) else supported_devices
        self.names = tuple(names)

    def __call__(self, test: Callable[..., object]) -> Callable[..., object]:
        @wraps(test)
        def only_there(*args: object, **kwargs: object) -> object:
            if not card.name().startswith(self.names):
                known = ", ".join(self.names)
                raise unittest.SkipTest(f"only for {known}; the card is {card.name()}")
            return test(*args, **kwargs)

        return only_there
