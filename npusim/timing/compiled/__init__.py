"""The compiled engine: the same times as the pipes and the memory that SimPy drives, many times
faster.

`npusim.timing.pipes.lane` and `npusim.timing.memory` define what happens; the C files next to this
one do the same on whole numbers, and tests hold their traces equal. A wheel of a platform holds
them as a library, which serves every Python; from source it is built where a C compiler is found
(setup.py). Without one there is no library to load, and SimPy does all the work.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from npusim.timing.compiled.problem import Problem

__all__ = ["is_built", "library"]

PATH = Path(__file__).with_name("_engine.so")
"""The same name everywhere, since every Python loads it."""


@cache
def library() -> ctypes.CDLL | None:
    """The compiled engine; None where it was not built, or for another version."""
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
