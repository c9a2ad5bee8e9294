"""The finished calls of a sweep, in a file from which the same sweep can continue.

The first line identifies the sweep and the npusim, and each further line is a finished call after
its digest: a modified line is refused. Lines are only appended; if the last one was cut short
because the process was killed, its call is repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from io import FileIO
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from npusim.data.files import content, opened, reason, taken, write
from npusim.run.disk_cache import own_digest
from npusim.sweeps.errors import SweepError
from npusim.sweeps.playing import Line, Outcome

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # pragma: no cover
    flock = None  # type: ignore[assignment]

__all__ = ["Journal", "journal_at", "remove"]

MARK = "npusim sweep 2"
"""The start of every journal; the number is the version of the format."""
MOST_BYTES = 1 << 30
"""The largest file: a hundred thousand calls of half a kilobyte are 50 MB."""
DIGEST_DIGITS = 16
"""Hexadecimal digits of the digest of a line, which detects damage, not forgery."""


class Head(BaseModel):
    """The first line."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    file: str
    npusim: str
    sweep: str


class Journal:
    """The file of one sweep, held open."""

    def __init__(self, path: Path, file: FileIO, done: dict[str, Outcome]) -> None:
        self.path, self.done = path, done
        """Key of a call -> its outcome."""
        self._file = file

    def add(self, key: str, outcome: Outcome) -> None:
        """Record the outcome of the call with *key*."""
        self.done[key] = outcome
        line = Line(key=key, outcome=outcome).model_dump_json().encode()
        try:
            self._file.write(_digest(line) + b" " + line + b"\n")
        except OSError as error:
            raise _unusable(self.path, error) from None


@contextmanager
def journal_at(path: Path, keys: Sequence[str]) -> Iterator[Journal]:
    """The file at *path* of the sweep whose calls have these *keys*; it is created if necessary.

    Raises SweepError, without changing the file, if it does not belong to the same sweep, and if
    another process is writing it.
    """
    head = Head(
        file=MARK,
        npusim=own_digest().hex(),
        sweep=sha256("\n".join(keys).encode()).hexdigest(),
    )
    if taken(path) is None:
        line = head.model_dump_json().encode() + b"\n"
        write(path, lambda new: new.write_bytes(line), "sweep")
    with ExitStack() as stack:
        try:
            opened(path).close()  # refuses anything but a regular file
            file = stack.enter_context(FileIO(path, "r+"))
            _lock(file, path)
            done, end = _read(path, head)
            file.truncate(end)
            file.seek(end)
        except OSError as error:
            raise _unusable(path, error) from None
        yield Journal(path, file, done)


def remove(path: Path) -> None:
    """Remove the file at *path*, whose sweep has finished."""
    with suppress(FileNotFoundError):
        path.unlink()


def _unusable(path: Path, error: OSError) -> SweepError:
    return SweepError(
        f"sweep: {path} must be a file that can be read and written, but: {reason(error)}; check "
        f"where it goes"
    )


def _lock(file: FileIO, path: Path) -> None:
    if flock is None:
        return
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        raise SweepError(
            f"sweep: {path} must be written by one process at a time, but another one is at it; "
            f"wait for it, or name another folder"
        ) from None


def _read(path: Path, head: Head) -> tuple[dict[str, Outcome], int]:
    """The finished calls, and the end of the last complete line, in bytes."""
    text = content(path, MOST_BYTES)
    end = text.rfind(b"\n") + 1
    first, *rest = text[:end].split(b"\n")
    try:
        found = Head.model_validate_json(first)
    except ValidationError:
        found = None
    if found is None or found.file != MARK:
        raise SweepError(
            f"sweep: {path} must be what an interrupted sweep has left, but is something else; "
            f"move it away, or name another folder"
        )
    if found.sweep != head.sweep:
        raise SweepError(
            f"sweep: {path} must be of this very sweep to go on from, but is of another one; "
            f"give the same words as then, name another folder, or remove it"
        )
    if found.npusim != head.npusim:
        raise SweepError(
            f"sweep: {path} must be of this npusim to go on from, but another one, whose times may "
            f"differ, has begun it; go on with that one, name another folder, or remove it"
        )
    return _done(path, rest[:-1]), end


def _done(path: Path, lines: Sequence[bytes]) -> dict[str, Outcome]:
    done = {}
    for number, line in enumerate(lines, 2):
        digest, _, written = line.partition(b" ")
        try:
            found = Line.model_validate_json(written) if digest == _digest(written) else None
        except ValidationError:
            found = None
        if found is None:
            raise SweepError(
                f"sweep: {path}: line {number} must be a call that is done, but is damaged; remove "
                f"the line, and it is done again"
            )
        done[found.key] = found.outcome
    return done


def _digest(line: bytes) -> bytes:
    return sha256(line).hexdigest()[:DIGEST_DIGITS].encode()
