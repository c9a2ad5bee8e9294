"""A chip with some of its numbers changed, for what-ifs without a new file.

.. code-block:: text

    gm.read_bytes_per_s=x2          a factor
    gm.read_bytes_per_s=3.2e12      a number, in the unit of device files
    gm.read_bytes_per_s=3.2TB/s     a number with that unit, or a multiple of it

Changed numbers must be in the same ranges as in a device file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from fractions import Fraction

from pydantic import ValidationError

from npusim.data.errors import shown
from npusim.devices.names import NAME_LETTERS, quoted
from npusim.devices.problems import Tree, dotted, ends, explain, range_at
from npusim.devices.ranges import MISTAKEN, Within, written
from npusim.devices.schema import DeviceSpec, Source

__all__ = ["SettingError", "changed"]

MARK = " (changed)"
"""Suffix of the name of a chip whose numbers differ from its file."""
NUMBER = r"[+-]?[0-9][0-9_]{0,40}(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,3})?"
MOST_NEAR = 4
"""Keys that a message suggests for an unknown one."""


class SettingError(ValueError):
    """A number of a chip cannot be changed this way; one line per problem."""


def changed(spec: DeviceSpec, settings: Mapping[str, str | float]) -> DeviceSpec:
    """*spec* with *settings*: the dotted key of a number -> a number, or a text as above.

    It has the same name with " (changed)" appended, and no aliases; the source of each changed
    number includes the previous value. Raises SettingError, with one line per problem.

    >>> from npusim import devices
    >>> twice = changed(devices.load("Atlas A2"), {"gm.read_bytes_per_s": "x2"})
    >>> twice.name, twice.gm.read_bytes_per_s / devices.load("Atlas A2").gm.read_bytes_per_s
    ('ascend910b2 (changed)', 2.0)
    """
    if not settings:
        return spec
    tree = spec.model_dump(exclude={"sources"})
    numbers = _numbers(tree)
    sources = {key: source for key, source in spec.sources.items() if key in numbers}
    for key, value in settings.items():
        if key not in numbers:
            raise SettingError(_unknown(key, numbers, spec.name))
        _put(tree, key, _value(key, value, numbers[key]))
        text = f"set to {value} for a what-if, {written(numbers[key])} before"
        sources[key] = Source(text, "assumed")
    name = spec.name.removesuffix(MARK)[: NAME_LETTERS - len(MARK)].rstrip() + MARK
    try:
        return DeviceSpec.model_validate(tree | {"name": name, "aliases": {}, "sources": sources})
    except ValidationError as error:
        lines = (f"set: {dotted(problem.key)} {problem.text}" for problem in explain(error))
        raise SettingError("\n".join(lines)) from None


def _numbers(tree: dict[str, object]) -> dict[str, int | float]:
    """The dotted key of every number of the chip -> the number."""
    return {
        ".".join(key): value
        for key, value in ends(tree)
        if value is not None and range_at(key) is not None
    }


def _put(tree: Tree, key: str, value: float) -> None:
    *above, last = key.split(".")
    for name in above:
        tree = tree[name]
    tree[last] = value


# ---- values ----


def _value(key: str, value: object, before: float) -> int | float:
    """The result of applying *value* to *before*; its range is checked later."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    within = range_at(tuple(key.split(".")))
    assert within is not None
    text = value if isinstance(value, str) else ""
    factor = re.fullmatch(rf"[xX]({NUMBER})", text)
    if factor:
        return _plain(_exact(factor[1]) * Fraction(before))
    number = re.fullmatch(rf"({NUMBER})\s*(\D.*)?", text)
    if number is None:
        raise SettingError(
            f"set: {key} must be a factor such as x2, or a number of {within.unit}, not "
            f"{shown(value)}; write for example {key}={written(before)}"
        )
    units = {within.unit: 1.0, **MISTAKEN.get(within.unit, {})}
    unit = number[2] or within.unit
    if unit not in units:
        raise SettingError(_wrong_unit(key, unit, units, within, before))
    return _plain(_exact(number[1]) * Fraction(units[unit]))


def _exact(number: str) -> Fraction:
    return Fraction(number.replace("_", ""))


def _plain(exact: Fraction) -> int | float:
    """An integer as such; otherwise the nearest float, or infinity, which no range contains."""
    if exact.denominator == 1:
        return exact.numerator
    try:
        return float(exact)
    except OverflowError:
        return float("inf")


# ---- messages ----


def _wrong_unit(key: str, unit: str, units: Collection[str], within: Within, before: float) -> str:
    # A unit with the same letters may be a million times as much, as TB/s and B/s.
    alike = {each.lower(): each for each in units}.get(unit.lower())
    *first, last = units
    known = f"{', '.join(first)} or {last}" if first else last
    example = f"write for example {key}={written(before)}{within.unit}"
    hint = f"did you mean {alike}?" if alike else example
    return f"set: {key} must be in {known}, not in {quoted(unit)}; {hint}"


def _unknown(key: str, numbers: Collection[str], name: str) -> str:
    """The problem with *key*, which is not a number of the chip called *name*."""
    below = [each for each in numbers if key and each.startswith(key)]
    ending = [each for each in numbers if each.rpartition(".")[2] == key.rpartition(".")[2]]
    near = below or ending or get_close_matches(key, numbers, n=1)
    meant = f"did you mean {' or '.join(near[:MOST_NEAR])}?" if near else "take one of those"
    return (
        f"set: a key must name a number that `npusim devices show` lists for {name}, not "
        f"{quoted(key)}; {meant}"
    )
