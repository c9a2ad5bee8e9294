"""npu_add_rms_norm on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT16, Array, dtype_of
from npusim.devices.schema import DeviceSpec
from npusim.ops._rms_norm.oracle import lanes_sum, rounded, scaled_root, sum_of_parts
from npusim.ops._rms_norm.rows import Machine
from npusim.ops.npu_add_rms_norm.choice import ROUNDED, choose, piece_columns

__all__ = ["reference"]


def reference(
    x1: Array,
    x2: Array,
    gamma: Array,
    epsilon: float = 1e-6,
    *,
    template: str | None = None,
    spec: DeviceSpec | None = None,
) -> tuple[Array, Array, Array]:
    """`x * r * gamma`, `r = 1 / sqrt(mean(x * x) + epsilon)` in fp32, and `x = x1 + x2`.

    *gamma* has the shape of the last dimensions of *x1*, over which the mean is. r is not written
    on 310P: zeros here. *template* names the kernel; without it *spec* decides, and None is an
    Atlas A2 of 48 cores.
    """
    outer = x1.shape[: x1.ndim - gamma.ndim]
    shape, columns, element = (*outer, *(1,) * gamma.ndim), gamma.size, dtype_of(x1)
    assert element is not None
    if not x1.size:
        return x1.copy(), np.zeros(shape, np.float32), x1.copy()
    first, second = (x.reshape(-1, columns) for x in (x1, x2))
    machine = Machine.of(spec)
    taken = template or choose(len(first), columns, element, machine).template
    with np.errstate(all="ignore"):
        exact = first.astype(np.float32) + second.astype(np.float32)
        total = rounded(exact, x1.dtype, spec)
        stored = total.astype(np.float32)
        summed = stored if element is FLOAT16 or taken in ROUNDED else exact
        mean = np.float32(1) / np.float32(columns)
        part = piece_columns(columns, element) if taken == "split_d" else columns
        root = scaled_root(sum_of_parts(lanes_sum, summed * summed * mean, part), epsilon)
        values = stored if taken == "split_d" else summed
        scaled = rounded(values * root[:, None], x1.dtype, spec).astype(np.float32)
        # A product of two fp16 is exact in fp32, so it is rounded once here as well.
        output = rounded(scaled * gamma.astype(np.float32).reshape(-1), x1.dtype, spec)
    root = np.zeros_like(root) if machine.is_310p else root
    return output.reshape(x1.shape), root.reshape(shape), total.reshape(x1.shape)
