"""The module that `import torch_npu` returns: the operators, and the parts that scripts use."""

from __future__ import annotations

from typing import Any

import torch

from npusim.published import names
from npusim.torch import bindings as _C  # noqa: N812
from npusim.torch import contrib, dynamo, formats, npu, profiler, testing
from npusim.torch.formats import Format
from npusim.torch.functions import FUNCTIONS
from npusim.torch.operator_names import REFUSED, named
from npusim.torch.schemas import CARD_TYPES

__all__ = [
    "_C",
    "Format",
    "contrib",
    "dynamo",
    "get_npu_format",
    "npu",
    "profiler",
    "testing",
]

__version__ = "2.13.0+npusim"


def get_npu_format(tensor: torch.Tensor) -> Format:
    """The format of the storage: 2 for ND, 29 for FRACTAL_NZ."""
    return formats.number(tensor)


def __getattr__(name: str) -> Any:
    """An operator of the namespace `npu`; one that is not simulated raises an error when called."""
    return named(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *FUNCTIONS, *REFUSED, *CARD_TYPES, *names()["torch_npu"]})
