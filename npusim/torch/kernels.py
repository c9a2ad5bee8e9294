"""Operators of npusim on npu tensors: whether one takes a call, and its launch.

::

    if takes("add", {"x": x, "other": 1}):
        y = launch("add", {"x": x, "other": 1})        # an npu tensor; the clock has moved
"""

from __future__ import annotations

from typing import Any

import torch

from npusim import ops
from npusim.data.errors import OpError
from npusim.torch import card, formats
from npusim.torch.relabel import to_host, to_npu
from npusim.torch.values import argument, result

__all__ = ["Given", "launch", "takes"]

Given = dict[str, Any]
"""Parameter of the operator -> a tensor on npu, or the value of an attribute."""


def takes(name: str, given: Given) -> bool:
    """Whether operator *name* takes *given* on the card; a view counts as what it shows."""
    try:
        ops.load(name).check(card.spec(), **_arguments(name, given))
    except OpError:
        return False
    return True


def launch(name: str, given: Given) -> torch.Tensor:
    """The output of operator *name* on npu. Raises OpError where it does not take *given*."""
    found = result(card.run(name, **_arguments(name, given)).outputs["output"])
    tensors = [value for value in given.values() if isinstance(value, torch.Tensor)]
    # Operators take a number's tensor as one of one element, and give such a one.
    is_scalar = all(tensor.dim() == 0 for tensor in tensors)
    return to_npu(found.reshape(()) if is_scalar and found.numel() == 1 else found)


def _arguments(name: str, given: Given) -> dict[str, Any]:
    return {
        key: argument(name, key, to_host(value), formats.get(value))
        if isinstance(value, torch.Tensor)
        else value
        for key, value in given.items()
    }
