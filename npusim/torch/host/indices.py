"""int32 indices, which a card accepts and torch's CPU kernels do not: they are cast to int64."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["one_hot", "taking_int32"]

Run = Callable[..., Any]

NAMES = frozenset({"index", "indices", "target"})
"""Parameters of torch's operations that are indices."""
_LACKING = re.compile(
    r"[Ee]xpected (target dtype to be Long|(data)?type (int64|Long)|dtype int64|scalar type Long|"
    r"a long tensor)|tensors used as indices must be long"
)


def taking_int32(schema: torch.FunctionSchema, run: Run) -> Run:
    """Wrap *run* to cast its indices to int64 if it accepts no other type."""
    names = [argument.name for argument in schema.arguments]
    if NAMES.isdisjoint(names):
        return run

    def widened(name: str, value: object) -> object:
        is_narrow = isinstance(value, torch.Tensor) and value.dtype == torch.int32
        return value.long() if is_narrow and name in NAMES else value  # type: ignore[attr-defined]

    def either(*args: object, **kwargs: object) -> Any:
        try:
            return run(*args, **kwargs)
        except RuntimeError as error:
            if _LACKING.search(str(error)) is None:
                raise
        by_place = map(widened, names, args)
        return run(*by_place, **{name: widened(name, value) for name, value in kwargs.items()})

    return either


def one_hot(index: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Rows of zeros with a one at each index, in the type of *index*, as on a card."""
    return torch.nn.functional.one_hot(index.long(), num_classes).to(index.dtype)
