"""What earlier calls had written and timed, so that the same call need not do it again.

A program depends on the operator, the problem and its tiling as a kernel sees them, and on the chip
but for what only times rest on; the times of a kernel on the whole chip and on what lies in the L2
besides. Both are looked up by all of that, so no entry ever becomes
wrong, and nothing has to be thrown away but for room. Values are computed every time.

Entries are returned as they are: programs, orders and traces are not written to once they are made,
and the arrays of a trace cannot be.

How much room there is says the environment variable NPUSIM_MEMORY_MIB, or in Python
`memory_cache.CACHE.most_bytes`, in bytes; else it is an eighth of the memory that is free.
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
"""The environment variable that says how many MiB all entries have at most."""
FREE_PARTS = 8
"""Of the memory that is free, all entries have one of so many parts: 512 MiB of 4 GiB."""
LEAST_BYTES, MOST_BYTES = 64 * MIB, 1024 * MIB
"""However much is free, entries may have the first, and no more than the second: some thirty
prefills of a layer, or some hundred thousand decode steps."""
ASSUMED_FREE_BYTES = 4096 * MIB
"""What is assumed to be free where the system does not say."""
ENTRY_BYTES = 4000
"""What a key and its entry take besides what is made (measured)."""
MOST_ASKED = 1 << 16
"""Keys without an entry of which the cache knows when they were asked for."""

Made = TypeVar("Made")


@dataclass(slots=True)
class Entry:
    """All that is known by one key."""

    key: Hashable
    made: dict[Hashable, Any] = field(default_factory=dict)
    """Part -> what was made of it: programs, and their times in each state of the L2."""
    nbytes: int = 0
    used: int = 0
    """Which request was the last that found a part of it."""
    names: list[Hashable] = field(default_factory=list)
    """Other names of what belongs to it, such as the calls that have it in common."""


class MemoryCache:
    """Results by their keys, at most so many bytes of them; safe for several threads.

    Where there is no room, what was used least recently goes for what is new, but only if the new
    was asked for since. So what is asked for in turn, and is too much for the room, does not evict
    itself: of the layers of a model those stay that came first, and what is asked for once, as in
    a sweep, replaces nothing.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        if most_bytes is not None:
            self.most_bytes = most_bytes
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()
        """The most recently used last."""
        self._named: dict[Hashable, tuple[Entry, Any]] = {}
        self._asked: OrderedDict[int, int] = OrderedDict()
        """Hash of a key and a part that are not there -> which request asked for it last. Where two
        have the same hash, one of them may find room too early."""
        self._requests = 0
        self._nbytes = 0
        self._lock = Lock()

    @cached_property
    def most_bytes(self) -> int:
        """All entries have at most so many; may be set. Raises ValueError as :func:`room_bytes`."""
        return room_bytes()

    @property
    def nbytes(self) -> int:
        """The size of all entries."""
        return self._nbytes

    def __len__(self) -> int:
        """How many parts all entries have."""
        return sum(len(entry.made) for entry in self._entries.values())

    def get(
        self,
        key: Hashable,
        make: Callable[[], Made],
        nbytes: Callable[[Made], int],
        part: Hashable = None,
    ) -> Made:
        """What is stored under *key* as *part*; else what *make* returns, stored if there is room.

        The parts of a key stay or go together. *nbytes* says how much what was made takes. Two
        threads that ask at once may both make it.
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
        """What was stored as *name*, or None."""
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
        """Store *made* as *name* for as long as there is an entry of *key*, if there is room.

        It must hold nothing large but parts of that entry.
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
        """Keep nothing of what there is."""
        with self._lock:
            self._entries.clear()
            self._named.clear()
            self._asked.clear()
            self._nbytes = 0

    def _ask(self, number: int) -> int:
        """When what has that hash was asked for before, or 0."""
        before = self._asked.pop(number, 0)
        self._asked[number] = self._requests
        if len(self._asked) > MOST_ASKED:
            self._asked.popitem(last=False)
        return before

    def _keep(self, key: Hashable, part: Hashable, made: object, nbytes: int, asked: int) -> None:
        """Store what was *made*, if there is room; it was last *asked* for in that request."""
        with self._lock:
            entry = self._entries.get(key) or Entry(key, used=self._requests)
            if part in entry.made or not self._make_room(nbytes, entry, asked):
                return
            entry.made[part] = made
            entry.nbytes += nbytes
            self._nbytes += nbytes
            self._entries[key] = entry

    def _make_room(self, nbytes: int, own: Entry, asked: int) -> bool:
        """Whether there is room for so many bytes more of *own*; others go for it."""
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
"""What the calls of this process share."""


def forget() -> None:
    """Let the next call of each kind compute everything anew."""
    CACHE.forget()


# ---- room ----


def room_bytes() -> int:
    """How many bytes entries have: what NPUSIM_MEMORY_MIB says, or a part of what is free.

    Raises ValueError where the variable is not a whole number.
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
    """The memory that this process may still take: that of the machine, or of its container.

    4 GiB where the system does not say, as other systems than Linux.
    """
    try:
        rows = (line.split() for line in proc.read_text().splitlines())
        free = next(int(row[1]) * 1024 for row in rows if row[0] == "MemAvailable:")
    except (OSError, StopIteration):
        return ASSUMED_FREE_BYTES
    try:
        limit, used = ((cgroup / f"memory.{name}").read_text() for name in ("max", "current"))
        return min(free, int(limit) - int(used))
    except (OSError, ValueError):  # no container, or "max": one without a limit
        return free


# ---- keys ----


def device_key(spec: DeviceSpec, *names: str) -> bytes:
    """A digest of all that *spec* says, but for its sources, on which no entry depends, and for
    the fields *names*.
    """
    return sha256(spec.model_dump_json(exclude={"sources", *names}).encode()).digest()


OWN_KEYS = frozenset({int, str, bytes, type(None), TensorSpec, DType})
"""Types whose values are their own keys: all other keys are tuples, which equal none of them."""


def key_of(value: object) -> Hashable:
    """A key that only values of the same type and the same contents have.

    Raises TypeError for what cannot be distinguished by its contents, such as a function.

    >>> key_of(1) == key_of(True), key_of(0.0) == key_of(-0.0), key_of((1, "a")) == key_of((1, "a"))
    (False, False, True)
    """
    kind = type(value)
    if kind in OWN_KEYS:
        return value
    if isinstance(value, tuple):
        # Plans are tens of thousands of tuples of whole numbers.
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
    """The names of the fields of *kind*, a class of records."""
    return tuple(field.name for field in fields(kind))


def unvalued(value: object, seen: tuple[str, ...]) -> Any:
    """*value* with no array in any operand but those whose names are in *seen*.

    It may be an operand, or a tuple or record of such; anything else is returned as it is.
    """
    if isinstance(value, Operand):
        is_bare = value.array is None or value.name in seen
        return value if is_bare else Operand(value.name, value.spec)
    if type(value) is tuple:
        whole = tuple(unvalued(part, seen) for part in value)
        return value if all(map(is_, whole, value)) else whole
    if is_dataclass(value) and not isinstance(value, type | TensorSpec | DType):
        parts = {name: getattr(value, name) for name in _field_names(type(value))}
        bare = {name: unvalued(part, seen) for name, part in parts.items()}
        return value if all(bare[name] is parts[name] for name in parts) else replace(value, **bare)
    return value
