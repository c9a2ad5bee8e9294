"""Calls that were made before: found by all that was asked, without a look at the operator.

A call for its time alone depends on the operator, the chip, the arguments, the options and what the
launch finds on the chip. One that has all of these in common with an earlier one has its result in
common, too, and neither contract nor tiling is looked at again. No call with values is found so.
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
"""Of an array that has more, such as a table of pages, a call is not found again: to look at all of
it takes longer than to find out what depends on it."""


class Found(NamedTuple):
    """What a launch finds on the chip, as far as its time depends on it."""

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
    """What a call is found by; None where it computes values, or might do so."""
    if not isinstance(op, str) or not op.isidentifier():
        return None  # a kernel of a file, whose function may have looked at anything
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
        return None  # without a key it is made as if for the first time


def _is_bare(value: object) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_is_bare, value))
    return isinstance(value, TensorSpec)


def value_key(value: object) -> Hashable:
    """A key that only arguments of the same type and the same contents have.

    Raises TypeError for what has none, and for large arrays.
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
    """*result* once more, on *device*, which is as its own was; what a caller may write is new."""
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
    """*arguments* in which only what cannot be written to is the same."""
    return {name: _own(value) for name, value in arguments.items()}


def _own(value: object) -> object:
    if isinstance(value, list | tuple):
        return type(value)(map(_own, value)) if type(value) in (list, tuple) else value
    return value.copy() if isinstance(value, np.ndarray) else value
