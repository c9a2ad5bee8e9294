"""Warnings of contracts: a call is accepted although the vendor's document excludes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from warnings import warn

from npusim.data.errors import DocumentWarning, callers_level

__all__ = ["unwarned", "warn_of_document", "warnings_given"]

_count = 0
_is_silent = ContextVar("_is_silent", default=False)


def warn_of_document(text: str) -> None:
    """Warn with *text* at the line that called npusim."""
    global _count
    _count += 1
    if not _is_silent.get():
        warn(text, DocumentWarning, stacklevel=callers_level())


def warnings_given() -> int:
    """How many warnings contracts have given in this process, silent ones included."""
    return _count


@contextmanager
def unwarned() -> Iterator[None]:
    """Count warnings without giving them, in this thread."""
    token = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(token)
