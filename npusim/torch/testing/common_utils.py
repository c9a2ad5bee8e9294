"""`torch_npu.testing.common_utils`: inputs for tests, and the cards that a test supports."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np
import torch

from npusim.torch import card, npu

__all__ = [
    "SkipIfNotGteCANNVersion",
    "SupportedDevices",
    "check_operators_in_prof",
    "create_common_tensor",
    "create_dtype_tensor",
    "freeze_rng_state",
    "get_npu_device",
    "set_npu_device",
    "test_2args_broadcast",
]

ANY = -1
"""Any format of a tensor."""
BROADCAST = (((2, 3, 4, 5), (1, 1, 1)), ((2, 3, 4, 5), (4, 5)))
"""Shapes of two operands, of which the second is broadcast."""


def get_npu_device() -> str:
    """The card that tests run on."""
    return "npu:0"


def set_npu_device() -> str:
    """Choose the card that tests run on, and return its name."""
    npu.set_device(get_npu_device())
    return get_npu_device()


@contextmanager
def freeze_rng_state() -> Iterator[None]:
    """Restore the state of the random number generators at the end."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def create_common_tensor(
    item: Sequence[Any],
    minValue: float,  # noqa: N803
    maxValue: float,  # noqa: N803
    device: torch.device | str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same random numbers on the CPU and on the card.

    *item*: numpy dtype, format, shape, and further items for the test itself.
    """
    dtype, npu_format, shape, *_ = item
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
    """:func:`create_common_tensor` with a torch dtype; *no_zero* replaces zeros by ones."""
    if dtype == torch.bool:
        on_cpu = torch.from_numpy(np.random.choice([True, False], size=shape))
    else:
        on_cpu = torch.from_numpy(np.random.uniform(min_value, max_value, shape)).to(dtype)
    if no_zero:
        on_cpu = torch.where(on_cpu == 0, torch.ones_like(on_cpu), on_cpu)
    return on_cpu, _placed(on_cpu, npu_format, device)


def test_2args_broadcast(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> list[list[Any]]:
    """The results of *function* of two operands on the CPU and on the card, as pairs of arrays."""
    found = []
    for shapes in BROADCAST:
        pairs = [create_common_tensor((np.float32, ANY, shape), 0, 1) for shape in shapes]
        results = [function(x, y).cpu().numpy() for x, y in zip(*pairs, strict=True)]
        found.append(results)
    return found


test_2args_broadcast.__test__ = False  # type: ignore[attr-defined]
"""It is not a test, although pytest would collect it by its name."""


def check_operators_in_prof(
    expected_operators: Sequence[str], prof: Any, unexpected_operators: Sequence[str] = ()
) -> bool:
    """Whether *prof* of torch has all expected operators and none of the unexpected ones."""
    found = {each.key.replace("cached_", "") for each in prof.key_averages()}
    return found.issuperset(expected_operators) and found.isdisjoint(unexpected_operators or ())


def _placed(on_cpu: torch.Tensor, npu_format: int, device: object) -> torch.Tensor:
    placed = on_cpu.to(device or get_npu_device())
    if npu_format == ANY:
        return placed
    return torch.ops.npu.npu_format_cast(placed, npu_format)


class SupportedDevices:
    """Skips a test unless the card's name starts with one of the given names."""

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


class SkipIfNotGteCANNVersion:
    """Skips a test unless CANN is of that version or newer."""

    def __init__(self, base_version: str, module: str = "CANN") -> None:
        self.version, self.module = base_version, module

    def __call__(self, test: Callable[..., object]) -> Callable[..., object]:
        @wraps(test)
        def only_later(*args: object, **kwargs: object) -> object:
            if not npu._is_gte_cann_version(self.version, self.module):
                own = npu.get_cann_version(self.module)
                raise unittest.SkipTest(f"needs {self.module} {self.version}, not {own}")
            return test(*args, **kwargs)

        return only_later
