"""Programs and times of earlier calls, reused when the same call is made again.

A program depends on the operator, the problem and its tiling as a kernel sees them, and on the chip
except figures that affect times only; the times of a kernel depend on the whole chip, and on the
contents of the L2. Entries are found by all of that, so none ever becomes wrong, and they are only
dropped for room. Values are always computed.

Entries are returned without copying: programs, orders and traces are not modified after creation,
and the arrays of a trace are read-only.

The limit is the environment variable NPUSIM_MEMORY_MIB or, in Python,
`memory_cache.CACHE.most_bytes`, in bytes; by default it is an eighth of the free memory.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache, cached_property
from hashlib import sha256
from operator import is_
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from npusim.chip import Arrival
from npusim.data.dtypes import DType
from npusim.data.errors import shown
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec

__all__ = [
    "CACHE",
    "MEMORY_VARIABLE",
    "MemoryCache",
    "device_key",
    "forget",
    "free_bytes",
    "key_of",
    "room_bytes",
    "unvalued",
]

MIB = 1 << 20
MEMORY_VARIABLE = "NPUSIM_MEMORY_MIB"
"""The environment variable with the limit for all entries in MiB."""
FREE_PARTS = 8
"""All entries together get this fraction of the free memory: 512 MiB of 4 GiB."""
LEAST_BYTES, MOST_BYTES = 64 * MIB, 1024 * MIB
"""Bounds of the limit, whatever is free; the second is enough for some thirty prefills of a layer,
or some hundred thousand decode steps."""
ASSUMED_FREE_BYTES = 4096 * MIB
"""Assumed free memory if the system does not report it."""
ENTRY_BYTES = 4000
"""Bytes of a key and its entry, without its contents (measured)."""
MOST_ASKED = 1 << 16
"""Missing keys for which the cache remembers when they were requested."""

Made = TypeVar("Made")


@dataclass(slots=True)
class Entry:
    """Everything known for one key."""

    key: Hashable
    made: dict[Hashable, Any] = field(default_factory=dict)
    """Part -> its value: programs, and their times in each state of the L2."""
    nbytes: int = 0
    used: int = 0
    """Number of the last request that found a part of it."""
    names: list[Hashable] = field(default_factory=list)
    """Other names for parts of it, such as the calls that share them."""


class MemoryCache:
    """Results by key, with a limit on their bytes; safe for several threads.

    If there is no room, the least recently used entry is replaced, but only if the new one was
    requested after it. So requests in rotation that exceed the limit do not evict each other: of
    the layers of a model the first ones remain, and single requests, as in a sweep, replace
    nothing.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        if most_bytes is not None:
            self.most_bytes = most_bytes
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()
        """The most recently used last."""
        self._named: dict[Hashable, tuple[Entry, Any]] = {}
        self._asked: OrderedDict[int, int] = OrderedDict()
        """Hash of a missing key and part -> number of its last request. If two have the same hash,
        one of them may be stored too early."""
        self._requests = 0
        self._nbytes = 0
        self._lock = Lock()

    @cached_property
    def most_bytes(self) -> int:
        """Limit for all entries; may be set. Raises ValueError like :func:`room_bytes`."""
        return room_bytes()

    @property
    def nbytes(self) -> int:
        """Size of all entries."""
        return self._nbytes

    def __len__(self) -> int:
        """Number of parts in all entries."""
        return sum(len(entry.made) for entry in self._entries.values())

    def get(
        self,
        key: Hashable,
        make: Callable[[], Made],
        nbytes: Callable[[Made], int],
        part: Hashable = None,
    ) -> Made:
        """The value stored under *key* as *part*; else that of *make*, stored if there is room.

        The parts of a key are evicted together. *nbytes* gives the size of a result. Two threads
        that request it at the same time may both compute it.
        """
        with self._lock:
            self._requests += 1
            entry = self._entries.get(key)
            if entry is not None and part in entry.made:
                entry.used = self._requests
                self._entries.move_to_end(key)
                found: Made = entry.made[part]
                return found
            asked = self._ask(hash((key, part)))
        made = make()
        self._keep(key, part, made, ENTRY_BYTES + nbytes(made), asked)
        return made

    def named(self, name: Hashable) -> Any:
        """The value stored as *name*, or None."""
        with self._lock:
            found = self._named.get(name)
            if found is None:
                return None
            entry, made = found
            self._requests += 1
            entry.used = self._requests
            self._entries.move_to_end(entry.key)
            return made

    def name(self, name: Hashable, key: Hashable, made: object) -> None:
        """Store *made* as *name* while there is an entry for *key*, if there is room.

        Everything large in it must be part of that entry.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or self._nbytes + ENTRY_BYTES > self.most_bytes:
                return
            if name not in self._named:
                entry.names.append(name)
                entry.nbytes += ENTRY_BYTES
                self._nbytes += ENTRY_BYTES
            self._named[name] = entry, made

    def forget(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._entries.clear()
            self._named.clear()
            self._asked.clear()
            self._nbytes = 0

    def _ask(self, number: int) -> int:
        """When a key with that hash was last requested, or 0."""
        before = self._asked.pop(number, 0)
        self._asked[number] = self._requests
        if len(self._asked) > MOST_ASKED:
            self._asked.popitem(last=False)
        return before

    def _keep(self, key: Hashable, part: Hashable, made: object, nbytes: int, asked: int) -> None:
        """Store *made* if there is room; *asked* is its previous request."""
        with self._lock:
            entry = self._entries.get(key) or Entry(key, used=self._requests)
            if part in entry.made or not self._make_room(nbytes, entry, asked):
                return
            entry.made[part] = made
            entry.nbytes += nbytes
            self._nbytes += nbytes
            self._entries[key] = entry

    def _make_room(self, nbytes: int, own: Entry, asked: int) -> bool:
        """Make room for *nbytes* more of *own* by evicting others; return whether that worked."""
        missing, going = self._nbytes + nbytes - self.most_bytes, []
        for key, entry in self._entries.items():
            if missing <= 0 or entry.used > asked:
                break
            if entry is not own:
                going.append(key)
                missing -= entry.nbytes
        if missing > 0:
            return False
        for key in going:
            gone = self._entries.pop(key)
            self._nbytes -= gone.nbytes
            for name in gone.names:
                del self._named[name]
        return True


CACHE = MemoryCache()
"""The cache shared by all calls of this process."""


def forget() -> None:
    """Make the next call of each kind compute everything anew."""
    CACHE.forget()


# ---- memory limit ----


def room_bytes() -> int:
    """Limit for all entries in bytes: NPUSIM_MEMORY_MIB, or a fraction of the free memory.

    Raises ValueError if the variable is not an integer.
    """
    text = os.environ.get(MEMORY_VARIABLE)
    if text:
        if not text.isdecimal():
            raise ValueError(
                f"memory cache: {MEMORY_VARIABLE} must be a whole number of MiB, not "
                f"{shown(text)}; write for example {MEMORY_VARIABLE}=512"
            )
        return int(text) * MIB
    return min(max(free_bytes() // FREE_PARTS, LEAST_BYTES), MOST_BYTES)


def free_bytes(proc: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory available to this process, in the machine or its container.

    4 GiB if the system does not report it, as on systems other than Linux.
    """
    try:
        rows = (line.split() for line in proc.read_text().splitlines())
        free = next(int(row[1]) * 1024 for row in rows if row[0] == "MemAvailable:")
    except (OSError, StopIteration):
        return ASSUMED_FREE_BYTES
    try:
        limit, used = ((cgroup / f"memory.{name}").read_text() for name in ("max", "current"))
        return min(free, int(limit) - int(used))
    except (OSError, ValueError):  # no container, or "max": no limit
        return free


