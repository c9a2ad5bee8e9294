"""Operators of npusim on npu tensors: whether one takes a call, and its launch.

::

    if takes("add", {"x": x, "other": 1}):
        y = launch("add", {"x": x, "other": 1})        # an npu tensor; the clock has moved

Both know calls that were made before, of tensors of the same types, shapes and strides.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from npusim import ops
from npusim.data.errors import OpError
from npusim.run.memory_cache import key_of
from npusim.torch import card, formats
from npusim.torch.relabel import to_host, to_npu
from npusim.torch.values import argument, result

__all__ = ["Given", "launch", "takes", "tensors_of"]

Given = dict[str, Any]
"""Parameter of the operator -> a tensor on npu, a list of them, or the value of an attribute."""

SEES_VALUES = ("embedding", "index_select")
"""Operators whose calls may depend on the values of tensors, not on shapes and types alone."""


def takes(name: str, given: Given) -> bool:
    """Whether operator *name* takes *given* on the card; a view counts as what it shows."""
    if name in SEES_VALUES:
        return _is_taken(name, given)
    return card.known(("takes", name, _key(given)), lambda: _is_taken(name, given))


def _is_taken(name: str, given: Given) -> bool:
    try:
        ops.load(name).check(card.spec(), **_arguments(name, given))
    except OpError:
        return False
    return True


def launch(name: str, given: Given) -> torch.Tensor:
    """The output of operator *name* on npu. Raises OpError where it does not take *given*."""
    arguments = _arguments(name, given)
    again = None if name in SEES_VALUES else card.run_again(name, _key(given), arguments)
    outputs = card.run(name, **arguments).outputs if again is None else again
    found = result(outputs["output"])
    # Operators take a number's tensor as one of one element, and give such a one.
    if found.numel() == 1 and all(value.dim() == 0 for value in tensors_of(given)):
        found = found.reshape(())
    return to_npu(found)


def tensors_of(given: Given) -> list[torch.Tensor]:
    """The tensors of *given*, those of lists too."""
    found: list[torch.Tensor] = []
    for value in given.values():
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list):
            found += value
    return found


def _arguments(name: str, given: Given) -> dict[str, Any]:
    return {key: _argument(name, key, value) for key, value in given.items()}


def _argument(op: str, name: str, value: object) -> Any:
    if isinstance(value, torch.Tensor):
        return argument(op, name, to_host(value), formats.get(value))
    if isinstance(value, list):
        return [_argument(op, f"{name}[{place}]", part) for place, part in enumerate(value)]
    return value


def _key(given: Given) -> Hashable:
    """All that *given* says but for the values of its tensors."""
    return tuple((name, _described(value)) for name, value in given.items())


def _described(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), formats.get(value)
    return tuple(map(_described, value)) if isinstance(value, list) else key_of(value)
