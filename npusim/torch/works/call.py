"""A call of an operation of torch that has run, and what the kernels of a card do for it."""

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
    """An operation of torch that has run."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[torch.Tensor]
    """The tensors among them on npu, those of lists too, but for what is written to."""
    outputs: list[torch.Tensor]

    def value(self, place: int, name: str, default: Any = None) -> Any:
        """The argument at *place*, or called *name*."""
        return self.args[place] if place < len(self.args) else self.kwargs.get(name, default)


@dataclass(frozen=True, slots=True)
class Launch:
    """An operator of npusim that does what a kernel of another name does."""

    kernel: str
    op: str
    arguments: dict[str, Any]


Works = Sequence[Work | Launch] | None
Rule = Callable[[Call, str], Works]


def bits_of(x: torch.Tensor) -> int:
    """Bits of an element."""
    return int(x.element_size()) * 8


def axis_of(x: torch.Tensor, dim: int) -> tuple[int, int, int]:
    """Elements before *dim*, along it and behind it."""
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
    """A stream of *count* elements of tensors of those types; numbers stay in registers."""
    loads = tuple(min(bits_of(x), 64) for x in inputs if x.numel() > 1 or count == 1)
    stores = tuple(min(bits_of(y), 64) for y in outputs)
    return Stream(kernel=kernel, elements=count, loads=loads, stores=stores, steps=tuple(steps))


def cast(count: int, of: int, to: int) -> Stream:
    """A Cast of *count* elements between so many bits."""
    return Stream(kernel="Cast", elements=count, loads=(of,), stores=(to,))


def move(x: torch.Tensor) -> Work:
    """TensorMove, which an operation that is not in place launches first."""
    return elements("TensorMove", [x], [x], (), x.numel())
