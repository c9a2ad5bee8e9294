"""The chips that come with npusim, one TOML file each, and loading a file of the user.

A chip of a what-if takes a shipped one and changes a number::

    extends = "ascend910b2"
    name = "my_chip"

    [gm]
    read_bytes_per_s = { value = 3.2e12, source = "twice the HBM", confidence = "assumed" }

or does without a file: `changed(load("Atlas A2"), {"gm.read_bytes_per_s": "x2"})`.
"""

from __future__ import annotations

import os
import stat
import tomllib
import unicodedata
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from npusim.data.errors import shown as in_a_line
from npusim.devices.aliases import ALIASES
from npusim.devices.names import begun, likely, normalised, quoted, visible, whole
from npusim.devices.problems import (
    Problem,
    Tree,
    dotted,
    explain,
    has_key,
    is_table,
    shown,
    split,
    wrong_keys,
)
from npusim.devices.schema import DeviceSpec
from npusim.devices.settings import SettingError, changed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.resources.abc import Traversable

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
    """A device does not exist, or its file does not describe one; a line for each problem."""


class Layer(NamedTuple):
    """One file of a chain of files that extend each other."""

    file: str
    tree: Tree


def names() -> tuple[str, ...]:
    """The names of the chips that ship with npusim, sorted."""
    return tuple(ALIASES)


def load(name: str | os.PathLike[str] | DeviceSpec) -> DeviceSpec:
    """Load the chip called *name*: a name, an alias, or the path of a TOML file.

    Names match without regard to case, blanks, dashes, the brand and the words for series and
    product. Of several with `/` between them, as documents list a family, the first counts. A
    string is a path when it ends in `.toml`, starts with `./`, `../`, `/` or `~`, or holds a `/`
    and is a file. Raises DeviceError where there is no such chip or its file does not describe one.

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
    if isinstance(name, os.PathLike):
        return _build(_layers(Path(name)))
    if _is_path(name, Path()):
        return _build(_layers(_path(name)))
    return _load_shipped(_find(name))


@cache
def _load_shipped(name: str) -> DeviceSpec:
    return _build(_layers(_shipped(name)))


# ---- names ----


def _is_path(name: str, folder: Path) -> bool:
    """Whether *name*, said of files in *folder*, is a path and not a name."""
    slashed = name.replace(os.sep, "/")
    if slashed.endswith(".toml") or slashed.startswith(("./", "../", "/", "~")):
        return True
    return "/" in slashed and os.path.isfile(folder / name)


def _path(name: str) -> Path:
    path = Path(name)
    try:
        return path.expanduser()
    except RuntimeError:
        return path  # there is no such home, and so no such file either


def _shipped(name: str) -> Traversable:
    return files(__name__) / f"{name}.toml"


@cache
def _known() -> dict[str, str]:
    """Every name and alias, as far as they count -> the name of its chip."""
    known = {normalised(name): name for name in names()}
    for name, aliases in ALIASES.items():
        known.update({normalised(alias): name for alias in aliases})
    return known


@cache
def spellings() -> tuple[str, ...]:
    """Every chip by its name and by what else its file says that it is called."""
    return tuple(each for name, aliases in ALIASES.items() for each in (name, *aliases))


@cache
def listing() -> str:
    """The chips in one line, each with what else it is called."""
    chips = []
    for name, aliases in ALIASES.items():
        others = [alias for alias in aliases if normalised(alias) != normalised(name)]
        more = f" ({', '.join(others)})" if others else ""
        chips.append(f"{name}{more}")
    return ", ".join(chips)


def _find(name: str, who: str = "devices") -> str:
    """Find the chip that *name* means; *who* begins the message when there is none."""
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
        "a file of your own is given by its path, which ends in .toml"
    )


# ---- files ----

FILE_BYTES = 1 << 18
"""Ten times as much as the longest file of a shipped chip."""
LINE_BYTES = 1 << 12
"""Less than Python's limit of 4300 digits a number; and the time of tomllib for a dotted key, which
grows with the square of its parts, stays short."""
ERROR_LETTERS = 300
"""tomllib's own words are short, but may hold a key of the file."""
DEPTH = 16
"""Tables and lists in each other; the schema has six."""
CHAIN = 16
"""Files that extend each other; the shipped ones are up to three."""


def _read(where: Traversable) -> Layer:
    """Read one file, without what it extends."""
    file = visible(where.name or str(where))
    who = f"devices: {file}"
    try:
        content = _content(where, who)
        tree = tomllib.loads(content.decode())
    except OSError as error:
        raise DeviceError(
            f"{who}: must be a file that can be read, but: {error.strerror}; "
            f"check the path {whole(str(where))}"
        ) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DeviceError(
            f"{who}: line {line}: must be UTF-8, not byte 0x{error.object[error.start]:02x}; "
            "save the file as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise DeviceError(
            f"{who}: must be TOML, but: {visible(str(error), ERROR_LETTERS)}; fix that place"
        ) from None
    except RecursionError:
        raise _too_deep(who) from None
    if not _is_shallow(tree, DEPTH):
        raise _too_deep(who)
    return Layer(file, tree)


