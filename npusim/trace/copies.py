"""What delayed the copies of a lane while their bytes moved."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from npusim.kernel.program import Program, copies_of_bodies

__all__ = ["COUNT_UNITS", "CopyTimes", "copies_of", "packed", "unpacked"]

COUNT_UNITS = 1 << 32
"""Units of a byte in which shares of lines are counted: fine enough that rounded sums give whole
bytes."""

Cycles = NDArray[np.int64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CopyTimes:
    """Copies from and to global memory, in program order; `(copies,)` each, read-only.

    Between `asked` and `moved` bytes move at the speed of the core's port, except in the cycles of
    the causes listed here.
    """

    index: Rows
    """Indices of the copies among the micro-ops."""
    asked: Cycles
    """When the memory receives the request."""
    moved: Cycles
    """When the last byte has moved."""
    gm_narrow: Cycles
    """Cycles in which the link of global memory was too narrow for all its users."""
    l2_read_narrow: Cycles
    """The same for the read link of the L2."""
    l2_write_narrow: Cycles
    """The same for the write link of the L2, which stores share with lines being filled."""
    turning: Cycles
    """Cycles in which converting rows to Nz one by one was slower than the port."""
    gm_bytes: NDArray[np.float64]
    """The contribution of each copy to :attr:`LaneTrace.gm_bytes`."""

    def __post_init__(self) -> None:
        # Runs of the same kernel share the arrays.
        for field in fields(self):
            getattr(self, field.name).setflags(write=False)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(getattr(self, field.name).nbytes for field in fields(self))

    @classmethod
    def none(cls) -> CopyTimes:
        """For a lane without this information."""
        nothing = np.zeros(0, np.int64)
        times = nothing, nothing, nothing, nothing, nothing, nothing, nothing
        return cls(*times, np.zeros(0))


def copies_of(program: Program) -> Rows:
    """Indices of the micro-ops of *program* that touch global memory, `(copies,)`."""
    return copies_of_bodies(program.called)


# ---- on disk ----

ROWS = 7
"""Number of rows of the array in a folder that stores them."""


def packed(copies: CopyTimes, start: Cycles) -> NDArray[np.int64]:
    """*copies* as small integers `(ROWS, copies)`, relative to *start* `(ops,)` of micro-ops."""
    asked = copies.asked - start[copies.index]
    moved = copies.moved - copies.asked
    read = np.rint(copies.gm_bytes * COUNT_UNITS).astype(np.int64)
    narrow = copies.gm_narrow, copies.l2_read_narrow, copies.l2_write_narrow
    return np.array([asked, moved, *narrow, copies.turning, read])


def unpacked(
    array: NDArray[np.int64], index: Rows, start: Cycles, free: Cycles
) -> CopyTimes | None:
    """The reverse; None if values are outside the times of their micro-ops."""
    waited, took, gm_narrow, l2_read_narrow, l2_write_narrow, turning, read = array
    held_up = gm_narrow, l2_read_narrow, l2_write_narrow, turning
    room = free[index] - start[index]
    parts = array[:-1]
    # Each part is checked against the limit first, so that no sum overflows.
    if (array < 0).any() or (parts > room).any():
        return None
    if (waited + took > room).any() or (sum(held_up) > took).any():
        return None
    asked = start[index] + waited
    return CopyTimes(index, asked, asked + took, *held_up, read / COUNT_UNITS)
