"""`torch.npu`, also `torch_npu.npu`: the card as scripts ask for it."""

from __future__ import annotations

from typing import Any

import torch

from npusim.torch import card
from npusim.torch.errors import invalid_device

__all__ = ["Generator", "current_device", "device_count", "get_device_name", "is_available"]


class Generator(torch._C.Generator):
    """Random numbers for the card: those of the CPU, of the same seed."""

    def __new__(cls, device: Any = "cpu") -> Any:
        on_host = torch.device(device).type == "npu"
        return super().__new__(cls, "cpu" if on_host else device)


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def init() -> None:
    """Nothing is left to do."""


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    """One card."""
    return 1


def current_device() -> int:
    return 0


def set_device(device: Any) -> None:
    """Choose the one card there is."""
    _index(device)


def get_device_name(device: Any = None) -> str:
    """The name of the chip, for example Ascend910B2."""
    _index(device)
    return card.name()


def manual_seed(seed: int) -> None:
    """Seed the generator, which the card shares with the CPU."""
    torch.default_generator.manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """`torch.manual_seed` calls this after it has seeded the CPU."""


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def _index(device: Any) -> int:
    """The number of *device*: None, a number, or what `torch.device` takes. Only 0 exists."""
    if device is None:
        return 0
    index = device if isinstance(device, int) else torch.device(device).index
    if index not in (None, 0, -1):
        raise invalid_device(f"npu:{index}")
    return 0
