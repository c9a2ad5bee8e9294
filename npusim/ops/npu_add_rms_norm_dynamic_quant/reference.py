"""npu_add_rms_norm_dynamic_quant on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.devices.schema import DeviceSpec
from npusim.ops._rms_norm.oracle import clamped, halving_sum, rounded, scaled_root, sum_of_parts
from npusim.ops._rms_norm.rows import Machine
from npusim.ops.npu_add_rms_norm_dynamic_quant.choice import choose, slice_columns

__all__ = ["reference"]


def reference(
    x1: Array,
    x2: Array,
    gamma: Array,
    *,
    smooth_scale1: Array | None = None,
    smooth_scale2: Array | None = None,
    beta: Array | None = None,
    epsilon: float = 1e-6,
    output_mask: list[bool] | None = None,
    y_dtype: str | None = None,
    template: str | None = None,
    spec: DeviceSpec | None = None,
) -> tuple[Array, Array, Array, Array, Array]:
    """y1, y2, x, scale1 and scale2; an output that is not asked for is a single 0.

    *gamma*, *beta* and the smooth scales are `(columns,)`. *template* names the kernel; without it
    *spec* decides, and None is an Atlas A2.
    """
    columns, is_int4 = x1.shape[-1], y_dtype in ("int4", "quint4x2")
    traits = {"is_int4": is_int4, "has_beta": beta is not None}
    taken = template or choose(columns, Machine.of(spec), **traits).template
    part = slice_columns(columns, is_int4=is_int4) if taken == "slice_d" else columns
    smooth = smooth_scale1, smooth_scale2
    asked = output_mask or (True, smooth_scale2 is not None)
    with np.errstate(all="ignore"):
        total = x1.astype(np.float32) + x2.astype(np.float32)
        mean = np.float32(1) / np.float32(columns)
        root = scaled_root(sum_of_parts(halving_sum, total * total, part) * mean, epsilon)
        values = total * root[..., None] * gamma.astype(np.float32)
        if beta is not None:
            values = values + beta.astype(np.float32)
        pairs = [
            _quantised(values, factors, is_int4=is_int4)
            if is_asked
            else (np.zeros((), np.int32 if is_int4 else np.int8), np.zeros((), np.float32))
            for is_asked, factors in zip(asked, smooth, strict=True)
        ]
        x = rounded(total, x1.dtype, spec)
    return pairs[0][0], pairs[1][0], x, pairs[0][1], pairs[1][1]


def _quantised(values: Array, smooth: Array | None, *, is_int4: bool) -> tuple[Array, Array]:
    """Each row of *values* scaled so that its largest number becomes 127 or 7, and the scales."""
    if smooth is not None:
        values = values * smooth.astype(np.float32)
    top, low, high = (7, -8, 7) if is_int4 else (127, -128, 127)
    factor = np.float32(top) / np.abs(values).max(-1)
    whole = clamped(values * factor[..., None], low, high)
    scale = np.float32(1) / factor
    if not is_int4:
        return whole, scale
    *outer, columns = whole.shape
    nibbles = whole.reshape(*outer, columns // 8, 8).astype(np.uint32) & 0xF
    packed = (nibbles << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    return packed.view(np.int32), scale
