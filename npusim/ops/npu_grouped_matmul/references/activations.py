"""Activations on whole arrays of fp32, by their act_type."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array

__all__ = ["activated"]

F32 = np.float32


def activated(x: Array, act_type: int) -> Array:
    """*x*, fp32, or its activation; each operation rounds once."""
    match act_type:
        case 1:
            return np.asarray(np.where(x <= 0, F32(0), x))
        case 2:
            y = (x + (x * (x * x)) * F32(0.044715)) * F32(1.5957691)
            below = _exp(np.abs(y) * F32(-1)) + F32(1)
            return np.asarray((x / below) * _exp(np.minimum(y, F32(0))))
        case 4:
            return np.asarray(x / (_exp(x * F32(-1.702)) + F32(1)))
        case 5:
            return np.asarray(x / (_exp(x * F32(-1)) + F32(1)))
    return x


def _exp(x: Array) -> Array:
    """The exponential, rounded once."""
    return np.asarray(np.exp(x.astype(np.float64)).astype(F32))
