"""When Python looks for garbage in cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collected_seldom", "uncollected"]

SELDOM = 50_000
"""Objects that are made, and not let go of, before Python looks among them; its own 700 are a
hundred and more searches while modules are loaded."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Let Python look for no garbage in cycles in here.

    The programs of a launch, and what is found of them, are up to millions of objects without a
    cycle. To go through them again and again took a third of the time of the checks.
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
    """Let Python look for garbage in cycles seldom in here, and no more when the process ends.

    For a process that does one thing: what it loads is there until its end.
    """
    before = gc.get_threshold()
    gc.set_threshold(SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.freeze()
