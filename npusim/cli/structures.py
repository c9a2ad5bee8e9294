"""Structures of a kernel of C++ on the command line: files, or a word for each field."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npusim.ascendc.source import Parameter
from npusim.run.user_kernel import load

__all__ = ["structures"]

READERS: dict[str, Callable[[bytes], Any]] = {
    ".json": json.loads,
    ".toml": lambda data: tomllib.loads(data.decode()),
    ".bin": lambda data: np.frombuffer(data, np.uint8),
}
"""What a file of a structure is, by the end of its name."""


def structures(
    command: str,
    parameters: Sequence[Parameter],
    texts: Iterable[str],
    value_of: Callable[[str], object],
    makes: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """The structures among the NAME=VALUE of *texts*, by parameter, and the texts that are none.

    NAME is a parameter and VALUE a file, or NAME is a field, as in `tiling.rows=64`, whose value is
    what *value_of* makes of each of its elements; where something *makes* structures, VALUE may be
    FILE.py:FUNCTION. Raises ValueError.
    """
    names = {each.name for each in parameters}
    found: dict[str, Any] = {}
    rest, fields = [], []
    for text in texts:
        path, _, word = text.partition("=")
        name, *inner = path.split(".")
        if name not in names or not word:
            rest.append(text)
        elif inner:
            fields.append((name, inner, word))
        elif Path(word).suffix in READERS:
            found[name] = _read(command, name, Path(word))
        elif makes and Path(word.partition(":")[0]).suffix == ".py":
            found[name] = _made(command, name, word)
        else:
            rest.append(text)
    for name, inner, word in fields:
        *outer, last = inner
        at = found.setdefault(name, {})
        for each in outer:
            at = at.setdefault(each, {})
        values = [value_of(part) for part in word.rstrip(",").split(",")]
        at[last] = values if "," in word else values[0]
    return found, rest


def _made(command: str, name: str, word: str) -> object:
    """What the function of a file that *word* names returns."""
    made = load(word)()
    if not isinstance(made, Mapping | bytes | np.ndarray):
        raise ValueError(
            f"{command}: {name} must be made of a dictionary, bytes or an array, not "
            f"{type(made).__name__}; have {word} return one"
        )
    return made


def _read(command: str, name: str, file: Path) -> object:
    try:
        return READERS[file.suffix](file.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{command}: {name} must be a file of a structure, but {file} cannot be read: {error}; "
            f"correct it"
        ) from None
