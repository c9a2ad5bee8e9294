"""matmul on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.data.product import CubeOrder
from npusim.devices.schema import DeviceSpec
from npusim.ops._products import cube_product

__all__ = ["reference"]

LARGEST = {"float16": 65504.0, "bfloat16": (2 - 2.0**-7) * 2.0**127}


def reference(
    x1: Array,
    x2: Array,
    bias: Array | None = None,
    *,
    cube_order: CubeOrder = "k16",
    spec: DeviceSpec | None = None,
) -> Array:
    """`x1 (..., m, k) @ x2 (..., k, n) + bias (n,)`, batches broadcast, in the type of x1.

    *x2* may be a Tensor of any layout. *spec* says what becomes of results out of range; without
    it they become infinite.
    """
    a, b = np.asarray(x1), np.asarray(x2)
    total = cube_product(a, b, bias, cube_order)
    kind = a.dtype
    if spec is not None and spec.half_overflow == "saturate":
        largest = LARGEST[kind.name]
        total = np.clip(np.where(np.isnan(total), 0, total), -largest, largest)
    with np.errstate(over="ignore"):
        return np.asarray(total.astype(kind))
