"""npu_dynamic_quant on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.data.dtypes import Array
from npusim.devices.schema import DeviceSpec
from npusim.ops.npu_dynamic_quant.choice import BY_SCALAR, UB_BYTES, choose

__all__ = ["reference"]

LARGEST = np.float32(127)


def reference(
    x: Array,
    *,
    smooth_scales: Array | None = None,
    group_index: Array | None = None,
    dst_type: str | None = None,
    spec: DeviceSpec | None = None,
) -> tuple[Array, Array]:
    """Quantise each row of *x* `(..., columns)` to int8; returns that and scales `(...)`, float32.

    *group_index* and *dst_type* say nothing that is simulated. *spec* decides by the size of its
    unified buffer which template is taken; None is an Atlas A2.
    """
    del group_index, dst_type
    ub_bytes = spec.cores[spec.vector_kinds[0]].usable_bytes("ub") if spec else UB_BYTES
    smooth = smooth_scales is not None
    template = choose(prod(x.shape[:-1]), x.shape[-1], smooth, ub_bytes).template
    with np.errstate(all="ignore"):
        values = x.astype(np.float32)
        if smooth_scales is not None:
            values = values * smooth_scales.astype(np.float32)
        largest = np.abs(values).max(-1, initial=0)
        factor = LARGEST / largest
        scaled = np.rint(values * factor[..., None])
        scale = 1 / factor if template in BY_SCALAR else largest * np.float32(1 / 127)
        whole = np.clip(np.where(np.isnan(scaled), 0, scaled), -128, 127).astype(np.int8)
    return whole, scale
