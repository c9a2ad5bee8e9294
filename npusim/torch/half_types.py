"""float16 and bfloat16 on the host as a card computes them: in float32, rounded once.

Some operations torch has for neither type on the CPU, and of some the CPU rounds each sum to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

__all__ = ["in_float32", "is_lacking", "run_of"]

HALF = (torch.float16, torch.bfloat16)
_LACKING = re.compile(r"\" not implemented for '(Half|BFloat16)'$")
WIDE = frozenset(
    f"aten::{name}{backward}"
    for backward in ("", "_backward")
    for name in ("native_batch_norm", "grid_sampler_2d", "grid_sampler_3d", "convolution")
)
"""Operations that the CPU computes in half types, sums and all."""

Run = Callable[..., Any]


def run_of(op: torch._ops.OpOverload) -> Run:
    """What runs *op* on the host."""
    if op._schema.name not in WIDE or op._schema.is_mutable:
        found: Run = op
        return found

    def run(*args: object, **kwargs: object) -> Any:
        return in_float32(op, args, kwargs)

    return run


def is_lacking(error: NotImplementedError) -> bool:
    """Whether *error* says that the CPU has an operation, but not for a half type."""
    return _LACKING.search(str(error)) is not None


def in_float32(run: Run, args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
    """*run* with half types widened, and what it gives in the one that came first."""
    found: list[torch.dtype] = []

    def widened(value: object) -> object:
        if not isinstance(value, torch.Tensor) or value.dtype not in HALF:
            return value
        found.append(value.dtype)
        return value.float()

    args, kwargs = tree_map(widened, (list(args), dict(kwargs)))
    result = run(*args, **kwargs)

    def narrowed(value: Any) -> object:
        is_wide = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        return value.to(found[0]) if is_wide and found else value

    return tree_map(narrowed, result)
