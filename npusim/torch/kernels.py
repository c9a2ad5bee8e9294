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
from npusim.run.kept import key_of
from npusim.torch import card, formats
from npusim.torch.relabel import to_host, to_npu
from npusim.torch.values import argument, result

__all__ = ["Given", "launch", "takes"]

Given = dict[str, Any]
"""Parameter of the operator -> a tensor on npu, or the value of an attribute."""

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
    is_scalar = all(value.dim() == 0 for value in given.values() if isinstance(value, torch.Tensor))
    return to_npu(found.reshape(()) if is_scalar and found.numel() == 1 else found)


def _arguments(name: str, given: Given) -> dict[str, Any]:
    return {
        key: argument(name, key, to_host(value), formats.get(value))
        if isinstance(value, torch.Tensor)
        else value
        for key, value in given.items()
    }


def _key(given: Given) -> Hashable:
    """All that *given* says but for the values of its tensors."""
    return tuple(
        (name, value.dtype, value.shape, value.stride(), formats.get(value))
        if isinstance(value, torch.Tensor)
        else (name, key_of(value))
        for name, value in given.items()
    )
