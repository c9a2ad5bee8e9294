"""When Python looks for garbage in cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["uncollected"]


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
