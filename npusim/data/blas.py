"""BLAS on one thread while tiles play.

Products of tiles are so small that threads which wait for each other at every one of them cost more
than they bring, above all on a machine that has other things to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

__all__ = ["one_thread"]

_lock = Lock()
_inside: list[Any] = []
"""The limit that holds, once for each that is inside: the last one out lifts it."""


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS of this process has one thread inside; it has as many as before when the last is out.

    May be entered again from inside, and from several threads at once.
    """
    with _lock:
        _inside.append(_inside[0] if _inside else _controller().limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _lock:
            limit = _inside.pop()
            if not _inside:
                limit.restore_original_limits()


@cache
def _controller() -> Any:
    # Looks for the libraries of the process, which takes some milliseconds.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
