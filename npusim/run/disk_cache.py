"""Times stored in a folder, so that no process needs to time the same call again.

Entries are found by a digest of everything they depend on: the operator, the chip, the problem, the
L2, and the files of npusim itself. So no entry ever becomes wrong; the least recently used ones are
removed when there is no room. Programs are written anew, which is fast, and not checked again,
which is slow; values are always computed.

Sweeps store their rows, which are smaller and found at once.

Several processes may share a folder: files appear complete, under names that identify their
content. Damaged or foreign files are skipped, and foreign ones are left unchanged. Files are plain
data: reading them executes nothing (:mod:`npusim.trace.archive`).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from inspect import isfunction
from pathlib import Path
from types import FunctionType
from typing import Literal, TypeGuard

from pydantic import BaseModel, ConfigDict, ValidationError

from npusim.data.dtypes import DType
from npusim.data.errors import shown
from npusim.data.files import content, opened, reason, taken, write
from npusim.kernel.program import Block
from npusim.run.options import CACHE_VARIABLE
from npusim.trace import Trace
from npusim.trace.archive import Archive, DamageError, save
from npusim.trace.programs import Count, LaneRow, lane_row
from npusim.trace.times import arrays_of, lane_of, names_of

__all__ = ["MOST_BYTES", "StoreError", "Stored", "digest_of", "own_digest", "stored_in"]

MOST_BYTES = 1 << 30
"""Limit for all npusim files in a folder: some five thousand int8 products of 4096 cubed, of
200 KB."""
LOOKS = 64
"""A process measures the folder after writing this fraction of the limit."""
FREED = 8
"""Above the limit, this fraction is freed, so that a few processes stay below it."""
MOST_LINE_BYTES = 1 << 20
MARK = b"npusim times 1\n"
"""Beginning of every npusim file; the number is the version of the content."""
HEAD = "head"
NAME = re.compile(r"times-[0-9a-f]{64}\.npz|row-[0-9a-f]{64}\.json")
BUILT = frozenset((".so",))
SOURCES = frozenset((".py", ".c", ".h")) | BUILT
"""Files that times may depend on; chips are identified by their numbers."""


class StoreError(ValueError):
    """A folder cannot hold times."""


class Head(BaseModel):
    """Everything except the arrays."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    key: str
    clock_hz: Count
    cycles: Count
    gm_written_bytes: Count
    lanes: list[LaneRow]
    """Their programs are those of the blocks with these indices."""


def stored_in(folder: str | os.PathLike[str] | Literal[False] | None) -> Stored | None:
    """The times in *folder*, created if necessary; None uses the environment, False is none.

    Returns None if there is no folder. Raises TypeError for an invalid path, StoreError if it is
    not a folder, or cannot be read and written.
    """
    named = os.environ.get(CACHE_VARIABLE) or None if folder is None else folder
    if named is None or named is False:
        return None
    who = f"run: {'cache' if folder is not None else CACHE_VARIABLE}"
    try:
        path = Path(named)
    except TypeError:
        raise TypeError(
            f"{who} must be the path of a folder, not {shown(named)}; pass a string or a Path"
        ) from None
    if "\0" in str(path):
        raise StoreError(f"{who} must be a folder, not {named!r} with a null byte; name another")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"{who} must be a folder, not {named}: {reason(error)}; name another"
        ) from None
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise StoreError(f"{who} must be a folder that can be written, not {named}; name another")
    return Stored(path)


