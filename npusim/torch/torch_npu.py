"""What `import torch_npu` gives: the operators, and the parts that scripts use."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import torch

from npusim import ops
from npusim.torch import contrib, formats, npu, profiler, testing
from npusim.torch.formats import Format
from npusim.torch.functions import FUNCTIONS

__all__ = ["Format", "contrib", "get_npu_format", "npu", "profiler", "testing"]

__version__ = "2.13.0+npusim"


def get_npu_format(tensor: torch.Tensor) -> int:
    """The format of the storage: 2 for ND, 29 for FRACTAL_NZ."""
    return formats.get(tensor)


def __getattr__(name: str) -> Any:
    """An operator of the namespace `npu`."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if name.startswith("npu_") and hasattr(torch.ops.npu, name):
        return getattr(torch.ops.npu, name)
    advice = "do without it"
    if name.startswith("npu_"):
        # npu_dynamic_quant_v2 is no slip of npu_dynamic_quant.
        others = [other for other in FUNCTIONS if not name.startswith(other)]
        near = get_close_matches(name, others, n=1, cutoff=0.9)
        advice = "write it with torch's own operations, which run on the host in no simulated time"
        advice = f"did you mean {near[0]}?" if near else advice
    if name in ops.NOT_BUILT:
        advice = ops.in_place_of(name)
    raise AttributeError(
        f"module 'torch_npu' has no attribute {name!r}\nnpusim.torch: torch_npu.{name} must be "
        f"modelled, but is not; {advice}"
    )
