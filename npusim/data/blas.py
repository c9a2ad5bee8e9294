"""BLAS on one thread while tiles are computed.

Products of tiles are so small that synchronising threads for each of them costs more than it gains,
above all on a busy machine.
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
    """Run BLAS of this process on one thread within the context, then on as many as before.

    In nested contexts the thread that set the limit first also lifts it: another one that is still
    inside then has more threads, which changes no value.
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
    # Searches the libraries of the process, which takes some milliseconds.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
