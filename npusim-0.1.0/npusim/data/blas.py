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

_limited = Lock()
"""Held while a thread limits BLAS."""


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS of this process has one thread inside, and then as many as before.

    Where that holds already, the thread that limited it first lifts the limit: another one that is
    still inside then has more, which changes no value.
    """
    if not _limited.acquire(blocking=False):
        yield
        return
    try:
        with _controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        _limited.release()


@cache
def _controller() -> Any:
    # Looks for the libraries of the process, which takes some milliseconds.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
