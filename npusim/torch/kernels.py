"""Launch operators of npusim on npu tensors, and ask whether an operator accepts a call.

::

    if takes("add", {"x": x, "other": 1}):
        y = launch("add", {"x": x, "other": 1})        # an npu tensor; advances the clock
    y = launched("add", {"x": x, "other": 1})          # both steps at once, or None

All three reuse what earlier calls with tensors of the same types, shapes and strides worked out.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch

from npusim import ops
from npusim.data.errors import OpError
from npusim.data.tensor import Tensor
from npusim.run.memory_cache import key_of
from npusim.run.prepared import Prepared
from npusim.run.result import Output
from npusim.run.views import by_operand
from npusim.torch import card, formats, known, repeats, shapes
from npusim.torch.card import Said
from npusim.torch.clock import clock
from npusim.torch.relabel import to_host, to_npu
from npusim.torch.values import argument, array_of, result

__all__ = [
    "Given",
    "arguments",
    "described",
    "described_all",
    "launch",
    "launch_all",
    "launched",
    "run",
    "takes",
    "takes_traced",
    "tensors_of",
]

Given = dict[str, Any]
"""Parameter of the operator -> a tensor on npu, a list of them, or the value of an attribute."""
GROUP_ENDS = "group_list"
"""The argument whose values decide what a kernel does, and may be known where shapes alone are
simulated."""


def takes(name: str, given: Given) -> bool:
    """Whether operator *name* accepts *given* on the card, with each view taken as contiguous."""
    return _takes(name, given, described_all(name, given))


def takes_traced(name: str, given: Given) -> bool:
    """The same of tensors that a compiler traces: they have shapes and types, but no memory."""
    specs = {
        key: shapes.spec_of(value, formats.get(value)) if isinstance(value, torch.Tensor) else value
        for key, value in given.items()
    }
    return _is_taken(name, specs)


def _takes(name: str, given: Given, key: Said) -> bool:
    return card.known(("takes", name, key), lambda: _is_taken(name, given))


def _is_taken(name: str, given: Given) -> bool:
    try:
        ops.load(name).check(card.spec(), **arguments(name, given))
    except OpError:
        return False
    return True


def launch(name: str, given: Given) -> torch.Tensor:
    """Run operator *name* and return its output on npu. Raises OpError if it rejects *given*."""
    key = described_all(name, given)
    done = card.again((name, key))
    return _outputs(name, given, key) if done is None else _on_npu(done.outputs, given)


def launch_all(name: str, given: Given) -> tuple[torch.Tensor, ...]:
    """The same for an operator with several outputs."""
    key = described_all(name, given)
    outputs, _ = run(name, arguments(name, given), key, (name, key))
    return tuple(to_npu(result(output)) for output in outputs.values())


def launched(name: str, given: Given) -> torch.Tensor | None:
    """Run operator *name* and return its output on npu, or None if it does not accept *given*."""
    key = described_all(name, given)
    done = card.again((name, key))
    if done is not None:
        return _on_npu(done.outputs, given)
    if not key.values:
        return _outputs(name, given, key) if _takes(name, given, key) else None
    # Values that are new would be checked twice, so it is asked only after a refusal.
    try:
        return _outputs(name, given, key)
    except OpError:
        if _takes(name, given, key):
            raise
        return None


def _outputs(name: str, given: Given, key: Said) -> torch.Tensor:
    outputs, again = run(name, arguments(name, given), key, (name, key))
    found = _on_npu(outputs, given)
    if again is not None and not _decisive(name):
        repeats.see(given, again, found)
    return found


def run(
    name: str, taken: dict[str, object], key: Said | None, again_by: Hashable
) -> tuple[Mapping[str, Output], Prepared | None]:
    """Run operator *name* on the arguments *taken*, prepared by an earlier call with *key* if that
    is possible; the outputs, and the prepared call. Advances the clock.

    Without values, :func:`npusim.torch.card.again` finds the launch by *again_by*.
    """
    again = None if key is None else card.prepared_again(name, key, taken)
    if again is None:
        return card.run(name, again_by=again_by, **taken).outputs, None
    given = by_operand(taken).items()
    outputs = again.outputs({x: y for x, y in given if isinstance(y, np.ndarray | Tensor)})
    clock.kernel(again.run)
    return outputs, again


def _on_npu(outputs: Mapping[str, Output], given: Given) -> torch.Tensor:
    found = result(outputs["output"])
    x = given.get("x")
    if found.dtype == torch.uint8 and isinstance(x, torch.Tensor) and "dtype" not in given:
        # Operators see bool as a byte. Without a cast the result is bool again.
        found = found.view(x.dtype) if x.dtype == torch.bool else found
    # Operators see a tensor without dimensions as one of shape (1,), and return that shape.
    if found.numel() == 1 and all(value.dim() == 0 for value in tensors_of(given)):
        found = found.reshape(())
    return to_npu(found)


def tensors_of(given: Given) -> list[torch.Tensor]:
    """The tensors of *given*, including those in lists."""
    found: list[torch.Tensor] = []
    for value in given.values():
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list):
            found += [part for part in value if isinstance(part, torch.Tensor)]
    return found


def arguments(name: str, given: Given) -> dict[str, object]:
    """*given* converted to the arguments of operator *name*."""
    return {key: _argument(name, key, value) for key, value in given.items()}


def _argument(op: str, name: str, value: object) -> object:
    if isinstance(value, torch.Tensor):
        if name == GROUP_ENDS and known.is_known(value):
            return to_host(value).numpy()
        return argument(op, name, to_host(value), formats.get(value))
    if isinstance(value, list):
        return [_argument(op, f"{name}[{place}]", part) for place, part in enumerate(value)]
    return value


def described_all(name: str, given: Given) -> Said:
    """The key of *given*: everything but values on which the kernel of *name* does not depend."""
    seen = _decisive(name)
    shapes = tuple([(x, described(y)) for x, y in given.items()])
    return Said(shapes, tuple([_values(x, given.get(x)) for x in seen]) if seen else ())


@cache
def _decisive(name: str) -> tuple[str, ...]:
    """The arguments of operator *name* whose values its kernel depends on."""
    return ops.load(name).value_dependent_inputs


def _values(name: str, value: object) -> bytes:
    """The bytes of argument *name* if its values are known, else no bytes."""
    if not isinstance(value, torch.Tensor) or not (
        card.computes_values() or (name == GROUP_ENDS and known.is_known(value))
    ):
        return b""
    return array_of(to_host(value)).tobytes()


def described(value: object) -> Hashable:
    """The key of *value*: everything except the values of tensors. Raises TypeError as `key_of`
    does."""
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
