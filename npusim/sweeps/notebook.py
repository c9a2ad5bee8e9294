"""The progress of a sweep in a notebook: a line that is overwritten."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["shown"]


def shown() -> Callable[[int, int], None] | None:
    """A function that shows the number of finished cells in a notebook; elsewhere None."""
    python = sys.modules.get("IPython")
    shell: Any = None if python is None else python.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None  # no IPython, or one in a terminal
    display: Any = import_module("IPython.display").display
    handle: Any = None

    def show(done: int, of: int) -> None:
        nonlocal handle
        line = {"text/plain": f"sweep: {done} of {of} cells"}
        if handle is None:
            handle = display(line, raw=True, display_id=True)
        else:
            handle.update(line, raw=True)

    return show
