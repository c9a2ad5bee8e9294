"""embedding on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._oracle import Given

__all__ = ["oracle"]


def oracle(given: Given) -> Array:
    """Rows of weight `(rows, width)`, one for each of indices: `(*indices.shape, width)`."""
    return np.asarray(np.take(given.weight, given.indices, axis=0))
