"""Times in a folder, for sweeps that begin anew: what any process has timed is read, not timed.

What is there is found by a digest of all that it depends on: the operator, the chip, the problem,
the L2, and npusim itself, file by file. So nothing there ever becomes wrong; what has not been used
for longest goes when there is no room. Programs are written anew, which is quick, and not checked
again, which is not; values are computed every time.

Sweeps store their rows, which say less and are found at once.

Several processes may use one folder: files appear whole, under names that say what is in them.
What is damaged, or no file of ours, is passed over, and what is not ours is left as it is. Files
are plain data: reading them runs nothing (:mod:`npusim.trace.archive`).
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
"""All files of ours in a folder have at most so many: some five thousand int8 products of 4096
cubed, of 200 KB."""
LOOKS = 64
"""A process looks how much there is when it has written such a part of that."""
FREED = 8
"""Where it is too much, such a part is made free, so that a few processes stay below it."""
MOST_LINE_BYTES = 1 << 20
MARK = b"npusim times 1\n"
"""Begins every file of ours; the number is that of what follows."""
HEAD = "head"
NAME = re.compile(r"times-[0-9a-f]{64}\.npz|row-[0-9a-f]{64}\.json")
BUILT = frozenset((".so",))
SOURCES = frozenset((".py", ".c", ".h")) | BUILT
"""Files on whose contents times may depend; chips are identified by their numbers."""


class StoreError(ValueError):
    """A folder cannot hold times."""


class Head(BaseModel):
    """All but the arrays."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    key: str
    clock_hz: Count
    cycles: Count
    gm_written_bytes: Count
    lanes: list[LaneRow]
    """Their programs are those of the blocks with these numbers."""


def stored_in(folder: str | os.PathLike[str] | Literal[False] | None) -> Stored | None:
    """The times in *folder*, which is made if need be; None asks the environment, False is none.

    None comes back where that names none either. Raises TypeError for what is no path, StoreError
    for what is no folder, or cannot be read and written.
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
    """Times in a folder, at most so many bytes of them."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._most_bytes = folder, most_bytes

    def get(
        self, key: Hashable, blocks: Callable[[], Sequence[Block]], make: Callable[[], Trace]
    ) -> Trace:
        """What is there under *key*, of *blocks*; else what *make* returns, stored if it can be.

        A disk that is full, or a folder that has gone, costs no more than that it is not stored.
        """
        try:
            digest = digest_of(key)
        except TypeError:
            return make()
        path = self._folder / f"times-{digest}.npz"
        found = self._read(path, digest, blocks)
        if found is not None:
            with suppress(OSError):
                os.utime(path)  # used last
            return found
        made = make()
        with suppress(OSError, ValueError):
            self._write(path, digest, made, blocks())
        return made

    def line(self, digest: str) -> bytes | None:
        """What :meth:`add_line` has stored under *digest*; None where nothing is."""
        path = self._line_at(digest)
        try:
            found = content(path, MOST_LINE_BYTES)
            if not found.startswith(MARK):
                return None
            os.utime(path)  # used last
        except OSError:
            return None
        return found.removeprefix(MARK)

    def add_line(self, digest: str, line: bytes) -> None:
        """Store *line* if it can be."""
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
        """Put *trace* at *path*; raises OSError or ValueError where that cannot be."""
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
        """Have *fill* write a file at *path*, unless one of others is there, and make room."""
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
        # To look through a folder takes long where there is much in it.
        unseen = _unseen_bytes.get(self._folder, self._most_bytes) + nbytes
        if unseen * LOOKS >= self._most_bytes:
            self._trim()
            unseen = 0
        _unseen_bytes[self._folder] = unseen

    def _trim(self) -> None:
        """Make room where there is too much: files not used for longest are removed first."""
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
            # Another process may have removed it meanwhile.
            with suppress(FileNotFoundError):
                if _is_ours(self._folder / name):
                    (self._folder / name).unlink()
                    left -= nbytes


_unseen_bytes: dict[Path, int] = {}
"""Folder -> what this process has written there since it looked how much there is."""


def _is_ours(path: Path) -> bool:
    """Whether *path* is a file that this module wrote, be it damaged since."""
    try:
        with opened(path) as file:
            return file.read(len(MARK)) == MARK
    except OSError:
        return False


def _trace(head: Head, archive: Archive, blocks: Sequence[Block]) -> Trace:
    """The trace of *head*, whose cores run *blocks*; raises DamageError for what is of others."""
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


# ---- what it is found by ----


def digest_of(key: Hashable) -> str:
    """A digest of *key* and of npusim itself; for keys see :mod:`npusim.run.memory_cache`.

    It is the same in every process. Raises TypeError for what has no such digest.
    """
    found = sha256(own_digest())
    for piece in _pieces(key):
        found.update(len(piece).to_bytes(8, "little"))
        found.update(piece)
    return found.hexdigest()


def _pieces(value: object) -> Iterator[bytes]:
    """The parts of *value*, each behind the name of its type."""
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
    """Whether *value* is a function of npusim that its name alone identifies."""
    if not isfunction(value) or value.__module__.partition(".")[0] != __name__.partition(".")[0]:
        return False
    return vars(sys.modules[value.__module__]).get(value.__qualname__) is value


@cache
def own_digest(*, with_built: bool = True) -> bytes:
    """A digest of npusim as it is installed: its version, and what its files hold.

    Unless *with_built*, of its sources alone, which are the same on every machine.
    """
    known = SOURCES if with_built else SOURCES - BUILT
    found = sha256(version("npusim").encode())
    above = Path(__file__).parents[1]
    for path in sorted(above.rglob("*")):
        if path.suffix in known and path.is_file():
            found.update(f"\0{path.relative_to(above).as_posix()}\0".encode())
            found.update(sha256(path.read_bytes()).digest())
    return found.digest()
