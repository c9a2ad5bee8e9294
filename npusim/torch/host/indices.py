"""Indices of int32, which a card takes and torch's CPU kernels do not: the host is given int64."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch

__all__ = ["as_int64", "is_lacking", "one_hot"]

NAMES = frozenset({"index", "indices", "target"})
"""Parameters of torch's operations that are indices."""
_LACKING = re.compile(
    r"[Ee]xpected (target dtype to be Long|(data)?type (int64|Long)|dtype int64|scalar type Long|"
    r"a long tensor)|tensors used as indices must be long"
)


def is_lacking(error: RuntimeError) -> bool:
    """Whether *error* says that indices must be int64."""
    return _LACKING.search(str(error)) is not None


def as_int64(
    schema: torch.FunctionSchema, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[list[object], dict[str, object]]:
    """The arguments of a call with indices as int64."""

    def widened(name: str, value: object) -> object:
        is_narrow = isinstance(value, torch.Tensor) and value.dtype == torch.int32
        return value.long() if is_narrow and name in NAMES else value  # type: ignore[attr-defined]

    names = [argument.name for argument in schema.arguments]
    by_place = [widened(name, value) for name, value in zip(names, args, strict=False)]
    return by_place, {name: widened(name, value) for name, value in kwargs.items()}


def one_hot(index: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Rows of zeros with a one at each index, in the type of *index*, as a card has them."""
    return torch.nn.functional.one_hot(index.long(), num_classes).to(index.dtype)
