"""The cells of a sweep: each is a call on a chip, with what distinguishes it from the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import sha256
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from npusim import devices, ops
from npusim.data.errors import OpError, shown
from npusim.data.files import content
from npusim.data.tensor import Tensor, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.run.call import find
from npusim.run.disk_cache import digest_of
from npusim.run.memory_cache import device_key, key_of
from npusim.run.options import Options
from npusim.run.result import without_values
from npusim.sweeps.errors import SweepError

__all__ = ["ALL", "Arguments", "Call", "Cell", "Chip", "Settings", "cells_of", "word"]

Arguments = Mapping[str, Any]
"""Parameter -> its argument, as for :func:`npusim.run`."""
Chip = str | os.PathLike[str] | DeviceSpec
Settings = Mapping[str, Any]
"""Key of a number of a chip -> its value for :func:`npusim.devices.changed`, or several."""

ALL = "all"
"""The word that stands for the vendor's choice and every other template."""
MOST_CELLS = 100_000
"""The most cells: more are a mistake, such as a size instead of a number of steps."""
MOST_SOURCE_BYTES = 1 << 24
"""The most bytes in the file of a custom kernel."""


@dataclass(frozen=True, slots=True)
class Call:
    """The task for a worker: an operator, its arguments, a chip without its sources, options."""

    op: str
    arguments: dict[str, Any]
    spec: DeviceSpec
    options: Options

    def key(self) -> str:
        """A digest of everything that the times depend on, except npusim itself.

        Raises TypeError for arguments that cannot be distinguished by their contents.
        """
        own = self.options
        state = own.l2, own.icache, own.every_core
        arguments = key_of(_frozen(self.arguments))
        return digest_of(
            (self.op, _source(self.op), arguments, device_key(self.spec), key_of(state))
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """One call of a sweep, or the reason why there is none."""

    device: str
    asked: str | None
    """The requested template; None follows the vendor's rules."""
    settings: dict[str, str | float]
    variables: dict[str, Any]
    arguments: dict[str, str]
    """Parameter -> its argument in words."""
    is_tried: bool
    """Whether it comes from "all", so that it may refuse a call that another template accepts."""
    call: Call | None
    refusal: str | None


def cells_of(
    op: str,
    call: Arguments | Callable[..., Arguments],
    over: Mapping[str, Sequence[object]],
    chips: Sequence[Chip],
    template: str | Sequence[str] | None,
    settings: Settings,
    options: Options,
) -> list[Cell]:
    """Every cell, in the order of the rows; see :func:`npusim.sweeps.sweep`."""
    operator = find(op)
    asked = _asked(operator, template)
    each_set = {key: _several(value) for key, value in settings.items()}
    many = prod(map(len, (*over.values(), *each_set.values())))
    count = many * len(chips) * len(asked)
    if not 0 < count <= MOST_CELLS:
        raise SweepError(
            f"sweep: it must have 1 to {MOST_CELLS} cells, not {count}; vary "
            f"{'less' if count else 'over one value at least'}"
        )
    ways = [dict(zip(each_set, way, strict=True)) for way in product(*each_set.values())]
    specs = _chips(chips, ways)
    calls = _calls(call, over)
    return [
        _cell(op, spec, name, tried, way, variables, made, options)
        for (way, spec), (name, tried) in product(specs, asked)
        for variables, made in calls
    ]


def _cell(
    op: str,
    spec: DeviceSpec | _Refused,
    asked: str | None,
    is_tried: bool,
    settings: dict[str, str | float],
    variables: dict[str, object],
    arguments: dict[str, object] | _Refused,
    options: Options,
) -> Cell:
    device = spec.device if isinstance(spec, _Refused) else spec.name
    words = {} if isinstance(arguments, _Refused) else {n: word(a) for n, a in arguments.items()}
    refused = next((each for each in (spec, arguments) if isinstance(each, _Refused)), None)
    call = None
    if not isinstance(spec, _Refused) and not isinstance(arguments, _Refused):
        own = arguments if asked is None else arguments | {"template": asked}
        call = Call(op, own, spec, options)
    refusal = refused.reason if refused else None
    return Cell(device, asked, settings, variables, words, is_tried, call, refusal)


# ---- differences between cells ----


@dataclass(frozen=True, slots=True)
class _Refused:
    """A cell that could not be created, and the reason."""

    reason: str
    device: str = ""


def _several(value: Any) -> Sequence[object]:
    is_one = isinstance(value, str | int | float)
    return (value,) if is_one else tuple(value)


def _asked(
    operator: ops.Operator, template: str | Sequence[str] | None
) -> list[tuple[str | None, bool]]:
    """The templates to request, None for the vendor's choice, and whether each is only tried."""
    if template is None:
        return [(None, False)]
    if template == ALL:
        return [(None, False), *((name, True) for name in operator.templates)]
    names = (template,) if isinstance(template, str) else tuple(template)
    for name in names:
        if name in operator.templates:
            continue
        if not operator.templates:
            raise SweepError(
                f"sweep: template must be left out for {operator.name}, which has one kernel, not "
                f"be {shown(name)}; leave it out"
            )
        near = get_close_matches(str(name), operator.templates, n=1)
        hint = f"did you mean {near[0]}?" if near else "use one of these, or all"
        raise SweepError(
            f"sweep: a template of {operator.name} must be one of "
            f"{', '.join(operator.templates)}, not {shown(name)}; {hint}"
        )
    return [(name, False) for name in dict.fromkeys(names)]


def _chips(
    chips: Sequence[Chip], ways: Sequence[dict[str, Any]]
) -> list[tuple[dict[str, Any], DeviceSpec | _Refused]]:
    """Every chip with every one of *ways* to set its numbers.

    Raises SettingError if no chip accepts the settings, DeviceError for an unknown chip.
    """
    specs: dict[str, DeviceSpec] = {}
    for spec in map(devices.load, chips):
        known = specs.setdefault(spec.name, spec)
        if device_key(known) != device_key(spec):
            raise SweepError(
                f"sweep: chips must have different names, but two are called {spec.name}; "
                f"rename one in its file"
            )
    found: list[tuple[dict[str, Any], DeviceSpec | _Refused]] = []
    for way in ways:
        made: list[DeviceSpec | _Refused] = []
        first: devices.SettingError | None = None
        for spec in specs.values():
            try:
                made.append(_bare(devices.changed(spec, way), spec.name))
            except devices.SettingError as error:
                made.append(_Refused(" ".join(str(error).split("\n")), spec.name))
                first = first or error
        if first is not None and all(isinstance(each, _Refused) for each in made):
            raise first
        found += ((way, each) for each in made)
    return found


def _bare(spec: DeviceSpec, name: str) -> DeviceSpec:
    """*spec* with its canonical name and without its sources, which do not affect times."""
    return spec.model_copy(update={"name": name, "sources": {}})


def _calls(
    call: Arguments | Callable[..., Arguments], over: Mapping[str, Sequence[object]]
) -> list[tuple[dict[str, object], dict[str, object] | _Refused]]:
    """The variables of every call with its arguments.

    Raises the first error of *call* if every call fails.
    """
    found: list[tuple[dict[str, Any], dict[str, Any] | _Refused]] = []
    first: Exception | None = None
    for values in product(*over.values()):
        variables = dict(zip(over, values, strict=True))
        try:
            made = call(**variables) if callable(call) else call
            found.append((variables, dict(made)))
        except (ValueError, TypeError, OpError) as error:
            found.append((variables, _Refused(str(error))))
            first = first or error
    if first is not None and all(isinstance(made, _Refused) for _, made in found):
        raise first
    return found


# ---- arguments as text and as keys ----


def word(value: object) -> str:
    """An argument in the syntax of `npusim run`, without its values.

    >>> word(TensorSpec((8, 16), "float16", "FRACTAL_NZ"))
    'spec:8x16:float16:layout=FRACTAL_NZ'
    >>> word(None), word(True), word((1, 2)), word("qint8")
    ('none', 'true', '1,2', 'qint8')
    """
    value = without_values(value)
    if isinstance(value, TensorSpec):
        shape = "x".join(map(str, value.shape)) or "scalar"
        layout = "" if value.layout == "ND" else f":layout={value.layout}"
        return f"spec:{shape}:{value.dtype}{layout}{':transposed=true' if value.transposed else ''}"
    if value is None or isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, tuple | list):
        is_tensors = any(isinstance(each, TensorSpec) for each in value)
        return (" " if is_tensors else ",").join(map(word, value))
    return str(value)


def _frozen(value: object) -> object:
    """*value* for :func:`npusim.run.memory_cache.key_of`: lists as tuples, tensors as parts."""
    if isinstance(value, Mapping):
        return {name: _frozen(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    return (value.spec, value.storage) if isinstance(value, Tensor) else value


def _source(op: str) -> bytes:
    """A digest of the file of a custom kernel; empty for an operator."""
    if ":" not in op:
        return b""
    return sha256(content(Path(op.rpartition(":")[0]), MOST_SOURCE_BYTES)).digest()
