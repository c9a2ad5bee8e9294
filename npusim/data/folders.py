"""Output folders of commands: written completely or not at all, and recognised before replacing."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from npusim.data.files import described, made_next_to, reason, taken

__all__ = ["FolderError", "Kind", "check", "write"]

Result = TypeVar("Result")


class FolderError(ValueError):
    """A folder cannot be written, or must not be overwritten."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of folder that a command writes, so that an earlier one can be recognised."""

    command: str
    record: str
    """A file in every such folder."""
    made: Callable[[Path], frozenset[str]]
    """The files that npusim wrote, relative to a folder; raises ValueError if it wrote none."""
    forced_by: str = "add --force"
    """How to allow replacing an earlier one."""


OF_INSIGHT = re.compile(r".*_mindstudio_insight_data\.db(-wal|-shm)?")
"""Files that MindStudio Insight leaves next to a file that it has opened, derived from that file
alone, so they are replaced with the folder (found by opening one with Ascend/msinsight's
server)."""
TRIES = 10
"""Attempts to replace a folder while other processes do the same."""


def check(folder: Path, force: bool, kind: Kind) -> None:
    """Refuse a *folder* that cannot or must not be written, before a command does its work.

    A folder with content may be replaced only with *force*, and only if everything in it was
    written by an earlier command of the same *kind*.
    """
    who = f"{kind.command}: the folder {folder}"
    try:
        mode = taken(folder)
        if mode is not None and not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            raise FolderError(f"{who} must be new or a folder, not {described(mode)}; name another")
        names = sorted(entry.name for entry in folder.iterdir()) if mode is not None else []
        target = folder.resolve()
        above = next(parent for parent in (*target.parents, target) if parent.exists())
    except OSError as error:
        raise _unwritable(folder, kind, error) from None
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        error_number = errno.EACCES if above.is_dir() else errno.ENOTDIR
        raise _unwritable(folder, kind, OSError(error_number, os.strerror(error_number)))
    if target == Path.cwd():
        raise FolderError(f"{who} must not be the current one; name one below it")
    if names and not force:
        raise _held(folder, names[0], kind)
    if names:
        _check_earlier(folder, target, kind)


def _held(folder: Path, name: str, kind: Kind) -> FolderError:
    return FolderError(
        f"{kind.command}: the folder {folder} must be new or empty, but holds {name}; "
        f"name another, or {kind.forced_by} to replace an earlier run"
    )


def _check_earlier(folder: Path, where: Path, kind: Kind) -> None:
    """Raise FolderError unless npusim wrote everything in *where*, which was *folder*."""
    who = f"{kind.command}: the folder {folder}"
    names = sorted(os.listdir(where))
    if kind.record not in names:
        raise FolderError(
            f"{who} must hold a {kind.record} to be replaced, but holds {names[0]}; name another"
        )
    try:
        known = kind.made(where)
    except ValueError:
        raise FolderError(
            f"{who} must be one that this version of npusim has written to be replaced, but its "
            f"{kind.record} does not say so; name another, or remove it yourself"
        ) from None
    above = {parent.as_posix() for name in known for parent in PurePosixPath(name).parents}
    for root, folders, files in os.walk(where):
        for name in sorted([*folders, *files]):
            path = Path(root, name)
            place, mode = path.relative_to(where).as_posix(), path.lstat().st_mode
            is_ours = place in above if stat.S_ISDIR(mode) else place in known
            is_ours |= stat.S_ISREG(mode) and OF_INSIGHT.fullmatch(name) is not None
            if not is_ours or not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                raise FolderError(
                    f"{who} must hold only what npusim wrote to be replaced, but holds {place}; "
                    f"move that away, or name another"
                )


def write(
    fill: Callable[[Path], Result], folder: Path, kind: Kind, *, force: bool = False
) -> Result:
    """Let *fill* write files to *folder*, replacing what *check* accepted; return its answer.

    It receives another, empty folder, which then replaces *folder*. If several processes write one
    new folder at once, one succeeds; the others raise FolderError.
    """
    target = folder.resolve()

    def ready(temporary: Path) -> tuple[Path, Result]:
        new = temporary / "new"
        new.mkdir()
        return new, fill(new)

    def put(made: tuple[Path, Result]) -> None:
        _put(made[0], folder, target, kind, force)

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return made_next_to(target, ready, put)[1]
    except OSError as error:
        raise _unwritable(folder, kind, error) from None


def _place(new: Path, folder: Path, target: Path, kind: Kind) -> None:
    """Rename *new* to *target*, where there is nothing, or an empty folder."""
    try:
        new.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        try:
            names = os.listdir(target)
        except FileNotFoundError:
            names = []  # moved away by another process
        raise _held(folder, min(names, default="something"), kind) from None


def _put(new: Path, folder: Path, target: Path, kind: Kind, force: bool) -> None:
    """Move *new* to *target*; with *force* it may replace an earlier folder of the same *kind*."""
    moved: Path | None = None
    try:
        for number in range(TRIES):
            try:
                _place(new, folder, target, kind)
                return
            except FolderError:
                if not force or number == TRIES - 1:
                    raise
            old = new.with_name(f"old{number}")
            try:
                target.rename(old)
            except FileNotFoundError:
                continue  # another process, which may replace it too, was faster
            moved = old
            # What is checked here is no longer reachable by its name.
            _check_earlier(folder, old, kind)
    except BaseException:
        if moved is not None:
            _put_back(moved, target)
        raise


def _put_back(old: Path, target: Path) -> None:
    if taken(target) is None:
        old.rename(target)
    else:
        # Another process has written there in the meantime: both remain.
        old.rename(old.parent.with_suffix(".old"))


def _unwritable(folder: Path, kind: Kind, error: OSError) -> FolderError:
    return FolderError(
        f"{kind.command}: the folder {folder} must be one that can be written, but: "
        f"{reason(error)}; name another"
    )
