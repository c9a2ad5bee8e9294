"""Files: only regular ones are read or replaced, and each is written completely or not at all."""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TypeVar

__all__ = [
    "FileError",
    "check_place",
    "content",
    "described",
    "interruptible",
    "made_next_to",
    "opened",
    "put_new",
    "reason",
    "taken",
    "write",
]

Result = TypeVar("Result")

KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""File type -> its everyday name."""
PREFIX = ".npusim-"
"""Prefix of temporary folders."""
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Errors of file systems without hard links."""


class FileError(ValueError):
    """A file cannot be written, or must not be overwritten."""


def described(mode: int) -> str:
    """The name of the kind of file with the *mode* of a stat."""
    return KINDS[stat.S_IFMT(mode)]


# ---- reading ----


def opened(path: Path) -> BufferedReader:
    """Open the regular file at *path*, following links; raises OSError for anything else.

    A named pipe would block, and a device may never end.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {described(mode)}, not a regular file", str(path))
    return path.open("rb")


def content(path: Path, most_bytes: int) -> bytes:
    """The content of the regular file at *path*; raises OSError, also above *most_bytes*."""
    with opened(path) as file:
        found = file.read(most_bytes + 1)
    if len(found) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return found


# ---- writing ----


def reason(error: OSError) -> str:
    """Why a write failed, in words.

    numpy and others raise an error without a number if fewer bytes were written than requested.

    >>> reason(OSError("65536 requested and 1000 written"))
    'only part of it could be written, so the disk may be full'
    """
    return error.strerror or "only part of it could be written, so the disk may be full"


def taken(path: Path) -> int | None:
    """The mode of the entry at *path* itself, not following links; None if there is none."""
    try:
        return path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def check_place(path: Path, force: bool, command: str) -> None:
    """Refuse a *path* that cannot or must not be written, before a *command* does its work.

    Only a regular file is replaced, and only with *force*. Raises FileError.
    """
    try:
        _check_free(path, force, command)
    except OSError as error:
        raise _unwritable(path, command, error) from None
    target = path.resolve()
    above = next(parent for parent in target.parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise FileError(
            f"{command}: {path} must be in a folder that can be written, not in {above}; "
            f"name another"
        )


def _check_free(path: Path, force: bool, command: str) -> None:
    mode = taken(path)
    if mode is None:
        return
    if stat.S_ISDIR(mode):
        raise FileError(f"{command}: {path} must be a file, not a folder; name a file in it")
    if not stat.S_ISREG(mode):
        raise FileError(
            f"{command}: {path} must be a new file or a regular one, not {described(mode)}; "
            f"name another"
        )
    if not force:
        raise FileError(
            f"{command}: {path} must be a new file, but there is one; "
            f"name another, or add --force to replace it"
        )


def write(path: Path, fill: Callable[[Path], object], command: str, *, force: bool = False) -> None:
    """Let *fill* write a temporary file next to *path*, and move it there when complete.

    If several processes write one new file at once, one succeeds. Raises FileError.
    """
    target = path.parent.resolve() / path.name

    def ready(folder: Path) -> Path:
        new = folder / "new"
        fill(new)
        return new

    def put(new: Path) -> None:
        _check_free(path, force, command)
        if force:
            new.replace(target)
        else:
            put_new(new, target)

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made_next_to(target, ready, put)
    except FileExistsError:
        # It was created between the check and the link.
        _check_free(path, force, command)
        raise
    except OSError as error:
        raise _unwritable(path, command, error) from None


def put_new(new: Path, target: Path) -> None:
    """Rename *new*, a file or a folder, to *target*; raises OSError if that exists."""
    if new.is_dir():
        new.rename(target)  # replaces nothing but an empty folder
        return
    try:
        target.hardlink_to(new)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with target.open("xb"):
            pass
        new.replace(target)


def _unwritable(path: Path, command: str, error: OSError) -> FileError:
    return FileError(
        f"{command}: {path} must be a file that can be written, but: {reason(error)}; name another"
    )


def made_next_to(
    target: Path, fill: Callable[[Path], Result], put: Callable[[Result], None]
) -> Result:
    """Let *fill* write to a folder next to *target*, and *put* move the result into place.

    The folder is removed in any case: a signal that ends the process waits for that, and for *put*,
    which is not interrupted.
    """
    with _held_back(("SIGINT", "SIGTERM", "SIGHUP")) as ending:
        with TemporaryDirectory(prefix=PREFIX, dir=target.parent) as temporary:
            with ending.let_through():
                made = fill(Path(temporary))
            put(made)
        return made


# ---- signals ----


@contextmanager
def interruptible() -> Iterator[None]:
    """Let signals that end a process unwind the context, and exit with 128 plus their number.

    A process that just dies leaves files, workers, or a terminal without a cursor behind.
    """
    with _held_back(("SIGTERM", "SIGHUP")) as ending:
        with suppress(_EndedError), ending.let_through():
            yield
        if ending.came is not None:
            # The exit code that shells use.
            number, ending.came = ending.came, None
            sys.exit(128 + number)


class _EndedError(BaseException):
    """A signal arrived that ends the process."""


class _Ending:
    """Records a signal, and ends what may be interrupted."""

    def __init__(self) -> None:
        self.came: int | None = None
        self._passes = False

    def __call__(self, number: int, _: FrameType | None) -> None:
        self.came = number
        if self._passes:
            self._passes = False
            raise _EndedError

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Let a signal interrupt the context; one that came before, or got lost, ends it too."""
        self._passes = True
        try:
            yield
        finally:
            self._passes = False
        if self.came is not None:
            raise _EndedError


@contextmanager
def _held_back(names: Sequence[str]) -> Iterator[_Ending]:
    """Hold back signals that would end the process; afterwards they act as before."""
    ending = _Ending()
    before = {}
    # Python runs handlers in its main thread, and they can only be set there.
    if threading.current_thread() is threading.main_thread():
        usual = (signal.SIG_DFL, signal.default_int_handler)
        # A system may lack some of them.
        for number in (each for each in signal.Signals if each.name in names):
            handler = signal.getsignal(number)
            if handler in usual or isinstance(handler, _Ending):
                before[number] = signal.signal(number, ending)
    try:
        yield ending
    except _EndedError:
        pass  # the signal itself follows
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if ending.came is not None:
            signal.raise_signal(ending.came)
