"""npu_scatter_nd_update on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array

__all__ = ["reference"]


def reference(self: Array, indices: Array, updates: Array) -> Array:
    """*self* with *updates*, `(*indices.shape[:-1], *self.shape[a:])`, at *indices* `(..., a)`."""
    result = np.array(self)
    result[tuple(np.moveaxis(indices, -1, 0))] = updates
    return result
