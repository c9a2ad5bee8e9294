"""The compiled engine: the same times as the pipes and the memory that SimPy drives, many times
faster.

`npusim.timing.pipes.lane` and `npusim.timing.memory` define what happens; the C files next to this
one do the same on whole numbers, and tests hold their traces equal. They are built where a C
compiler is found when npusim is installed. Without one there is no library to load, and SimPy does
all the work.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from npusim.timing.compiled.problem import Problem

__all__ = ["is_built", "library"]

NAME = "_engine"


@cache
def library() -> ctypes.CDLL | None:
    """The compiled engine; None where it was not built, or for another version."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(NAME + suffix)
        if path.exists():
            found = ctypes.CDLL(str(path))
            found.npusim_problem_bytes.restype = ctypes.c_int64
            if found.npusim_problem_bytes() != ctypes.sizeof(Problem):
                return None
            found.npusim_run.argtypes = [ctypes.POINTER(Problem)]
            found.npusim_run.restype = ctypes.c_int
            times = (ctypes.c_void_p,) * 3
            found.npusim_replay.argtypes = [ctypes.POINTER(Problem), ctypes.c_int64, *times]
            found.npusim_replay.restype = ctypes.c_int
            return found
    return None


def is_built() -> bool:
    """Whether the compiled engine can be used here."""
    return library() is not None
