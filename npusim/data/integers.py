"""Integers: how many pieces cover an extent, multiples near a number, and distinct values."""

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
    """*extent* rounded up to a multiple of *unit*.

    >>> align_up(17, 16)
    32
    """
    return -(-extent // unit) * unit


def align_down(extent: int, unit: int) -> int:
    """*extent* rounded down to a multiple of *unit*, but at least one.

    >>> align_down(40, 16), align_down(7, 16)
    (32, 16)
    """
    return max(1, extent // unit) * unit


def distinct(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """*numbers* `(count,)` in ascending order, each once.

    The first np.unique of a process imports masked arrays, which takes as long as a small launch.

    >>> distinct(np.array([3, 1, 3]))
    array([1, 3])
    """
    in_order = np.sort(numbers)
    is_first = np.ones(in_order.size, np.bool_)
    is_first[1:] = in_order[1:] != in_order[:-1]
    return in_order[is_first]
