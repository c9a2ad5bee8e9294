"""The state of the L2 after a launch, for later launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["UNTOUCHED", "Left", "Runs"]

UNTOUCHED = -1
"""Placeholder for the volume of lines that a launch did not touch."""


class Runs(NamedTuple):
    """One value per line of a tensor, run-length encoded."""

    ends: NDArray[np.int64]
    """End of each run of lines."""
    numbers: NDArray[np.int64]

    @classmethod
    def of(cls, numbers: NDArray[np.int64]) -> Runs:
        """Encode *numbers*, one per line.

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
        """The value of each line."""
        return np.repeat(self.numbers, self.ends - self.starts)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self.ends.nbytes + self.numbers.nbytes


class Left(NamedTuple):
    """The lines that a launch touched, and when, in bytes that it had brought into the L2."""

    touched: Mapping[str, Runs]
    """Tensor -> the volume at the last touch of each line, or UNTOUCHED."""
    volume: int
    """Total bytes brought in."""

    @property
    def nbytes(self) -> int:
        """Its memory in bytes."""
        return sum(runs.nbytes for runs in self.touched.values())
