"""One file that a command leaves: written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

__all__ = ["FileError", "check", "write"]


class FileError(ValueError):
    """A file cannot be written, or must not be."""


def check(path: Path, force: bool, command: str) -> None:
    """Refuse a *path* that cannot be written or must not be, before a *command* takes its time."""
    if path.is_dir():
        raise FileError(f"{command}: {path} must be a file, not a folder; name a file in it")
    if path.exists() and not force:
        raise FileError(
            f"{command}: {path} must be a new file, but there is one; "
            f"name another, or add --force to replace it"
        )
    above = path.resolve().parent
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise FileError(
            f"{command}: {path} must be in a folder that can be written, not in {above}; "
            f"name another"
        )


def write(path: Path, data: bytes, command: str) -> None:
    """Write *data* beside *path* and then put it in its place."""
    target = path.resolve()
    try:
        with NamedTemporaryFile(prefix=f".{target.name}-", dir=target.parent, delete=False) as new:
            try:
                new.write(data)
                new.flush()
                # Temporary files are for their owner only; this one is like any other.
                mask = os.umask(0)
                os.umask(mask)
                os.chmod(new.name, 0o666 & ~mask)
                os.replace(new.name, target)
            except OSError:
                os.unlink(new.name)
                raise
    except OSError as error:
        raise FileError(
            f"{command}: {path} must be a file that can be written, but: {error.strerror}; "
            f"name another"
        ) from None
