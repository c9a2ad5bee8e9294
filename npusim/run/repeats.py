"""Finds the result of an identical earlier call, without involving the operator.

A call for its time alone depends on the operator, the chip, the arguments, the options and the
state of the chip at launch. If all of these equal those of an earlier call, the result is the same,
and contract and tiling are skipped. Calls with values are never found this way.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from npusim.chip import Engine
from npusim.data.tensor import TensorSpec
from npusim.devices.schema import DeviceSpec, ICache
from npusim.run.memory_cache import device_key, key_of
from npusim.run.options import Options
from npusim.run.result import Result

__all__ = ["Found", "key_of_call", "repeated", "value_key"]

MOST_ARRAY_BYTES = 1 << 12
"""Calls with a larger array, such as a block table, are not looked up: comparing all of it takes
longer than computing what depends on it."""


class Found(NamedTuple):
    """The state of the chip at launch, as far as the time depends on it."""

    l2: Hashable = "cold"
    icache: ICache | None = None


def key_of_call(
    op: object,
    device: DeviceSpec,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    options: Options,
    engine: Engine,
) -> Hashable | None:
    """The key of a call; None if it computes values, or may do so."""
    if not isinstance(op, str) or not op.isidentifier():
        return None  # a kernel in a file, whose function may depend on anything
    given = (*args, *kwargs.values())
    if options.values and not any(_is_bare(value) for value in given):
        return None
    how = (
        *(options.values, options.timing, options.every_core, options.byte_exact),
        *(options.cube_order, options.deeper, options.is_checked, engine),
    )
    try:
        found = Found(value_key(options.l2), options.icache)
        parts = tuple(map(value_key, args)), tuple((x, value_key(y)) for x, y in kwargs.items())
        return "call", op, device_key(device), found, how, value_key(options.copies), parts
    except TypeError:
        return None  # without a key the call is never repeated


def _is_bare(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_bare, value))
    return isinstance(value, TensorSpec)


def value_key(value: object) -> Hashable:
    """A key that only arguments of the same type and contents share.

    Raises TypeError for values without one, and for large arrays.
    """
    kind = type(value)
    if value is None or kind is TensorSpec or kind is str:
        return value
    if kind is int or kind is bool:
        return kind, value
    if isinstance(value, tuple | list):
        return kind, *map(value_key, value)
    if isinstance(value, Mapping):
        return kind, *((name, value_key(part)) for name, part in value.items())
    if isinstance(value, np.ndarray):
        if value.nbytes > MOST_ARRAY_BYTES:
            raise TypeError(f"memory cache: a key must not hold {value.nbytes} bytes")
        return key_of(value), value.strides
    return key_of(value)


def repeated(result: Result, device: DeviceSpec) -> Result:
    """A copy of *result* on the equal chip *device*; everything that a caller may modify is new."""
    again = object.__new__(type(result))
    facts = vars(again)
    facts.update(vars(result))
    facts["device"] = device
    facts["arguments"] = _copied(result.arguments)
    facts["outputs"] = dict(result.outputs)
    facts["earlier"] = tuple(repeated(each, device) for each in result.earlier)
    if result.cycles_on is not None:
        facts["cycles_on"] = result.cycles_on.written_for(device)
    if result.call is not None:
        arguments = _copied(result.call.arguments)
        facts["call"] = replace(result.call, device=device, arguments=arguments)
    if result.plan is not None and result.plan.workspaces:
        facts["plan"] = replace(result.plan, workspaces=dict(result.plan.workspaces))
    return again


def _copied(arguments: Mapping[str, object]) -> dict[str, object]:
    """*arguments*, copied except where they are immutable."""
    return {name: _own(value) for name, value in arguments.items()}


def _own(value: object) -> object:
    if isinstance(value, list | tuple):
        return type(value)(map(_own, value)) if type(value) in (list, tuple) else value
    return value.copy() if isinstance(value, np.ndarray) else value
