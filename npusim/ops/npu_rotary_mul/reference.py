"""npu_rotary_mul on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._oracle import Given

__all__ = ["oracle"]


def oracle(given: Given) -> Array:
    """self `(..., width)` turned by the cosines r1 and the sines r2, which broadcast to it.

    Those come to the dtype of self first. Products and sum are rounded to float32 one by one, the
    sum then to the dtype of self.
    """
    vectors = given.self
    tensors = vectors, given.r1, given.r2
    with np.errstate(all="ignore"):
        x, cos, sin = (array.astype(vectors.dtype).astype(np.float32) for array in tensors)
        if given.rotary_mode == "interleave":
            turned = np.empty(x.shape, np.float32)
            turned[..., 0::2] = x[..., 1::2] * sin[..., 0::2] * np.float32(-1)
            turned[..., 1::2] = x[..., 0::2] * sin[..., 1::2]
        else:
            left, right = np.split(x, 2, axis=-1)
            sin_left, sin_right = np.split(sin, 2, axis=-1)
            turned = np.concatenate((right * -sin_left, left * sin_right), axis=-1)
        return np.asarray((turned + x * cos).astype(vectors.dtype))
