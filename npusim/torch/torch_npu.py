"""What `import torch_npu` gives: the operators, and the parts that scripts use."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any

import torch

from npusim.torch import bindings as _C  # noqa: N812
from npusim.torch import contrib, dynamo, formats, npu, profiler, refusals, testing
from npusim.torch.formats import Format
from npusim.torch.functions import FUNCTIONS
from npusim.torch.published import names, schemas

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


_REFUSED = frozenset(re.match(r"\w+", schema)[0] for schema in schemas()) - FUNCTIONS.keys()  # type: ignore[index]
"""Operators of torch_npu that are not simulated."""


def get_npu_format(tensor: torch.Tensor) -> int:
    """The format of the storage: 2 for ND, 29 for FRACTAL_NZ."""
    return formats.get(tensor)


def __getattr__(name: str) -> Any:
    """An operator of the namespace `npu`; one that is not simulated refuses when it is called."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if name in _REFUSED:
        return refusals.operator(name)
    if name in names()["torch_npu"]:
        return refusals.refusal("torch_npu", name)
    # npu_dynamic_quant_v9 is no slip of npu_dynamic_quant.
    others = [other for other in (*FUNCTIONS, *_REFUSED) if not name.startswith(other)]
    near = get_close_matches(name, others, n=1, cutoff=0.9)
    advice = f"did you mean {near[0]}?" if near else "leave it out"
    raise AttributeError(
        f"module 'torch_npu' has no attribute {name!r}\nnpusim.torch: torch_npu.{name} must be a "
        f"name of torch_npu 2.14 or older, but is none; {advice}"
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *FUNCTIONS, *_REFUSED, *names()["torch_npu"]})
