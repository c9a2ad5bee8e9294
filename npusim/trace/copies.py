"""What held the copies of a lane up while their bytes moved."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from npusim.kernel.program import Program, copies_of_bodies

__all__ = ["COUNT_UNITS", "CopyTimes", "copies_of", "packed", "unpacked"]

COUNT_UNITS = 1 << 32
"""Units of a byte in which shares of lines are counted: so fine that they add up to whole bytes
once rounded."""

Cycles = NDArray[np.int64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CopyTimes:
    """Copies from and to global memory, in program order; `(copies,)` each, not to be written to.

    Between `asked` and `moved` bytes move as fast as the core's port lets them, but for the cycles
    of the causes distinguished here.
    """

    index: Rows
    """Numbers of the copies among the micro-ops."""
    asked: Cycles
    """When the memory has the request."""
    moved: Cycles
    """When the last byte has moved."""
    gm_narrow: Cycles
    """Cycles in which the link of global memory was too narrow for all who used it."""
    l2_read_narrow: Cycles
    """The same of the link of the L2 for reads."""
    l2_write_narrow: Cycles
    """The same of stores, which share their link of the L2 with lines that come in."""
    turning: Cycles
    """Cycles in which rows were turned one after the other, more slowly than the port can."""
    gm_bytes: NDArray[np.float64]
    """What each copy adds to :attr:`LaneTrace.gm_bytes`."""

    def __post_init__(self) -> None:
        # Runs of the same kernel share them.
        for field in fields(self):
            getattr(self, field.name).setflags(write=False)

    @property
    def nbytes(self) -> int:
        """What its arrays take."""
        return sum(getattr(self, field.name).nbytes for field in fields(self))

    @classmethod
    def none(cls) -> CopyTimes:
        """For a lane of which nothing of the kind is known."""
        nothing = np.zeros(0, np.int64)
        times = nothing, nothing, nothing, nothing, nothing, nothing, nothing
        return cls(*times, np.zeros(0))


def copies_of(program: Program) -> Rows:
    """Numbers of the micro-ops of *program* that touch global memory, `(copies,)`."""
    return copies_of_bodies(program.called)


# ---- on disk ----

ROWS = 7
"""The array in which a folder stores them has so many."""


def packed(copies: CopyTimes, start: Cycles) -> NDArray[np.int64]:
    """*copies* of micro-ops that begin at *start*, `(ops,)`, as small numbers `(ROWS, copies)`."""
    asked = copies.asked - start[copies.index]
    moved = copies.moved - copies.asked
    read = np.rint(copies.gm_bytes * COUNT_UNITS).astype(np.int64)
    narrow = copies.gm_narrow, copies.l2_read_narrow, copies.l2_write_narrow
    return np.array([asked, moved, *narrow, copies.turning, read])


def unpacked(
    array: NDArray[np.int64], index: Rows, start: Cycles, free: Cycles
) -> CopyTimes | None:
    """The other way round; None for numbers that do not lie within the micro-ops' own times."""
    waited, took, gm_narrow, l2_read_narrow, l2_write_narrow, turning, read = array
    held_up = gm_narrow, l2_read_narrow, l2_write_narrow, turning
    room = free[index] - start[index]
    parts = array[:-1]
    # Each part is held against the room first, so that none of the sums overflows.
    if (array < 0).any() or (parts > room).any():
        return None
    if (waited + took > room).any() or (sum(held_up) > took).any():
        return None
    asked = start[index] + waited
    return CopyTimes(index, asked, asked + took, *held_up, read / COUNT_UNITS)
