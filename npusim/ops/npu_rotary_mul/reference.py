"""npu_rotary_mul on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array

__all__ = ["reference"]


def reference(self: Array, r1: Array, r2: Array, rotary_mode: str = "half") -> Array:  # noqa: ARG001
    """*self* `(..., width)` turned by the cosines *r1* and the sines *r2*, which broadcast to it.

    Products and sum are rounded to float32 one by one, the sum then to the dtype of *self*.
    """
    x, cos, sin = (array.astype(np.float32) for array in (self, r1, r2))
    left, right = np.split(x, 2, axis=-1)
    sin_left, sin_right = np.split(sin, 2, axis=-1)
    with np.errstate(all="ignore"):
        turned = np.concatenate((right * -sin_left, left * sin_right), axis=-1)
        return np.asarray((turned + x * cos).astype(self.dtype))
