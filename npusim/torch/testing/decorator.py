"""`torch_npu.testing.decorator`: one test for each dtype and format."""

from __future__ import annotations

from collections.abc import Callable
from functools import partialmethod
from inspect import signature
from itertools import product
from typing import Any

from npusim.torch.testing.common_utils import get_npu_device

__all__ = ["Dtypes", "Formats", "instantiate_tests"]


class _Choices:
    """Records on a test the values of one of its parameters."""

    parameter = ""

    def __init__(self, *values: object) -> None:
        self.values = values

    def __call__(self, test: Callable[..., object]) -> object:
        noted: Any = test
        noted.choices = vars(test).get("choices", {}) | {self.parameter: self.values}
        return noted


class Dtypes(_Choices):
    """The values of a test's parameter `dtype`."""

    parameter = "dtype"


class Formats(_Choices):
    """The values of a test's parameter `npu_format`."""

    parameter = "npu_format"


def instantiate_tests(cls: object) -> object:
    """Replace each parametrised test of *cls* by one for each combination of values.

    A test with a parameter `device` gets the card.
    """
    for name, test in list(vars(cls).items()):
        choices = getattr(test, "choices", None)
        if not name.startswith("test") or choices is None:
            continue
        delattr(cls, name)
        for values in product(*choices.values()):
            words = "_".join(str(value).removeprefix("torch.") for value in values)
            chosen = dict(zip(choices, values, strict=True))
            if "device" in signature(test).parameters:
                chosen["device"] = get_npu_device()
            setattr(cls, f"{name}_{words}", partialmethod(test, **chosen))
    return cls
