"""npu_swiglu_quant on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._oracle import Given

__all__ = ["oracle"]

F32 = np.float32


def oracle(given: Given) -> tuple[Array, Array]:
    """int8 `(..., columns)` of x `(..., 2 x columns)`, and scales `(...)`, float32.

    With 'quint4x2' the first has two numbers a byte. Rows behind the last group are not smoothed.
    """
    x, smooth_scales, offsets = given.x, given.smooth_scales, given.offsets
    group_index, dst_type = given.group_index, given.dst_type
    *outer, width = x.shape
    rows = x.reshape(-1, width)
    ends = np.array([len(rows)]) if group_index is None else group_index.astype(np.int64)
    ends = np.cumsum(ends) if given.group_list_type == 1 else ends
    behind = np.asarray(np.arange(len(rows))[:, None] < ends[None, :])
    group, has_group = behind.argmax(axis=1), np.asarray(behind.any(axis=1))[:, None]
    with np.errstate(all="ignore"):
        first, second = np.split(rows.astype(F32), 2, axis=1)
        a, b = (first, second) if given.activate_left else (second, first)
        # Rounded once: float64 is exact enough.
        z = (a / (np.exp(-a.astype(np.float64)).astype(F32) + F32(1))) * b
        scaled = z * smooth_scales.reshape(len(ends), -1)[group]
        largest = 7 if dst_type == "quint4x2" else 127
        if given.quant_mode == 1:
            z = np.where(has_group, scaled, z)
            factor = F32(largest) / np.abs(z).max(axis=1, initial=0)
            z = z * factor[:, None]
        else:
            scaled = scaled + offsets.reshape(len(ends), -1)[group]
            z = np.where(has_group, scaled, z)
            factor = np.zeros(len(rows), F32)
        whole = np.rint(z)
        whole = np.clip(np.where(np.isnan(whole), 0, whole), -largest - 1, largest).astype(np.int8)
    if dst_type == "quint4x2":
        nibbles = whole.view(np.uint8) & 0xF
        whole = (nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)).view(np.int8)
    return whole.reshape(*outer, -1), factor.reshape(outer)
