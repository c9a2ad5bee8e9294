"""The chips that ship with npusim, one TOML file each, and loading of user files.

A hypothetical chip extends a shipped one and changes a number::

    extends = "ascend910b2"
    name = "my_chip"

    [gm]
    read_bytes_per_s = { value = 3.2e12, source = "twice the HBM", confidence = "assumed" }

or, without a file: `changed(load("Atlas A2"), {"gm.read_bytes_per_s": "x2"})`.
"""

from __future__ import annotations

import os
import unicodedata
from functools import cache
from pathlib import Path

from npusim.data.errors import shown as in_a_line
from npusim.devices.aliases import ALIASES
from npusim.devices.names import begun, likely, normalised, quoted
from npusim.devices.schema import DeviceSpec
from npusim.devices.settings import SettingError, changed
from npusim.devices.sheets import Room, is_path

__all__ = [
    "DeviceError",
    "SettingError",
    "changed",
    "listing",
    "load",
    "names",
    "spellings",
]


class DeviceError(ValueError):
    """A device does not exist, or its file is invalid; one line per problem."""


def names() -> tuple[str, ...]:
    """The names of the chips that ship with npusim, sorted."""
    return tuple(ALIASES)


def load(name: str | os.PathLike[str] | DeviceSpec) -> DeviceSpec:
    """Load the chip called *name*: a name, an alias, or the path of a TOML file.

    Names match without regard to case, blanks, dashes, the brand, and the words for series and
    product. Of several with `/` between them, as documents list a family, the first counts. A
    string is a path if it ends in `.toml`, starts with `./`, `../`, `/` or `~`, or contains a `/`
    and names a file. Raises DeviceError if there is no such chip or its file is invalid.

    >>> load("Atlas 300I Pro").name, load("Atlas A3 训练系列产品/Atlas A3 推理系列产品").name
    ('ascend310p3', 'ascend910_9391')
    """
    if isinstance(name, DeviceSpec):
        return name
    if not isinstance(name, str | os.PathLike):
        raise TypeError(
            f"devices: a device must be a name, a path or a DeviceSpec, not {in_a_line(name)}; "
            f"pass for example 'Atlas A2'"
        )
    if isinstance(name, os.PathLike) or is_path(name, Path()):
        return ROOM.load(name)
    return _load_shipped(_find(name))


@cache
def _load_shipped(name: str) -> DeviceSpec:
    return ROOM.build(ROOM.shipped(name))


# ---- names ----


@cache
def _known() -> dict[str, str]:
    """Every name and alias in normalised form -> the name of its chip."""
    known = {normalised(name): name for name in names()}
    for name, aliases in ALIASES.items():
        known.update({normalised(alias): name for alias in aliases})
    return known


@cache
def spellings() -> tuple[str, ...]:
    """Every chip by its name and the aliases in its file."""
    return tuple(each for name, aliases in ALIASES.items() for each in (name, *aliases))


@cache
def listing() -> str:
    """The chips in one line, each with its aliases."""
    chips = []
    for name, aliases in ALIASES.items():
        others = [alias for alias in aliases if normalised(alias) != normalised(name)]
        more = f" ({', '.join(others)})" if others else ""
        chips.append(f"{name}{more}")
    return ", ".join(chips)


def _find(name: str, who: str = "devices") -> str:
    """Find the chip called *name*; *who* begins the message if there is none."""
    known = _known()
    parts = [normalised(part) for part in unicodedata.normalize("NFKC", name).split("/")]
    if all(part in known for part in parts):
        chips = list(dict.fromkeys(known[part] for part in parts))
        if len(chips) == 1:
            return chips[0]
        series = {_load_shipped(chip).series for chip in chips}
        if len(series) > 1:
            raise DeviceError(
                f"{who}: the names of a list must be of one series, not of "
                f"{' and '.join(sorted(series))} as in {quoted(name)}; give one of them"
            )
        return chips[0]
    aliases = [alias for each in ALIASES.values() for alias in each]
    choices = begun(name, aliases)
    if len(choices) > 1:
        several = ", ".join(f"{alias} ({known[normalised(alias)]})" for alias in choices)
        raise DeviceError(
            f"{who}: {quoted(name)} must say which one is meant, of {several}; write all of it"
        )
    near = likely(name, names()) or likely(name, aliases)
    hint = f"did you mean {near}? " if near else ""
    raise DeviceError(
        f"{who}: no device {quoted(name)}; {hint}known: {listing()}; "
        "for your own file give its path, which ends in .toml"
    )


ROOM = Room("devices", DeviceSpec, DeviceError, _find)
