"""Conversion of the elements of L0C by the fixpipe.

A quantisation parameter has 64 bits: bits 31 to 13 are the upper bits of an fp32 scale, bits 45 to
37 a nine-bit offset, bit 46 marks a signed result, and bit 36 a shift by one more than bits 35 to
32 say (asc-devkit, docs/zh, 矩阵搬出关键特性说明/随路量化.md; the lowest 13 bits of the scale are
ignored).

* deqf16, req8: with bit 36 the int32 is shifted right and becomes int16, which is assumed to
  saturate, before it becomes fp32.
* deqf16: the int32 becomes fp32, is multiplied by the scale, and becomes fp16: three roundings to
  nearest even.
* req8, qf322b8: the product with the scale saturates to nine bits [-256, 255] *before* the offset
  is added and the sum saturates to eight: with offset -200 a large number gives 55, not 127
  (asc-devkit, fixpipe_l0c2gm, gen_data_s322s8.py; ops-nn, qbmmv3_kernel_golden.py).
"""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import INT8, UINT8, Array, DType, Overflow, cast
from npusim.isa import QuantMode

__all__ = ["SCALE_BITS", "convert", "fields"]

SCALE_BITS = 0xFFFF_E000


def fields(words: Array) -> tuple[Array, Array, Array]:
    """The fields in uint64 *words*: float32 scales, offsets, and whether the output is int8."""
    factor = (words & SCALE_BITS).astype(np.uint32).view(np.float32)
    # Sign-extended: nine bits, moved to the top and back.
    offset = (words << 18).view(np.int64) >> 55
    return factor, offset, (words >> 46) & 1 == 1


def _shifted(values: Array, words: Array) -> Array:
    """int32 *values*, those with bit 36 in *words* shifted right and saturated to int16."""
    has_shift = (words >> 36) & 1 == 1
    if not np.any(has_shift):
        return values
    distance = ((words >> 32) & 15).astype(np.int32) + 1
    limits = np.iinfo(np.int16)
    return np.where(has_shift, np.clip(values >> distance, limits.min, limits.max), values)


def convert(
    values: Array, mode: QuantMode, scale: Array | None, dtype: DType, overflow: Overflow
) -> Array:
    """*values* (float32 or int32) as *dtype*; *scale* is uint64 and broadcasts to them."""
    if mode == "none":
        return values
    if mode == "cast":
        return cast(values, dtype, "rint", overflow)
    assert scale is not None
    factor, offset, is_signed = fields(scale)
    whole = values if mode == "qf322b8" else _shifted(values, scale)
    wide = whole.astype(np.float32) * factor
    if mode == "deqf16":
        return cast(wide, dtype, "rint", overflow)
    assert dtype in (INT8, UINT8)
    nine = np.rint(np.clip(np.where(np.isnan(wide), 0, wide), -256, 255)).astype(np.int64)
    low, high = np.where(is_signed, -128, 0), np.where(is_signed, 127, 255)
    narrow: Array = np.clip(nine + offset, low, high).astype(np.int16).astype(dtype.numpy)
    return narrow
