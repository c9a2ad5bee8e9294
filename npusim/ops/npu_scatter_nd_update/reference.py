"""npu_scatter_nd_update on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._oracle import Given

__all__ = ["oracle"]


def oracle(given: Given) -> Array:
    """self with updates, `(*indices.shape[:-1], *self.shape[a:])`, at indices `(..., a)`."""
    result = np.array(given.self)
    result[tuple(np.moveaxis(given.indices, -1, 0))] = given.updates
    return result
