"""Operations of torch that an operator of npusim computes on the card, and otherwise the host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from npusim.torch import card
from npusim.torch.fallback import UNKNOWN, HostOp, is_on_host
from npusim.torch.kernels import Given, launched, takes, tensors_of
from npusim.torch.repeats import Repeats
from npusim.torch.views import contiguous, is_plain

__all__ = ["COMPARISONS", "GIVE_BOOL", "LOGIC", "CardOp", "KernelOp", "Take", "run"]

Take = Callable[..., Given | None]
"""Converts the arguments of an operation to those of the operator, or returns None if it cannot."""
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LOGIC = ("logical_and", "logical_or")
GIVE_BOOL = (*COMPARISONS, *LOGIC, "logical_not")


class CardOp(ABC):
    """An operation of torch that an operator of npusim computes."""

    __slots__ = ("_again", "_host", "_name")

    def __init__(self, op: torch._ops.OpOverload, name: str) -> None:
        self._host, self._name = HostOp(op), name
        self._again = Repeats()

    def __call__(self, *args: object, **kwargs: object) -> object:
        if is_on_host():
            return self._host(*args, **kwargs)
        found = self.launched(args, kwargs)
        return self._host(*args, **kwargs) if found is None else self.known(found, args, kwargs)

    def launched(self, args: tuple[object, ...], kwargs: dict[str, object]) -> torch.Tensor | None:
        """The result of :meth:`on_card`; a call that was made before replays its kernels."""
        return self.on_card(*args, **kwargs) if kwargs else self._again.run(self.on_card, args)

    def known(
        self, found: torch.Tensor, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """*found*, or its known values where shapes alone are simulated."""
        if card.computes_values():
            return found
        decided = self._host.decided(args, kwargs)
        return found if decided is UNKNOWN else decided

    @abstractmethod
    def on_card(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """The result of the kernel; None if no kernel accepts the call."""


class KernelOp(CardOp):
    """An operation whose arguments map directly to those of the operator."""

    __slots__ = ("_take",)

    def __init__(self, op: torch._ops.OpOverload, name: str, take: Take) -> None:
        super().__init__(op, name)
        self._take = take

    def on_card(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        return run(self._name, self._take(*args, **kwargs))


def run(name: str, given: Given | None) -> torch.Tensor | None:
    """The result of operator *name* for *given*, views copied first; None if it rejects that."""
    if given is None:
        return None
    tensors = tensors_of(given)
    if not all(map(is_plain, tensors)):
        return None
    if not all(x.is_contiguous() for x in tensors):
        if not takes(name, given):
            return None
        given = {key: _in_rows(value) for key, value in given.items()}
    found = launched(name, given)
    return found.view(torch.bool) if found is not None and name in GIVE_BOOL else found


def _in_rows(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return contiguous(value)
    return list(map(contiguous, value)) if isinstance(value, list) else value
