"""Runs on disk changed by hand, with the sums that they would have if npusim had written them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from npusim.trace.facts import file_digest, own_digest

Json = Any
Arrays = dict[str, np.ndarray]


def resealed(folder: Path, facts: dict[str, Json] | None = None) -> None:
    """Give `run.json` in *folder*, or *facts* in its place, the sums that fit."""
    facts = json.loads((folder / "run.json").read_text()) if facts is None else facts
    names = ("device.json", "trace.npz")
    sums = {name: file_digest(folder / name) for name in names if (folder / name).exists()}
    facts["sha256"] = sums | {"run.json": own_digest(facts)}
    (folder / "run.json").write_text(json.dumps(facts))


def retold(folder: Path, change: Callable[[dict[str, Json]], object]) -> None:
    """Let *change* loose on what `run.json` says."""
    facts = json.loads((folder / "run.json").read_text())
    change(facts)
    resealed(folder, facts)


def members(folder: Path) -> tuple[Json, Arrays]:
    """The text and the arrays of `trace.npz`."""
    with np.load(folder / "trace.npz") as found:
        arrays = dict(found)
    return json.loads(arrays.pop("programs").tobytes()), arrays


def replaced(folder: Path, tree: Json, arrays: Arrays) -> None:
    """Put *tree* and *arrays* into `trace.npz`."""
    text = np.frombuffer(json.dumps(tree).encode(), np.uint8)
    np.savez_compressed(folder / "trace.npz", programs=text, **arrays)
    resealed(folder)


def leaves(tree: Json, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to every value of *tree*, tables and lists included."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, child in children:
        yield (*above, key)
        if isinstance(child, dict | list):
            yield from leaves(child, (*above, key))


def put(tree: Json, way: tuple[str | int, ...], value: Json) -> None:
    """Put *value* where *way* leads in *tree*."""
    for key in way[:-1]:
        tree = tree[key]
    tree[way[-1]] = value
