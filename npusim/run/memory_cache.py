"""What earlier calls had written and timed, so that the same call need not do it again.

A program depends on the operator, the chip, and the problem as a kernel sees it; the times of a
kernel on what lies in the L2 besides. Both are looked up by all of that, so no entry ever becomes
wrong, and nothing has to be thrown away but for room. Values are computed every time.

Entries are returned as they are: programs, orders and traces are not written to once they are made,
and the arrays of a trace cannot be.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from hashlib import sha256
from operator import is_
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from npusim.data.dtypes import DType
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec

__all__ = ["CACHE", "MemoryCache", "device_key", "forget", "key_of", "unvalued"]

MOST_BYTES = 1 << 26
"""All entries have at most so many, by the sizes that :meth:`MemoryCache.get` is given: 64 MiB.
That is one int8 product of 8192 cubed, six of 4096 cubed, or a hundred decode steps. The least
recently used goes first."""

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry."""

    made: Any
    nbytes: int


class MemoryCache:
    """Results by their keys, at most so many bytes of them; safe for several threads."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()
        """The most recently used last."""
        self._nbytes = 0
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """The size of all entries."""
        return self._nbytes

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, make: Callable[[], Made], nbytes: Callable[[Made], int]) -> Made:
        """What is stored under *key*; else what *make* returns, stored if there is room for it.

        *nbytes* says how much that takes. Two threads that ask at once may both make it.
        """
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                found: Made = self._entries[key].made
                return found
        made = make()
        self._keep(key, Entry(made, nbytes(made)))
        return made

    def forget(self) -> None:
        """Keep nothing of what there is."""
        with self._lock:
            self._entries.clear()
            self._nbytes = 0

    def _keep(self, key: Hashable, entry: Entry) -> None:
        if entry.nbytes > self.most_bytes:
            return
        with self._lock:
            earlier = self._entries.pop(key, None)
            self._nbytes += entry.nbytes - (earlier.nbytes if earlier else 0)
            self._entries[key] = entry
            while self._nbytes > self.most_bytes:
                _, oldest = self._entries.popitem(last=False)
                self._nbytes -= oldest.nbytes


CACHE = MemoryCache(MOST_BYTES)
"""What the calls of this process share."""


def forget() -> None:
    """Let the next call of each kind compute everything anew."""
    CACHE.forget()


# ---- keys ----


def device_key(spec: DeviceSpec) -> bytes:
    """A digest of all that *spec* says, but for its sources, on which no entry depends."""
    return sha256(spec.model_dump_json(exclude={"sources"}).encode()).digest()


def key_of(value: object) -> Hashable:
    """A key that only values of the same type and the same contents have.

    Raises TypeError for what cannot be distinguished by its contents, such as a function.

    >>> key_of(1) == key_of(True), key_of(0.0) == key_of(-0.0), key_of((1, "a")) == key_of((1, "a"))
    (False, False, True)
    """
    kind = type(value)
    if value is None or kind in (str, bytes, TensorSpec, DType):
        return value
    if kind in (bool, int):
        return kind, value
    if isinstance(value, float):
        return kind, value.hex()
    if isinstance(value, Enum):
        return kind, value.name
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    if isinstance(value, np.ndarray):
        return kind, value.dtype.str, value.dtype.name, value.shape, value.tobytes()
    if isinstance(value, tuple):
        return kind, *map(key_of, value)
    if isinstance(value, Mapping):
        return kind, *((key_of(name), key_of(part)) for name, part in value.items())
    if is_dataclass(value) and not isinstance(value, type):
        return kind, *(key_of(getattr(value, field.name)) for field in fields(value))
    raise TypeError(
        f"memory cache: a key must be made of numbers, texts, arrays and records, not "
        f"{kind.__name__}; compute it anew"
    )


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
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        bare = {name: unvalued(part, seen) for name, part in parts.items()}
        return value if all(bare[name] is parts[name] for name in parts) else replace(value, **bare)
    return value
