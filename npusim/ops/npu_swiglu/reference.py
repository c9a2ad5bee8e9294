"""npu_swiglu on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._oracle import Given

__all__ = ["oracle"]


def oracle(given: Given) -> Array:
    """Half of x along dim, in its type; the chip says whether fp16 has infinities."""
    x, spec = given.x, given.spec
    first, second = np.split(x, 2, axis=given.dim)
    with np.errstate(all="ignore"):
        a, b = first.astype(np.float32), second.astype(np.float32)
        # Rounded once: float64 is exact enough.
        below = np.exp(-a.astype(np.float64)).astype(np.float32) + np.float32(1)
        if x.dtype == np.float32:
            return ((np.float32(1) / below) * a) * b
        y = (a / below) * b
        if spec is not None and spec.half_overflow == "saturate":
            largest = np.float32(np.finfo(np.float16).max)
            y = np.clip(np.where(np.isnan(y), np.float32(0), y), -largest, largest)
        return np.asarray(y.astype(x.dtype))
