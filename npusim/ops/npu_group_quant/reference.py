"""npu_group_quant on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._oracle import Given

__all__ = ["oracle"]


def oracle(given: Given) -> Array:
    """Quantise x `(rows, columns)` with the scales of each row's group.

    The result has the shape of x, with 'quint4x2' one int32 for eight columns. group_index must be
    good: the rows of a bad one belong to nobody.
    """
    x, scale, offset = given.x, given.scale, given.offset
    group_index, dst_dtype = given.group_index, given.dst_dtype
    group = np.searchsorted(group_index, np.arange(x.shape[0]), side="right")
    with np.errstate(all="ignore"):
        values = x.astype(np.float32) * scale.astype(np.float32)[group]
        if offset is not None:
            values = values + offset.astype(np.float32).reshape(())
    low, high = (-8, 7) if dst_dtype == "quint4x2" else (-128, 127)
    whole = np.clip(np.where(np.isnan(values), 0, np.rint(values)), low, high).astype(np.int8)
    if dst_dtype != "quint4x2":
        return whole
    nibbles = whole.reshape(x.shape[0], -1, 8).astype(np.uint32) & 0xF
    packed: Array = (nibbles << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    return packed.view(np.int32)