# ---- keys ----


def device_key(spec: DeviceSpec, *names: str) -> bytes:
    """A digest of *spec* without its sources, on which no entry depends, and without the fields
    *names*.
    """
    return sha256(spec.model_dump_json(exclude={"sources", *names}).encode()).digest()


OWN_KEYS = frozenset({int, str, bytes, type(None), TensorSpec, DType})
"""Types whose values are their own keys: all other keys are tuples, which equal none of them."""


def key_of(value: object) -> Hashable:
    """A key that only values of the same type and contents share.

    Raises TypeError for what cannot be distinguished by its contents, such as a function.

    >>> key_of(1) == key_of(True), key_of(0.0) == key_of(-0.0), key_of((1, "a")) == key_of((1, "a"))
    (False, False, True)
    """
    kind = type(value)
    if kind in OWN_KEYS:
        return value
    if isinstance(value, tuple):
        # Plans contain tens of thousands of tuples of integers.
        return (
            (kind, *value) if OWN_KEYS.issuperset(map(type, value)) else (kind, *map(key_of, value))
        )
    if isinstance(value, float):
        return kind, value.hex()
    if isinstance(value, Enum):
        return kind, value.name
    if kind is bool:
        return kind, value
    if isinstance(value, Arrival):
        return kind, value.digest
    if is_dataclass(value) and not isinstance(value, type):
        return kind, *(key_of(getattr(value, name)) for name in _field_names(type(value)))
    if isinstance(value, range):
        return kind, value.start, value.stop, value.step
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    if isinstance(value, np.ndarray):
        return kind, value.dtype.str, value.dtype.name, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return kind, *((key_of(name), key_of(part)) for name, part in value.items())
    raise TypeError(
        f"memory cache: a key must be made of numbers, texts, arrays and records, not "
        f"{kind.__name__}; compute it anew"
    )


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    """The names of the fields of *kind*, a dataclass."""
    return tuple(field.name for field in fields(kind))


def unvalued(value: object, seen: tuple[str, ...]) -> Any:
    """*value* without the arrays of operands, except those whose names are in *seen*.

    It may be an operand, or a tuple, mapping or record of operands; anything else is returned
    unchanged.
    """
    if isinstance(value, Operand):
        is_bare = value.array is None or value.name in seen
        return value if is_bare else Operand(value.name, value.spec)
    if isinstance(value, tuple):
        whole = [unvalued(part, seen) for part in value]
        if all(map(is_, whole, value)):
            return value
        return tuple(whole) if type(value) is tuple else type(value)(*whole)  # a NamedTuple
    if type(value) is dict:
        of_names = {name: unvalued(part, seen) for name, part in value.items()}
        return value if all(map(is_, of_names.values(), value.values())) else of_names
    if is_dataclass(value) and not isinstance(value, type | TensorSpec | DType):
        parts = {name: getattr(value, name) for name in _field_names(type(value))}
        bare = {name: unvalued(part, seen) for name, part in parts.items()}
        return value if all(bare[name] is parts[name] for name in parts) else replace(value, **bare)
    return value
