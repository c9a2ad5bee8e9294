"""What a launch leaves in the L2 for those that come after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["UNTOUCHED", "Left", "Runs"]

UNTOUCHED = -1
"""In place of a volume, of lines that a launch did not touch."""


class Runs(NamedTuple):
    """A number for each line of a tensor, stored once for neighbours that have it in common."""

    ends: NDArray[np.int64]
    """The line after each run of them."""
    numbers: NDArray[np.int64]

    @classmethod
    def of(cls, numbers: NDArray[np.int64]) -> Runs:
        """The runs of *numbers*, one a line.

        >>> Runs.of(np.array([7, 7, 3]))
        Runs(ends=array([2, 3]), numbers=array([7, 3]))
        """
        is_last = np.ones(numbers.size, np.bool_)
        is_last[:-1] = numbers[1:] != numbers[:-1]
        lasts = np.flatnonzero(is_last)
        return cls(lasts + 1, numbers[lasts])

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first line of each run."""
        return np.concatenate((np.zeros(1, np.int64), self.ends[:-1]))

    def each(self) -> NDArray[np.int64]:
        """The number of each line."""
        return np.repeat(self.numbers, self.ends - self.starts)

    @property
    def nbytes(self) -> int:
        """What holding them takes."""
        return self.ends.nbytes + self.numbers.nbytes


class Left(NamedTuple):
    """Which lines a launch touched, and when, counted in bytes that it brought into the L2."""

    touched: Mapping[str, Runs]
    """Tensor -> the volume at which each line was touched last, or UNTOUCHED."""
    volume: int
    """What it brought in in all."""

    @property
    def nbytes(self) -> int:
        """What holding it takes."""
        return sum(runs.nbytes for runs in self.touched.values())
