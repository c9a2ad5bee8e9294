"""TOML files of numbers with their sources, which may extend each other.

A user file extends a shipped one and changes a number::

    extends = "ascend910b2"
    name = "my_chip"

    [gm]
    read_bytes_per_s = { value = 3.2e12, source = "twice the HBM", confidence = "assumed" }
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from pydantic import ValidationError

from npusim.devices.names import visible, whole
from npusim.devices.parts import Part
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

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

__all__ = ["Room", "is_path"]

Spec = TypeVar("Spec", bound=Part)

FILE_BYTES = 1 << 18
"""Ten times the longest shipped file."""
LINE_BYTES = 1 << 12
"""Below Python's limit of 4300 digits per number; also limits the time of tomllib for a dotted key,
which grows with the square of its parts."""
ERROR_LETTERS = 300
"""tomllib's own messages are short, but may contain a key of the file."""
DEPTH = 16
"""Nesting of tables and lists; the schemas have six levels."""
CHAIN = 16
"""Files that extend each other; shipped ones are up to three."""


class Layer(NamedTuple):
    """One file of a chain of files that extend each other."""

    file: str
    tree: Tree


@dataclass(frozen=True, slots=True)
class Room(Generic[Spec]):
    """A package with the files of one schema."""

    who: str
    """The package, with which every message begins."""
    schema: type[Spec]
    error: type[ValueError]
    find: Callable[[str, str], str]
    """The shipped file for a name; raises *error*, with a message that begins with the second."""

    def load(self, name: str | os.PathLike[str]) -> Spec:
        """Load the file called *name*, a path or a shipped one; raises the error."""
        if isinstance(name, os.PathLike):
            return self.build(Path(name))
        return self.build(_path(name) if is_path(name, Path()) else self.shipped(name))

    def shipped(self, name: str, who: str = "") -> Traversable:
        """The shipped file called *name*."""
        return files(f"npusim.{self.who}") / f"{self.find(name, who or self.who)}.toml"

    def build(self, where: Traversable) -> Spec:
        """Build the object described by the file at *where* and those that it extends."""
        layers = self._layers(where)
        tree: Tree = {}
        for layer in reversed(layers):
            self._refuse([layer], wrong_keys(layer.tree))
            tree = _merge(tree, layer.tree)
        values, sources, problems = split(tree, self.schema)
        spec = None
        try:
            spec = self.schema.model_validate({**values, "sources": sources})
        except ValidationError as error:
            reported = {problem.key for problem in problems}
            problems += [
                problem for problem in explain(error, self.schema) if problem.key not in reported
            ]
        self._refuse(layers, problems)
        assert spec is not None
        return spec

    def _read(self, where: Traversable) -> Layer:
        """Read one file, without those that it extends."""
        file = visible(where.name or str(where))
        who = f"{self.who}: {file}"
        try:
            content = self._content(where, who)
            tree = tomllib.loads(content.decode())
        except OSError as error:
            raise self.error(
                f"{who}: must be a file that can be read, but: {error.strerror}; "
                f"check the path {whole(str(where))}"
            ) from None
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise self.error(
                f"{who}: line {line}: must be UTF-8, not byte 0x{error.object[error.start]:02x}; "
                "save the file as UTF-8"
            ) from None
        except tomllib.TOMLDecodeError as error:
            raise self.error(
                f"{who}: must be TOML, but: {visible(str(error), ERROR_LETTERS)}; fix that place"
            ) from None
        except RecursionError:
            raise self._too_deep(who) from None
        if not _is_shallow(tree, DEPTH):
            raise self._too_deep(who)
        return Layer(file, tree)

    def _content(self, where: Traversable, who: str) -> bytes:
        """The bytes of a regular file of a sane size; nothing that blocks or does not end."""
        if not isinstance(where, Path):
            return where.read_bytes()
        try:
            found = where.stat()
        except ValueError:
            raise self.error(
                f"{who}: must be the path of a file, not {whole(str(where))}; correct the path"
            ) from None
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            raise self.error(
                f"{who}: must be a regular file, not a device, a pipe or a socket; "
                f"check the path {whole(str(where))}"
            )
        if found.st_size > FILE_BYTES:
            raise self.error(
                f"{who}: must be of at most {FILE_BYTES} bytes, as files of a "
                f"{self.schema.thing} are, not of {found.st_size}; "
                f"check the path {whole(str(where))}"
            )
        with where.open("rb") as file:
            content = file.read(found.st_size)
        for number, line in enumerate(content.split(b"\n"), 1):
            if len(line) > LINE_BYTES:
                raise self.error(
                    f"{who}: line {number}: must be of at most {LINE_BYTES} bytes, not of "
                    f"{len(line)}; shorten or break it"
                )
        return content

    def _too_deep(self, who: str) -> ValueError:
        return self.error(
            f"{who}: must have at most {DEPTH} tables and lists in each other, as files of a "
            f"{self.schema.thing} have, but has more; flatten it"
        )

    def _layers(self, where: Traversable) -> list[Layer]:
        """Read a file and the files it extends, starting with its own layer."""
        layers: list[Layer] = []
        seen: list[Traversable] = []
        step: Traversable | None = where
        while step is not None:
            step = _resolved(step) if isinstance(step, Path) else step
            layer = self._read(step)
            for who_it_is in ("name", "aliases") if layers else ():
                layer.tree.pop(who_it_is, None)  # not inherited by files that extend it
            layers.append(layer)
            if step in seen or len(seen) == CHAIN:
                chain = " -> ".join(layer.file for layer in layers)
                must = "not lead back" if step in seen else f"lead through at most {CHAIN} files"
                raise self.error(
                    f"{self.who}: {layers[-2].file}: extends: must {must}, but {chain}; "
                    "take the line out of one of them"
                )
            seen.append(step)
            step = self._base(layer, step)
        return layers

    def _base(self, layer: Layer, where: Traversable) -> Traversable | None:
        """The file that *layer*, read from *where*, extends."""
        base = layer.tree.pop("extends", None)
        if base is None:
            return None
        who = f"{self.who}: {layer.file}: extends"
        if not isinstance(base, str):
            raise self.error(
                f"{who}: must be a string, not {shown(base)}; put a name or a path there"
            )
        # A path is relative to the file that contains it; shipped files contain names only.
        if isinstance(where, Path) and is_path(base, where.parent):
            return where.parent / _path(base)
        return self.shipped(base, who)

    def _refuse(self, layers: Sequence[Layer], problems: Sequence[Problem]) -> None:
        """Raise *problems*, each with the file that has its key, or else the outermost one."""
        lines = []
        for problem in problems:
            stating = [layer for layer in layers if has_key(layer.tree, problem.key)]
            layer = layers[0] if problem.is_joint or not stating else stating[0]
            lines.append(f"{self.who}: {layer.file}: {dotted(problem.key)}: {problem.text}")
        if lines:
            raise self.error("\n".join(lines))


def is_path(name: str, folder: Path) -> bool:
    """Whether *name*, relative to *folder*, is a path rather than a name."""
    slashed = name.replace(os.sep, "/")
    if slashed.endswith(".toml") or slashed.startswith(("./", "../", "/", "~")):
        return True
    return "/" in slashed and os.path.isfile(folder / name)


def _path(name: str) -> Path:
    path = Path(name)
    try:
        return path.expanduser()
    except RuntimeError:
        return path  # there is no such home, and so no such file


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path  # such as a cycle of links: reading it gives the error


def _is_shallow(node: object, depth: int) -> bool:
    if isinstance(node, dict | list):
        below = node.values() if isinstance(node, dict) else node
        return depth > 0 and all(_is_shallow(each, depth - 1) for each in below)
    return True


def _merge(base: Tree, over: Tree) -> Tree:
    """Overlay *over* on *base* table by table; a number of *over* has its own source."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if is_table(old) and is_table(value) else value
    return merged
