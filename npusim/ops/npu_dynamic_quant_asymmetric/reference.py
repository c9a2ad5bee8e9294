"""npu_dynamic_quant_asymmetric on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._oracle import Given
from npusim.ops.npu_dynamic_quant.choice import IN_PARTS, PART_COLUMNS, UB_BYTES, choose

__all__ = ["oracle"]

F32 = np.float32


def oracle(given: Given) -> tuple[Array, Array, Array]:
    """Quantise each row of x `(..., columns)`; returns that, scales and offsets `(...)`, float32.

    The first has the shape of x, int8, or with 'quint4x2' one int32 for eight columns. template
    names the kernel; without it the size of the chip's unified buffer decides.
    """
    x, spec, group_index = given.x, given.spec, given.group_index
    is_int4 = given.dst_type == "quint4x2"
    rows, columns = prod(x.shape[:-1]), x.shape[-1]
    groups = 0 if group_index is None else group_index.shape[0]
    ub_bytes = spec.cores[spec.vector_kinds[0]].usable_bytes("ub") if spec else UB_BYTES
    smooth = given.smooth_scales is not None
    choice = choose(rows, columns, smooth, ub_bytes, groups=groups, is_symmetric=False)
    with np.errstate(all="ignore"):
        values = x.astype(F32)
        if smooth:
            factors = given.smooth_scales.astype(F32)
            if group_index is not None:
                # The first group whose end lies behind the row.
                behind = np.arange(rows)[:, None] < group_index[None, :]
                factors = factors[behind.argmax(1)].reshape(x.shape)
            values = values * factors
        in_parts = (given.template or choice.template) in IN_PARTS
        most, least = (_extreme(values, f, in_parts) for f in (np.maximum, np.minimum))
        top, span = F32(7 if is_int4 else 127), F32(15 if is_int4 else 255)
        scale = (most - least) / span
        # A NaN is not larger.
        scale = np.where(scale > F32(1e-12), scale, F32(1e-12))
        offset = top - most / scale
        y = np.rint(values * (F32(1) / scale)[..., None] + offset[..., None])
        low, high = (-8, 7) if is_int4 else (-128, 127)
        whole = np.clip(np.where(np.isnan(y), 0, y), low, high).astype(np.int8)
    return _packed(whole) if is_int4 else whole, scale, offset


def _extreme(values: Array, larger: Any, in_parts: bool) -> Array:
    """The largest or the smallest of each row of *values* `(..., columns)`."""
    columns = values.shape[-1]
    step = PART_COLUMNS if in_parts else max(columns, 1)
    parts = [values[..., start : start + step] for start in range(0, columns, step)]
    if not parts:
        return np.zeros(values.shape[:-1], F32)
    first, *others = (larger.reduce(part, axis=-1) for part in parts)
    for part in others:
        # What compares as neither keeps the later one: a NaN is lost unless it is in the last.
        keeps = first > part if larger is np.maximum else first < part
        first = np.where(keeps, first, part)
    return np.asarray(first)


def _packed(whole: Array) -> Array:
    """Eight int4 numbers an int32, the first in the lowest bits."""
    *outer, columns = whole.shape
    nibbles = whole.reshape(*outer, columns // 8, 8).astype(np.uint32) & 0xF
    packed: Array = (nibbles << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    return packed.view(np.int32)
