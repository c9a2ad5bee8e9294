"""Whole numbers: how many pieces cover an extent, and multiples near a number."""

from __future__ import annotations

__all__ = ["align_down", "align_up", "ceil_div"]


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
