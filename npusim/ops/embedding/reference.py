"""embedding on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array

__all__ = ["reference"]


def reference(weight: Array, indices: Array) -> Array:
    """Rows of *weight* `(rows, width)`, one for each of *indices*: `(*indices.shape, width)`."""
    return np.take(weight, indices, axis=0)
