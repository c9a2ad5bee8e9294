"""Run folders: a right one, of which bytes, members or numbers are exchanged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from outcome import Case
from typer.testing import CliRunner

from npusim.cli import app
from npusim.trace import record

__all__ = ["make", "run_folder"]

Rng = np.random.Generator
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 10**30, 1e308, float("nan"), "", "x" * 9000, "<img src=x>", "\x1b[2J", "$x$",
    [], [[]], {}, {"a": []}, "[red]",
)  # fmt: skip


def make(folder: Path) -> None:
    """Write the run that is to be damaged."""
    words = ["run", "npu_quantize", "-d", "ascend910b2", "-i", "input=randn:8x64:float16"]
    words += ["-i", "scales=ones:64:float32", "-a", "dtype=qint8", "-o", str(folder)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output


def run_folder(rng: Rng, right: Path, folder: Path) -> Case:
    """The run in *right*, damaged; it is read, and drawn as a page."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(right, folder)
    text = "; ".join(_damage(rng, folder) for _ in range(rng.integers(1, 3)))

    def read() -> None:
        record.read(folder)
        page = folder.parent / "page.html"
        page.unlink(missing_ok=True)
        result = CliRunner().invoke(app, ["report", str(folder), "-o", str(page)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code in (0, 1), result.output
        assert page.exists() == (result.exit_code == 0), result.output

    return Case(text, read)


def _damage(rng: Rng, folder: Path) -> str:
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".npz"))
    if not files:
        return "nothing is left"
    path = files[rng.integers(len(files))]
    data = path.read_bytes()
    match rng.integers(5):
        case 0:
            path.unlink()
            return f"{path.name} gone"
        case 1:
            end = int(rng.integers(len(data) + 1))
            path.write_bytes(data[:end])
            return f"{path.name} cut at {end}"
        case 2 | 3 if path.suffix == ".json":
            return _exchange(rng, path)
        case _ if data:
            at, byte = int(rng.integers(len(data))), int(rng.integers(256))
            path.write_bytes(data[:at] + bytes([byte]) + data[at + 1 :])
            return f"{path.name}[{at}] = {byte}"
        case _:
            return "nothing"


def _exchange(rng: Rng, path: Path) -> str:
    """Another value for one key of a JSON file, at any depth."""
    try:
        whole = json.loads(path.read_bytes())
    except ValueError:
        return "nothing"
    part, where = whole, path.name
    while isinstance(part, dict | list) and part:
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        key = keys[rng.integers(len(keys))]
        where += f"[{key!r}]"
        if not isinstance(part[key], dict | list) or not part[key] or rng.random() < 0.3:
            part[key] = VALUES[rng.integers(len(VALUES))]
            break
        part = part[key]
    path.write_text(json.dumps(whole), encoding="utf-8")
    return f"{where} changed"
