"""The inference engines that serve models, one TOML file each, and loading of user files.

A custom engine extends a shipped one and changes what differs::

    extends = "vllm-ascend"
    name = "my_engine"

    [decode]
    launch_us = { value = 20, source = "timed on our host", confidence = "measured" }
"""

from __future__ import annotations

import os
from functools import cache
from importlib.resources import files
from pathlib import Path

from npusim.data.errors import shown
from npusim.devices.names import likely, quoted
from npusim.devices.sheets import Room, is_path
from npusim.engines.schema import Engine

__all__ = ["Engine", "EngineError", "load", "names"]


class EngineError(ValueError):
    """An engine does not exist, or its file is invalid; one line per problem."""


@cache
def names() -> tuple[str, ...]:
    """The engines that ship with npusim, sorted."""
    found = (each.name for each in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")))


def load(name: str | os.PathLike[str] | Engine) -> Engine:
    """Load the engine called *name*, or from the TOML file at that path.

    A string is a path if it ends in `.toml`, starts with `./`, `../`, `/` or `~`, or contains a `/`
    and names a file. Raises EngineError if there is no such engine or its file is invalid.

    >>> load("xlite").name
    'xlite'
    """
    if isinstance(name, Engine):
        return name
    if not isinstance(name, str | os.PathLike):
        raise TypeError(
            f"engines: an engine must be a name, a path or an Engine, not {shown(name)}; "
            f"pass for example 'vllm-ascend'"
        )
    if isinstance(name, os.PathLike) or is_path(name, Path()):
        return ROOM.load(name)
    return _load_shipped(_find(name, "engines"))


@cache
def _load_shipped(name: str) -> Engine:
    return ROOM.build(ROOM.shipped(name))


def _find(name: str, who: str) -> str:
    word = name.strip().lower().replace("_", "-").replace(" ", "-")
    if word in names():
        return word
    near = likely(word, names())
    hint = f"did you mean {near}? " if near else ""
    raise EngineError(
        f"{who}: no engine {quoted(name)}; {hint}known: {', '.join(names())}; for your own "
        f"file give its path, which ends in .toml"
    )


ROOM = Room("engines", Engine, EngineError, _find)
