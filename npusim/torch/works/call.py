"""A finished call of a torch operation, from which the work of a card's kernels is derived."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from npusim.torch.works.streams import Stream
from npusim.torch.works.work import Work

__all__ = [
    "FLOATS",
    "HALF",
    "Call",
    "Launch",
    "Rule",
    "Works",
    "axis_of",
    "bits_of",
    "cast",
    "elements",
    "move",
]

HALF = (torch.float16, torch.bfloat16)
FLOATS = (*HALF, torch.float32)


@dataclass(frozen=True, slots=True)
class Call:
    """A finished call of a torch operation."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[torch.Tensor]
    """The npu tensors among the arguments, including those in lists, except tensors that are
    written to."""
    outputs: list[torch.Tensor]

    def value(self, place: int, name: str, default: Any = None) -> Any:
        """The argument at position *place* or with keyword *name*."""
        return self.args[place] if place < len(self.args) else self.kwargs.get(name, default)


@dataclass(frozen=True, slots=True)
class Launch:
    """An operator of npusim that stands in for a kernel with another name."""

    kernel: str
    op: str
    arguments: dict[str, Any]


Works = Sequence[Work | Launch] | None
Rule = Callable[[Call, str], Works]


def bits_of(x: torch.Tensor) -> int:
    """Bits of an element of *x*."""
    return int(x.element_size()) * 8


def axis_of(x: torch.Tensor, dim: int) -> tuple[int, int, int]:
    """The products of the sizes before *dim*, along it and after it."""
    if x.dim() == 0:
        return 1, 1, 1
    dim %= x.dim()
    return prod(x.shape[:dim]), x.shape[dim], prod(x.shape[dim + 1 :])


# ---- works of whole tensors ----


def elements(
    kernel: str,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    steps: Sequence[str],
    count: int,
) -> Stream:
    """A stream over *count* elements of *inputs* and *outputs*; scalars stay in registers."""
    loads = tuple(min(bits_of(x), 64) for x in inputs if x.numel() > 1 or count == 1)
    stores = tuple(min(bits_of(y), 64) for y in outputs)
    return Stream(kernel=kernel, elements=count, loads=loads, stores=stores, steps=tuple(steps))


def cast(count: int, of: int, to: int) -> Stream:
    """A Cast of *count* elements from *of* bits to *to* bits."""
    return Stream(kernel="Cast", elements=count, loads=(of,), stores=(to,))


def move(x: torch.Tensor) -> Work:
    """TensorMove, which an out-of-place operation launches first."""
    return elements("TensorMove", [x], [x], (), x.numel())
