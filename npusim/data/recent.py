"""Cached properties whose values are dropped when much else was computed since."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar, overload
from weakref import ref

__all__ = ["Recent", "recent"]

MOST_BYTES = 1 << 26
"""Limit for all values together, except the last one: 64 MiB, the times of all micro-ops of an
int8 product of 8192 cubed."""

Owner = TypeVar("Owner")
Value = TypeVar("Value")


class Recent(Generic[Owner, Value]):
    """A cached property whose value may be dropped and recomputed: see :func:`recent`."""

    def __init__(self, find: Callable[[Owner], Value], nbytes: Callable[[Value], int]) -> None:
        self._find, self._nbytes = find, nbytes
        self.__doc__ = find.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_recent_{name}"

    @overload
    def __get__(self, instance: None, owner: type) -> Recent[Owner, Value]: ...

    @overload
    def __get__(self, instance: Owner, owner: type) -> Value: ...

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        found = vars(instance).get(self._name)
        if found is None:
            found = vars(instance)[self._name] = self._find(instance)
            _ALL.add(instance, self._name, self._nbytes(found))
        return found


class _Values:
    """All cached values, the oldest first; safe for several threads."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._values: OrderedDict[tuple[ref[Any], str], int] = OrderedDict()
        self._nbytes = 0
        self._lock = Lock()

    def add(self, instance: object, name: str, nbytes: int) -> None:
        """Record the value *name* of *instance*; drop older ones if there is no room."""
        with self._lock:
            key = ref(instance), name
            self._nbytes += nbytes - self._values.pop(key, 0)
            self._values[key] = nbytes
            while self._nbytes > self.most_bytes and len(self._values) > 1:
                (oldest, own), freed = self._values.popitem(last=False)
                self._nbytes -= freed
                if (owner := oldest()) is not None:
                    vars(owner).pop(own, None)


_ALL = _Values(MOST_BYTES)


def recent(
    nbytes: Callable[[Value], int],
) -> Callable[[Callable[[Owner], Value]], Recent[Owner, Value]]:
    """A cached property whose values are dropped, oldest first, above MOST_BYTES in total.

    *nbytes* gives the size of a value. Meant for objects that live long, such as the entries of a
    cache, so that these do not grow when they are inspected.
    """
    return lambda find: Recent(find, nbytes)
