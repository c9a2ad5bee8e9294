"""Find the iterations of loops in the recording of a core, by their content.

An iteration (a round) begins at each repetition of the call that moves data most often. Rounds that
make the same calls, at the same offsets from their start in each tensor, share one body.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Rounds", "rounds_of"]

Integers = NDArray[np.int64]


class Rounds(NamedTuple):
    """The rows of a core, split into rounds."""

    first: Integers
    """The first row of each round, and the end of the last, `(rounds + 1,)`."""
    begin: Integers
    """The start of each round in each tensor, `(rounds, tensors)`; 0 in an unused tensor."""
    touched: NDArray[np.bool_]
    """Whether the round uses the tensor, `(rounds, tensors)`."""
    within: Integers
    """The offset of each row from that start, `(rows,)`."""


def rounds_of(called: Integers, tensor: Integers, offset: Integers, tensors: int) -> Rounds:
    """The rounds of rows: indices of calls, of tensors or -1, and offsets into the tensors.

    >>> called, tensor = np.array([0, 5, 1, 5, 1, 5]), np.array([-1, 0, 0, 0, 0, 0])
    >>> found = rounds_of(called, tensor, np.array([0, 8, 9, 16, 17, 24]), 1)
    >>> found.first.tolist(), found.begin.tolist(), found.within.tolist()
    ([0, 1, 3, 5, 6], [[0], [8], [16], [24]], [0, 0, 1, 0, 1, 0])
    """
    is_global = tensor >= 0
    starts = np.zeros(0, np.int64)
    if is_global.any():
        most = np.bincount(called[is_global]).argmax()
        starts = np.flatnonzero(called == most)
    first = np.unique(np.concatenate([[0], starts, [called.size]]))
    number = np.repeat(np.arange(first.size - 1), np.diff(first))
    begin = np.zeros((first.size - 1, tensors), np.int64)
    touched = np.zeros(begin.shape, np.bool_)
    within = np.zeros(called.size, np.int64)
    for each in np.unique(tensor[is_global]).tolist():
        own = np.flatnonzero(tensor == each)
        rounds, places = np.unique(number[own], return_index=True)
        begin[rounds, each] = offset[own[places]]
        touched[rounds, each] = True
        within[own] = offset[own] - begin[number[own], each]
    return Rounds(first, begin, touched, within)
