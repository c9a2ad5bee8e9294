"""The arguments of a call of an operator."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Arguments", "is_masked"]

Arguments = dict[str, Any]
"""Parameter -> the argument of a call: an operand, a list of them, or an attribute's value."""


def is_masked(value: object) -> bool:
    """Whether *value* is an array with a mask."""
    # A plain array is tested first: importing numpy.ma takes as long as a small run.
    return type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray)
