"""The arguments of a call of an operator."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Arguments", "is_masked"]

Arguments = dict[str, Any]
"""Parameter -> what a call gives for it: an operand, a list of them, or an attribute's value."""


def is_masked(value: object) -> bool:
    """Whether *value* is an array with a mask."""
    # A plain one is asked first: numpy.ma takes as long to load as a small run.
    return type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray)
