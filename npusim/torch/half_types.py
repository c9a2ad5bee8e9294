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
_LACKING = re.compile(
    r"\" not implemented for '(Half|BFloat16)'$|Low precision dtypes not supported. Got (Half|BFl)"
)
WIDE = frozenset(
    f"aten::{name}{backward}"
    for backward in ("", "_backward")
    for name in (
        *("native_batch_norm", "grid_sampler_2d", "grid_sampler_3d", "convolution"),
        *("slow_conv_transpose2d", "slow_conv_transpose3d", "slow_conv_dilated2d"),
        *("slow_conv_dilated3d", "slow_conv3d_forward", "_slow_conv2d_forward", "_slow_conv2d"),
        *("nll_loss_forward", "nll_loss2d_forward", "nll_loss", "nll_loss2d"),
    )
)
"""Operations that the CPU computes in half types, sums and all."""

LIKE = {
    "aten::native_batch_norm_backward": (0, 2, 2),
}
"""Of operations whose weights may be float32 next to half types: whose type each result has."""

Run = Callable[..., Any]


def run_of(op: torch._ops.OpOverload) -> Run:
    """What runs *op* on the host."""
    name = op._schema.name
    if (name not in WIDE and name not in LIKE) or op._schema.is_mutable:
        found: Run = op
        return found

    def run(*args: object, **kwargs: object) -> Any:
        if name not in LIKE or len(args) <= max(LIKE[name]):
            return in_float32(op, args, kwargs)
        return tuple(map(_as, op(*map(_wide, args), **kwargs), (args[one] for one in LIKE[name])))

    return run


def _wide(value: object) -> object:
    """*value*, in float32 if it is a tensor of a half type."""
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in HALF else value


def _as(result: object, operand: object) -> object:
    """*result* in the type of *operand*, if both are tensors."""
    both = isinstance(result, torch.Tensor) and isinstance(operand, torch.Tensor)
    return result.to(operand.dtype) if both else result  # type: ignore[attr-defined]


def is_lacking(error: RuntimeError) -> bool:
    """Whether *error* says that the CPU has an operation, but not for a half type."""
    return _LACKING.search(str(error)) is not None


def in_float32(run: Run, args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
    """*run* with half types widened, and what it gives in the one that came first."""
    found: list[torch.dtype] = []

    def widened(value: object) -> object:
        if isinstance(value, torch.Tensor) and value.dtype in HALF:
            found.append(value.dtype)
        return _wide(value)

    args, kwargs = tree_map(widened, (list(args), dict(kwargs)))
    result = run(*args, **kwargs)

    def narrowed(value: Any) -> object:
        is_wide = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        return value.to(found[0]) if is_wide and found else value

    return tree_map(narrowed, result)
