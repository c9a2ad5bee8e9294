"""Operators of npusim on npu tensors: whether one takes a call, and its launch.

::

    if takes("add", {"x": x, "other": 1}):
        y = launch("add", {"x": x, "other": 1})        # an npu tensor; the clock has moved
    y = launched("add", {"x": x, "other": 1})          # both in one, or None

All know calls that were made before, of tensors of the same types, shapes and strides.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch

from npusim import ops
from npusim.data.errors import OpError
from npusim.run.memory_cache import key_of
from npusim.run.result import Output
from npusim.torch import card, formats, known
from npusim.torch.relabel import to_host, to_npu
from npusim.torch.values import argument, result

__all__ = [
    "Given",
    "arguments",
    "described",
    "described_all",
    "launch",
    "launched",
    "takes",
    "tensors_of",
]

Given = dict[str, Any]
"""Parameter of the operator -> a tensor on npu, a list of them, or the value of an attribute."""

SEES_VALUES = ("embedding", "index_select", "npu_grouped_matmul")
"""Operators whose calls may depend on the values of tensors, not on shapes and types alone."""


def takes(name: str, given: Given) -> bool:
    """Whether operator *name* takes *given* on the card; a view counts as what it shows."""
    return _takes(name, given, described_all(given))


def _takes(name: str, given: Given, key: Hashable) -> bool:
    if name in SEES_VALUES and card.computes_values():
        return _is_taken(name, given)
    return card.known(("takes", name, key), lambda: _is_taken(name, given))


def _is_taken(name: str, given: Given) -> bool:
    try:
        ops.load(name).check(card.spec(), **arguments(name, given))
    except OpError:
        return False
    return True


def launch(name: str, given: Given) -> torch.Tensor:
    """The output of operator *name* on npu. Raises OpError where it does not take *given*."""
    key = described_all(given)
    done = card.again((name, key))
    return _on_npu(_outputs(name, given, key) if done is None else done.outputs, given)


def launched(name: str, given: Given) -> torch.Tensor | None:
    """The output of operator *name* on npu; None where it does not take *given*."""
    key = described_all(given)
    done = card.again((name, key))
    if done is not None:
        return _on_npu(done.outputs, given)
    return _on_npu(_outputs(name, given, key), given) if _takes(name, given, key) else None


def _outputs(name: str, given: Given, key: Hashable) -> Mapping[str, Output]:
    taken = arguments(name, given)
    again = None if name in SEES_VALUES else card.run_again(name, key, taken)
    return card.run(name, again_by=(name, key), **taken).outputs if again is None else again


def _on_npu(outputs: Mapping[str, Output], given: Given) -> torch.Tensor:
    found = result(outputs["output"])
    x = given.get("x")
    if found.dtype == torch.uint8 and isinstance(x, torch.Tensor) and "dtype" not in given:
        # Bool is a byte to operators; what is not cast stays what it was.
        found = found.view(x.dtype) if x.dtype == torch.bool else found
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
            found += [part for part in value if isinstance(part, torch.Tensor)]
    return found


def arguments(name: str, given: Given) -> dict[str, object]:
    """*given* as operator *name* takes it."""
    return {key: _argument(name, key, value) for key, value in given.items()}


def _argument(op: str, name: str, value: object) -> object:
    if isinstance(value, torch.Tensor):
        if name == "group_list" and known.is_known(value):
            return to_host(value).numpy()
        return argument(op, name, to_host(value), formats.get(value))
    if isinstance(value, list):
        return [_argument(op, f"{name}[{place}]", part) for place, part in enumerate(value)]
    return value


def described_all(given: Given) -> Hashable:
    """All that *given* says but for the values of its tensors; of ends of groups, these too."""
    ends = given.get("group_list")
    if ends is not None and not card.computes_values() and known.is_known(ends):
        given = given | {"group_list": tuple(to_host(ends).tolist())}
    return tuple([(name, described(value)) for name, value in given.items()])


def described(value: object) -> Hashable:
    """All that *value* says but for the values of tensors; raises TypeError as `key_of` does."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), formats.get(value)
    if kind is str or value is None:
        return value
    if kind is int or kind is bool:
        return kind, value
    if isinstance(value, list):
        return list, *map(described, value)
    if isinstance(value, tuple):
        return value
    return key_of(value)
