"""The folder that a command leaves: numbers and pictures, written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from npusim.cli.screen import json_text
from npusim.data.tensor import Tensor
from npusim.run import Run
from npusim.trace import record
from npusim.trace.record import RECORD, VERSION

__all__ = ["FolderError", "check", "write", "write_with"]


class FolderError(ValueError):
    """A folder cannot be written, or must not be."""


def check(folder: Path, force: bool, command: str = "run", record: str = RECORD) -> None:
    """Refuse a *folder* that cannot be written or must not be, before a *command* takes its time.

    One that holds something may be replaced only if that is an earlier run, known by its *record*,
    and *force* says so.
    """
    who = f"{command}: the folder {folder}"
    try:
        names = sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise _unwritable(folder, command, error) from None
    target = folder.resolve()
    above = next(parent for parent in (*target.parents, target) if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        error_number = errno.EACCES if above.is_dir() else errno.ENOTDIR
        raise _unwritable(folder, command, OSError(error_number, os.strerror(error_number)))
    if target == Path.cwd():
        raise FolderError(f"{who} must not be the current one; name one below it")
    if names and not force:
        raise FolderError(
            f"{who} must be new or empty, but holds {names[0]}; "
            f"name another, or add --force to replace an earlier run"
        )
    if names and record not in names:
        raise FolderError(
            f"{who} must hold a {record} to be replaced, but holds {names[0]}; name another"
        )


def write(
    run: Run,
    folder: Path,
    typed: dict[str, list[str]],
    more: Callable[[Path], list[str]] = lambda _: [],
) -> list[str]:
    """Write *run* into *folder*, in place of what *check* let pass; returns the names of files.

    *typed* are the words of the command line that made its arguments, kept beside them. *more* may
    add files and returns their names.
    """
    return write_with(lambda new: _fill(run, new, typed) + more(new), folder)


def write_with(fill: Callable[[Path], list[str]], folder: Path, command: str = "run") -> list[str]:
    """Have *fill* write files into *folder*, in place of what *check* let pass; returns its answer.

    It is given another folder, new and empty, which then takes the place of *folder*.
    """
    target = folder.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as beside:
            new, old = Path(beside, "new"), Path(beside, "old")
            new.mkdir()
            names = fill(new)
            if target.exists():
                target.rename(old)
            try:
                new.rename(target)
            except OSError:
                if old.exists():
                    old.rename(target)
                raise
    except OSError as error:
        raise _unwritable(folder, command, error) from None
    return names


def _unwritable(folder: Path, command: str, error: OSError) -> FolderError:
    return FolderError(
        f"{command}: the folder {folder} must be one that can be written, but: {error.strerror}; "
        f"name another"
    )


def _fill(run: Run, folder: Path, typed: dict[str, list[str]]) -> list[str]:
    names = []
    for name, output in run.outputs.items():
        values = output.storage if isinstance(output, Tensor) else output
        if isinstance(values, np.ndarray):
            names.append(f"{name}.npy")
            np.save(folder / f"{name}.npy", values, allow_pickle=False)
    names.append(RECORD)
    facts = {"version": VERSION} | run.to_json() | {"typed": typed}
    (folder / RECORD).write_text(json_text(facts) + "\n", encoding="utf-8")
    names += record.write(folder, run.device, run.trace)
    if run.trace is not None:
        names += _draw(run, folder)
    return names


def _draw(run: Run, folder: Path) -> list[str]:
    # Loading matplotlib takes longer than a small run; only pictures need it.
    from matplotlib.figure import Figure

    from npusim.reports.pipes import pipes
    from npusim.reports.timeline import timeline

    names = []
    for name, picture in (("timeline.png", timeline), ("pipes.png", pipes)):
        figure = Figure((10, 5), layout="constrained")
        picture(run, ax=figure.subplots())
        figure.savefig(folder / name, dpi=100)
        names.append(name)
    return names
