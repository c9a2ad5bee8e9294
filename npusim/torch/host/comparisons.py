"""Comparisons with a number that the AI CPU of a card makes in float64.

`gt` and `ge` of floats do if the number is further from its value in the type of the tensor than
the distance below; `eq`, `ne`, `gt` and `ge` of integers do for any float. The other comparisons
round the number (ops-math@c419332 math/{greater,greater_equal,equal,not_equal}/op_api, the files
aclnn_*_scalar.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

__all__ = ["OF_NUMBERS", "is_in_float64"]

DISTANCE = 2.0**-23
"""The epsilon of float32."""
ORDERED = {"gt": torch.gt, "ge": torch.ge}
EXACT = ORDERED | {"eq": torch.eq, "ne": torch.ne}
"""Comparisons -> their functions."""


def is_in_float64(name: str, x: torch.Tensor, value: float) -> bool:
    """Whether a card compares *x* with *value* in float64, by comparison *name*."""
    if not isinstance(value, float) or name not in EXACT:
        return False
    if not x.is_floating_point():
        return True
    rounded = torch.tensor(value, dtype=x.dtype).item()
    # An infinity is not near itself: the difference is NaN.
    return name in ORDERED and not abs(rounded - value) <= DISTANCE


def _compare(name: str, x: torch.Tensor, value: float) -> torch.Tensor:
    return EXACT[name](x.double() if is_in_float64(name, x, value) else x, value)


OF_NUMBERS: dict[str, Callable[..., object]] = {
    f"aten.{name}.Scalar": partial(_compare, name) for name in EXACT
}
"""Operation -> the function that computes it."""