class Stored:
    """Times in a folder, with a limit on their bytes."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most_bytes = folder, most_bytes

    def get(
        self, key: Hashable, blocks: Callable[[], Sequence[Block]], make: Callable[[], Trace]
    ) -> Trace:
        """The entry for *key*, of *blocks*; otherwise the result of *make*, stored if possible.

        A full disk, or a deleted folder, only means that nothing is stored.
        """
        try:
            digest = digest_of(key)
        except TypeError:
            return make()
        path = self._folder / f"times-{digest}.npz"
        found = self._read(path, digest, blocks)
        if found is not None:
            with suppress(OSError):
                os.utime(path)  # last use
            return found
        made = make()
        with suppress(OSError, ValueError):
            self._write(path, digest, made, blocks())
        return made

    def line(self, digest: str) -> bytes | None:
        """The line that :meth:`add_line` stored under *digest*, or None."""
        path = self._line_at(digest)
        try:
            found = content(path, MOST_LINE_BYTES)
            if not found.startswith(MARK):
                return None
            os.utime(path)  # last use
        except OSError:
            return None
        return found.removeprefix(MARK)

    def add_line(self, digest: str, line: bytes) -> None:
        """Store *line* if possible."""
        with suppress(OSError, ValueError):
            self._put(self._line_at(digest), lambda new: new.write_bytes(MARK + line))

    def _line_at(self, digest: str) -> Path:
        return self._folder / f"row-{digest}.json"

    def _read(self, path: Path, digest: str, blocks: Callable[[], Sequence[Block]]) -> Trace | None:
        try:
            if not _is_ours(path):
                return None
            with Archive(path) as archive:
                head = Head.model_validate_json(archive.text(HEAD))
                archive.hold({HEAD, *names_of(len(head.lanes))})
                return _trace(head, archive, blocks()) if head.key == digest else None
        except (OSError, DamageError, ValidationError):
            return None

    def _write(self, path: Path, digest: str, trace: Trace, blocks: Sequence[Block]) -> None:
        """Write *trace* to *path*; raises OSError or ValueError on failure."""
        numbers = {block.core: number for number, block in enumerate(blocks)}
        head = {
            "key": digest,
            "clock_hz": trace.clock_hz,
            "cycles": trace.cycles,
            "gm_written_bytes": int(trace.gm_written_bytes),
            "lanes": [lane_row(lane, numbers[lane.cores[0]]) for lane in trace.lanes],
        }
        text, arrays = json.dumps(head, separators=(",", ":")).encode(), arrays_of(trace)
        self._put(path, lambda new: save(new, {HEAD: text}, arrays, mark=MARK))

    def _put(self, path: Path, fill: Callable[[Path], object]) -> None:
        """Let *fill* write a file at *path*, unless there is a foreign one, and make room."""
        if taken(path) is not None and not _is_ours(path):
            return
        nbytes = 0

        def fitting(new: Path) -> None:
            nonlocal nbytes
            fill(new)
            nbytes = new.stat().st_size
            if nbytes > self._most_bytes:
                raise StoreError("cache: times must fit into the folder")

        write(path, fitting, "cache", force=True)
        # Scanning a large folder is slow.
        unseen = _unseen_bytes.get(self._folder, self._most_bytes) + nbytes
        if unseen * LOOKS >= self._most_bytes:
            self._trim()
            unseen = 0
        _unseen_bytes[self._folder] = unseen

    def _trim(self) -> None:
        """Make room if necessary: the least recently used files are removed first."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        facts = entry.stat(follow_symlinks=False)
                        found.append((facts.st_mtime_ns, entry.name, facts.st_size))
        left = sum(nbytes for _, _, nbytes in found)
        if left <= self._most_bytes:
            return
        for _, name, nbytes in sorted(found):
            if left <= self._most_bytes - self._most_bytes // FREED:
                return
            # Another process may have removed it in the meantime.
            with suppress(FileNotFoundError):
                if _is_ours(self._folder / name):
                    (self._folder / name).unlink()
                    left -= nbytes


_unseen_bytes: dict[Path, int] = {}
"""Folder -> bytes that this process has written there since it measured the folder."""


def _is_ours(path: Path) -> bool:
    """Whether this module wrote the file at *path*, damaged or not."""
    try:
        with opened(path) as file:
            return file.read(len(MARK)) == MARK
    except OSError:
        return False


def _trace(head: Head, archive: Archive, blocks: Sequence[Block]) -> Trace:
    """The trace of *head*, whose cores run *blocks*; raises DamageError if it does not match."""
    by_core = {block.core: block for block in blocks}
    if sorted(core for row in head.lanes for core in row.cores) != sorted(by_core):
        raise DamageError("each core must have its times, once")
    lanes = []
    for number, row in enumerate(head.lanes):
        own = [by_core[core] for core in row.cores]
        alike = {(block.program, block.kind) for block in own}
        if alike != {(own[0].program, row.kind)} or len(row.groups) not in (0, len(own)):
            raise DamageError("the cores of a lane must run one program")
        lanes.append(lane_of(archive, number, row, own[0].program, head.cycles))
    trace = Trace(tuple(lanes), head.clock_hz, head.gm_written_bytes)
    if trace.cycles != head.cycles:
        raise DamageError("the last result must come in the last cycle")
    return trace


# ---- digests ----


def digest_of(key: Hashable) -> str:
    """A digest of *key* and of npusim itself; for keys see :mod:`npusim.run.memory_cache`.

    It is the same in every process. Raises TypeError for objects without such a digest.
    """
    found = sha256(own_digest())
    for piece in _pieces(key):
        found.update(len(piece).to_bytes(8, "little"))
        found.update(piece)
    return found.hexdigest()


def _pieces(value: object) -> Iterator[bytes]:
    """The parts of *value*, each preceded by the name of its type."""
    yield type(value).__qualname__.encode()
    if isinstance(value, tuple):
        yield str(len(value)).encode()
        for part in value:
            yield from _pieces(part)
    elif isinstance(value, bytes):
        yield value
    elif value is None or isinstance(value, str | int):
        yield str(value).encode()
    elif isinstance(value, DType):
        yield value.name.encode()
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _pieces(getattr(value, field.name))
    elif isinstance(value, type) or _is_own_function(value):
        yield f"{value.__module__}.{value.__qualname__}".encode()
    else:
        raise TypeError(
            f"cache: a key must be made of numbers, texts and names, not "
            f"{type(value).__qualname__}; time it anew"
        )


def _is_own_function(value: object) -> TypeGuard[FunctionType]:
    """Whether *value* is a function of npusim, identified by its name alone."""
    if not isfunction(value) or value.__module__.partition(".")[0] != __name__.partition(".")[0]:
        return False
    return vars(sys.modules[value.__module__]).get(value.__qualname__) is value


@cache
def own_digest(*, with_built: bool = True) -> bytes:
    """A digest of npusim as installed: its version and the contents of its files.

    Without *with_built*, of its sources alone, which are the same on every machine.
    """
    known = SOURCES if with_built else SOURCES - BUILT
    found = sha256(version("npusim").encode())
    above = Path(__file__).parents[1]
    for path in sorted(above.rglob("*")):
        if path.suffix in known and path.is_file():
            found.update(f"\0{path.relative_to(above).as_posix()}\0".encode())
            found.update(sha256(path.read_bytes()).digest())
    return found.digest()