def _content(where: Traversable, who: str) -> bytes:
    """The bytes of a regular file of a sane size: never of what blocks or does not end."""
    if not isinstance(where, Path):
        return where.read_bytes()
    try:
        found = where.stat()
    except ValueError:
        raise DeviceError(
            f"{who}: must be the path of a file, not {whole(str(where))}; correct the path"
        ) from None
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise DeviceError(
            f"{who}: must be a regular file, not a device, a pipe or a socket; "
            f"check the path {whole(str(where))}"
        )
    if found.st_size > FILE_BYTES:
        raise DeviceError(
            f"{who}: must be of at most {FILE_BYTES} bytes, as device files are, not of "
            f"{found.st_size}; check the path {whole(str(where))}"
        )
    with where.open("rb") as file:
        content = file.read(found.st_size)
    for number, line in enumerate(content.split(b"\n"), 1):
        if len(line) > LINE_BYTES:
            raise DeviceError(
                f"{who}: line {number}: must be of at most {LINE_BYTES} bytes, not of "
                f"{len(line)}; shorten or break it"
            )
    return content


def _too_deep(who: str) -> DeviceError:
    return DeviceError(
        f"{who}: must have at most {DEPTH} tables and lists in each other, as device files have, "
        "but has more; flatten it"
    )


def _is_shallow(node: object, depth: int) -> bool:
    if isinstance(node, dict | list):
        below = node.values() if isinstance(node, dict) else node
        return depth > 0 and all(_is_shallow(each, depth - 1) for each in below)
    return True


def _layers(where: Traversable) -> list[Layer]:
    """Read a file and the files it extends, its own layer first."""
    layers: list[Layer] = []
    seen: list[Traversable] = []
    step: Traversable | None = where
    while step is not None:
        step = _resolved(step) if isinstance(step, Path) else step
        layer = _read(step)
        for who_it_is in ("name", "aliases") if layers else ():
            layer.tree.pop(who_it_is, None)  # kin do not inherit it
        layers.append(layer)
        if step in seen or len(seen) == CHAIN:
            chain = " -> ".join(layer.file for layer in layers)
            must = "not lead back" if step in seen else f"lead through at most {CHAIN} files"
            raise DeviceError(
                f"devices: {layers[-2].file}: extends: must {must}, but {chain}; "
                "take the line out of one of them"
            )
        seen.append(step)
        step = _base(layer, step)
    return layers


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path  # links in a circle, say: reading it says what is wrong


def _base(layer: Layer, where: Traversable) -> Traversable | None:
    """Where the file is that *layer*, read from *where*, extends."""
    base = layer.tree.pop("extends", None)
    if base is None:
        return None
    who = f"devices: {layer.file}: extends"
    if not isinstance(base, str):
        raise DeviceError(f"{who}: must be a string, not {shown(base)}; put a name or a path there")
    # A path counts from the file that states it; a shipped file only ever states names.
    if isinstance(where, Path) and _is_path(base, where.parent):
        return where.parent / _path(base)
    return _shipped(_find(base, who))


# ---- the device ----


def _build(layers: Sequence[Layer]) -> DeviceSpec:
    """Make the device that *layers*, the outermost first, describe together."""
    tree: Tree = {}
    for layer in reversed(layers):
        _refuse([layer], wrong_keys(layer.tree))
        tree = _merge(tree, layer.tree)
    values, sources, problems = split(tree)
    spec = None
    try:
        spec = DeviceSpec.model_validate({**values, "sources": sources})
    except ValidationError as error:
        reported = {problem.key for problem in problems}
        problems += [problem for problem in explain(error) if problem.key not in reported]
    _refuse(layers, problems)
    assert spec is not None
    return spec


def _merge(base: Tree, over: Tree) -> Tree:
    """Lay *over* on *base* table by table; a number of *over* brings its own source."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if is_table(old) and is_table(value) else value
    return merged


def _refuse(layers: Sequence[Layer], problems: Sequence[Problem]) -> None:
    """Raise *problems*, each with the file that states its key, or else the outermost."""
    lines = []
    for problem in problems:
        stating = [layer for layer in layers if has_key(layer.tree, problem.key)]
        layer = layers[0] if problem.is_joint or not stating else stating[0]
        lines.append(f"devices: {layer.file}: {dotted(problem.key)}: {problem.text}")
    if lines:
        raise DeviceError("\n".join(lines))
