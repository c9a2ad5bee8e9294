"""The chips that come with npusim, one TOML file each, and loading a file of one's own.

A chip of a what-if takes a shipped one and changes a number::

    extends = "ascend910b2"
    name = "my_chip"

    [gm]
    read_bytes_per_s = { value = 3.2e12, source = "twice the HBM", confidence = "assumed" }
"""

from __future__ import annotations

import os
import re
import tomllib
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from npusim.devices.problems import Problem, explain, has_key, is_table, split, wrong_keys
from npusim.devices.schema import DeviceSpec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.resources.abc import Traversable

__all__ = ["DeviceError", "load", "names"]


class DeviceError(ValueError):
    """A device does not exist, or its file does not describe one; a line for each problem."""


class Layer(NamedTuple):
    """One file of a chain of files that extend each other."""

    file: str
    tree: dict[str, Any]


@cache
def names() -> tuple[str, ...]:
    """The names of the chips that ship with npusim, sorted."""
    entries = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(name[: -len(".toml")] for name in entries if name.endswith(".toml")))


def load(name: str | os.PathLike[str] | DeviceSpec) -> DeviceSpec:
    """Load the chip called *name*: a name, an alias, or the path of a TOML file.

    A string is a path when it ends in `.toml` or holds a path separator. Names match without
    regard to case, and a space, `-` and `_` are the same.

    >>> load("Atlas 300I Pro").name
    'ascend310p3'
    """
    if isinstance(name, DeviceSpec):
        return name
    if not isinstance(name, str | os.PathLike):
        raise TypeError(f"devices: a device must be a name, a path or a DeviceSpec, not {name!r}")
    if isinstance(name, os.PathLike) or _is_path(name):
        return _build(_layers(Path(name)))
    return _load_shipped(_find(name))


@cache
def _load_shipped(name: str) -> DeviceSpec:
    return _build(_layers(_shipped(name)))


# ---- names ----


def _is_path(name: str) -> bool:
    return name.endswith(".toml") or "/" in name or os.sep in name


def _shipped(name: str) -> Traversable:
    return files(__name__) / f"{name}.toml"


def _normalised(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip()).casefold()


@cache
def _known() -> dict[str, str]:
    """Every name and alias, without case and separators -> the name of its chip."""
    known = {_normalised(name): name for name in names()}
    for name in names():
        for alias in _read(_shipped(name)).tree.get("aliases", ()):
            known[_normalised(alias)] = name
    return known


def _find(name: str, who: str = "devices") -> str:
    """Find the chip that *name* means; *who* begins the message when there is none."""
    known = _known()
    if _normalised(name) in known:
        return known[_normalised(name)]
    near = get_close_matches(_normalised(name), known, n=1, cutoff=0.8)
    hint = f"did you mean {known[near[0]]}? " if near else ""
    raise DeviceError(
        f"{who}: no device {name!r}; {hint}known: {', '.join(names())}; "
        "a file of your own is given by its path, which ends in .toml"
    )


# ---- files ----


def _read(where: Traversable) -> Layer:
    """Read one file, without what it extends."""
    who = f"devices: {where.name}"
    try:
        return Layer(where.name, tomllib.loads(where.read_bytes().decode()))
    except OSError as error:
        raise DeviceError(
            f"{who}: must be a file that can be read, but: {error.strerror}; "
            f"check the path {str(where)!r}"
        ) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DeviceError(
            f"{who}: line {line}: must be UTF-8, not byte 0x{error.object[error.start]:02x}; "
            "save the file as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise DeviceError(f"{who}: must be TOML, but: {error}; fix that place") from None


def _layers(where: Traversable) -> list[Layer]:
    """Read a file and the files it extends, its own layer first."""
    layers: list[Layer] = []
    seen: list[Traversable] = []
    step: Traversable | None = where
    while step is not None:
        step = step.resolve() if isinstance(step, Path) else step
        layer = _read(step)
        for who_it_is in ("name", "aliases") if layers else ():
            layer.tree.pop(who_it_is, None)  # kin do not inherit it
        layers.append(layer)
        if step in seen:
            chain = " -> ".join(layer.file for layer in layers)
            raise DeviceError(
                f"devices: {layers[-2].file}: extends: must not lead back, but {chain}; "
                "take the line out of one of them"
            )
        seen.append(step)
        step = _base(layer, step)
    return layers


def _base(layer: Layer, where: Traversable) -> Traversable | None:
    """Where the file is that *layer*, read from *where*, extends."""
    base = layer.tree.pop("extends", None)
    if base is None:
        return None
    who = f"devices: {layer.file}: extends"
    if not isinstance(base, str):
        raise DeviceError(f"{who}: must be a string, not {base!r}; put a name or a path there")
    # A path counts from the file that states it; a shipped file only ever states names.
    if isinstance(where, Path) and _is_path(base):
        return where.parent / base
    return _shipped(_find(base, who))


# ---- the device ----


def _build(layers: Sequence[Layer]) -> DeviceSpec:
    """Make the device that *layers*, the outermost first, describe together."""
    tree: dict[str, Any] = {}
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


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
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
        lines.append(f"devices: {layer.file}: {'.'.join(problem.key)}: {problem.text}")
    if lines:
        raise DeviceError("\n".join(lines))
