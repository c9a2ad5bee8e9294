"""When Python collects cyclic garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collected_seldom", "uncollected"]

SELDOM = 50_000
"""Objects created, and not freed, before Python searches them; its default of 700 causes more than
a hundred searches while modules are loaded."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the collection of cyclic garbage within the context.

    The programs of a launch, and results about them, are up to millions of objects without cycles.
    Searching them repeatedly took a third of the time of the checks.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Collect cyclic garbage rarely within the context, and not at all when the process ends.

    For a process that does one thing: what it loads stays until its end.
    """
    before = gc.get_threshold()
    gc.set_threshold(SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.freeze()
