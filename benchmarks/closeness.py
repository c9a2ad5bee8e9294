"""Whether results of a card are those of the CPU, as close as their types are."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["difference", "in_float32", "rounded"]

TOLERANCES = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Type -> how far a value may be from that of the CPU, as a share of the largest one around it: a
few units in the last place, for sums that a card adds up in another order."""


def in_float32(op: Any, sample: Any) -> Any:
    """What the CPU makes of *sample* with float32 for half types."""
    half = (torch.float16, torch.bfloat16)

    def wide(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().float() if value.dtype in half else value
        return torch.float32 if isinstance(value, torch.dtype) and value in half else value

    given = tree_map(wide, (sample.input, sample.args, sample.kwargs))
    torch.manual_seed(0)
    return op(given[0], *given[1], **given[2])


def rounded(wide: Any, narrow: Any) -> Any:
    """The results *wide* in the types of *narrow*, where both are real."""

    def narrowed(x: Any, y: Any) -> Any:
        both = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
        return x.to(y.dtype) if both and x.is_floating_point() and y.is_floating_point() else x

    return tree_map(narrowed, wide, narrow)


def difference(got: Any, want: Any) -> str:
    """How *got* of the card differs from *want* of the CPU; nothing if it does not."""
    for mine, theirs in zip(tree_leaves(got), tree_leaves(want), strict=True):
        if not isinstance(theirs, torch.Tensor):
            continue
        here, there = mine.detach().cpu(), theirs.detach()
        if (here.shape, here.dtype) != (there.shape, there.dtype):
            return f"{here.dtype} {tuple(here.shape)} and not {there.dtype} {tuple(there.shape)}"
        share = TOLERANCES.get(str(there.dtype).removeprefix("torch."), 0.0)
        finite = there[torch.isfinite(there)] if there.is_floating_point() else there.new_empty(0)
        largest = float(finite.abs().max()) if share and finite.numel() else 0.0
        with suppress(AssertionError):
            torch.testing.assert_close(
                here, there, rtol=share, atol=share * max(largest, 1.0), equal_nan=True
            )
            continue
        return f"values are not close: {_worst(here, there)}"
    return ""


def _worst(here: Any, there: Any) -> str:
    if here.is_complex() or not here.numel():
        return "of complex numbers"
    at = int((here.double() - there.double()).abs().nan_to_num(float("inf")).argmax())
    return f"{here.reshape(-1)[at].item()} and not {there.reshape(-1)[at].item()}"
