"""Whole numbers: how many pieces cover an extent, multiples near a number, and different ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["align_down", "align_up", "ceil_div", "distinct"]


def ceil_div(extent: int, size: int) -> int:
    """How many pieces of *size* cover *extent*.

    >>> ceil_div(17, 16)
    2
    """
    return -(-extent // size)


def align_up(extent: int, unit: int) -> int:
    """*extent* up to a whole number of *unit*.

    >>> align_up(17, 16)
    32
    """
    return -(-extent // unit) * unit


def align_down(extent: int, unit: int) -> int:
    """*extent* down to a whole number of *unit*, but at least one.

    >>> align_down(40, 16), align_down(7, 16)
    (32, 16)
    """
    return max(1, extent // unit) * unit


def distinct(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The different ones of *numbers*, ascending.

    As `np.unique` finds them, which loads numpy.ma, and that takes as long as a small run.

    >>> distinct(np.array([3, 1, 3]))
    array([1, 3])
    """
    ordered = np.sort(numbers, axis=None)
    is_new: NDArray[np.bool_] = np.diff(ordered, prepend=ordered[:1] - 1) != 0
    return ordered[is_new]
