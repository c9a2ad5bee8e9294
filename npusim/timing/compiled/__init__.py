"""The compiled engine: the same times as SimPy's pipes and memory, computed many times faster.

`npusim.timing.pipes.lane` and `npusim.timing.memory` define what happens; the C files in this
folder do the same on integers, and tests compare their traces. A platform wheel contains them as a
library, which works with every Python; from source they are built if a C compiler is found
(setup.py). Without the library SimPy does all the work.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from npusim.timing.compiled.problem import Problem

__all__ = ["is_built", "library"]

PATH = Path(__file__).with_name("_engine.so")
"""The same name on all platforms, since any Python loads it."""


@cache
def library() -> ctypes.CDLL | None:
    """The compiled engine; None if it was not built, or was built for another version."""
    if not PATH.exists():
        return None
    found = ctypes.CDLL(str(PATH))
    found.npusim_problem_bytes.restype = ctypes.c_int64
    if found.npusim_problem_bytes() != ctypes.sizeof(Problem):
        return None
    found.npusim_run.argtypes = [ctypes.POINTER(Problem)]
    found.npusim_run.restype = ctypes.c_int
    times = (ctypes.c_void_p,) * 3
    found.npusim_replay.argtypes = [ctypes.POINTER(Problem), ctypes.c_int64, *times]
    found.npusim_replay.restype = ctypes.c_int
    return found


def is_built() -> bool:
    """Whether the compiled engine can be used here."""
    return library() is not None
