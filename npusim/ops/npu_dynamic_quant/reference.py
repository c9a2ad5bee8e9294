"""npu_dynamic_quant on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

from math import prod

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._oracle import Given
from npusim.ops.npu_dynamic_quant.choice import (
    BY_SCALAR,
    IN_PARTS,
    PART_COLUMNS,
    UB_BYTES,
    choose,
)

__all__ = ["oracle"]

LARGEST_HALF = np.float32(65504)


def oracle(given: Given) -> tuple[Array, Array]:
    """Quantise each row of x `(..., columns)`; returns that and scales `(...)`, float32.

    The first has the shape of x, int8, or with 'quint4x2' one int32 for eight columns. template
    names the kernel; without it the chip decides by its series, and by the size of its unified
    buffer. On 310P smooth_scales and group_index are not read.
    """
    x, spec, group_index = given.x, given.spec, given.group_index
    if spec is not None and spec.arch == "2002":
        return _in_half(x)
    ub_bytes = spec.cores[spec.vector_kinds[0]].usable_bytes("ub") if spec else UB_BYTES
    is_int4 = given.dst_type == "quint4x2"
    top, rows, columns = np.float32(7 if is_int4 else 127), prod(x.shape[:-1]), x.shape[-1]
    groups = 0 if group_index is None else group_index.shape[0]
    smooth = given.smooth_scales is not None
    choice = choose(rows, columns, smooth, ub_bytes, is_int4=is_int4, groups=groups)
    taken = given.template or choice.template
    with np.errstate(all="ignore"):
        values = x.astype(np.float32)
        if smooth:
            factors = given.smooth_scales.astype(np.float32)
            if group_index is not None:
                # The first group whose end lies behind the row.
                behind = np.arange(rows)[:, None] < group_index[None, :]
                factors = factors[behind.argmax(1)].reshape(x.shape)
            values = values * factors
        largest = _largest(np.abs(values), taken)
        factor = top / largest
        scaled = np.rint(values * factor[..., None])
        scale = 1 / factor if taken in BY_SCALAR else largest * np.float32(1 / top)
        low, high = (-8, 7) if is_int4 else (-128, 127)
        whole = np.clip(np.where(np.isnan(scaled), 0, scaled), low, high).astype(np.int8)
    return _packed(whole) if is_int4 else whole, scale


def _largest(magnitudes: Array, template: str) -> Array:
    """M of each row of *magnitudes* `(..., columns)`."""
    if template not in IN_PARTS:
        return np.asarray(magnitudes.max(-1, initial=0))
    parts = range(0, magnitudes.shape[-1], PART_COLUMNS)
    first, *others = (magnitudes[..., start : start + PART_COLUMNS].max(-1) for start in parts)
    for part in others:
        # A NaN is not larger: it is lost unless it is in the last part.
        first = np.where(first > part, first, part)
    return np.asarray(first)


def _packed(whole: Array) -> Array:
    """Eight int4 numbers an int32, the first in the lowest bits."""
    *outer, columns = whole.shape
    nibbles = whole.reshape(*outer, columns // 8, 8).astype(np.uint32) & 0xF
    packed: Array = (nibbles << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    return packed.view(np.int32)


def _in_half(x: Array) -> tuple[Array, Array]:
    """310P: one fp16 product, rounded with ties away from zero; nothing leaves the range."""
    with np.errstate(all="ignore"):
        values = _saturated(x.astype(np.float32))
        largest = np.abs(values).max(-1, initial=0)
        factor = np.where(largest > 0, np.float32(127) / largest, np.float32(0))
        factor = _saturated(factor.astype(np.float16).astype(np.float32))
        scaled = _saturated((x.astype(np.float32) * factor[..., None]).astype(np.float16))
        scaled = scaled.astype(np.float64)
        whole = np.trunc(scaled + np.copysign(0.5, scaled))
    scale = (largest * np.float32(1 / 127)).astype(np.float32)
    return np.clip(whole, -128, 127).astype(np.int8), scale


def _saturated(values: Array) -> Array:
    """fp16 numbers on a chip without infinities: they become 65504, NaN becomes 0."""
    finite = np.where(np.isnan(values), 0, values).astype(np.float32)
    return np.clip(finite, -LARGEST_HALF, LARGEST_HALF)
