"""npu_apply_rotary_pos_emb on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._oracle import Given

__all__ = ["oracle"]


def oracle(given: Given) -> tuple[Array, Array]:
    """query and key `(..., heads, width)` turned by cos and sin `(..., 1, width)`."""
    cos, sin, spec = given.cos, given.sin, given.spec
    saturates = spec is not None and spec.half_overflow == "saturate"
    return _turned(given.query, cos, sin, saturates), _turned(given.key, cos, sin, saturates)


def _turned(x: Array, cos: Array, sin: Array, saturates: bool) -> Array:
    bf16 = x.dtype == ml_dtypes.bfloat16
    half = x.shape[-1] // 2
    if bf16:
        x, cos, sin = (array.astype(np.float32) for array in (x, cos, sin))
    with np.errstate(all="ignore"):
        signed = np.concatenate((-sin[..., :half], sin[..., half:]), axis=-1)
        swapped = np.concatenate((x[..., half:], x[..., :half]), axis=-1)
        first, second = _kept(swapped * signed, saturates), _kept(x * cos, saturates)
        total = _kept(first + second, saturates)
    return _away_from_zero(total) if bf16 else total


def _kept(values: Array, saturates: bool) -> Array:
    """*values*, of float16 without infinities or NaN where the chip has none."""
    if not saturates or values.dtype != np.float16:
        return values
    largest = np.finfo(np.float16).max
    return np.clip(np.where(np.isnan(values), np.float16(0), values), -largest, largest)


def _away_from_zero(values: Array) -> Array:
    """float32 to the nearest bfloat16, ties away from zero."""
    words = values.view(np.uint32)
    # Half a step more in magnitude, and what remains is cut off.
    rounded = ((words + np.uint32(0x8000)) >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)
    return np.where(np.isnan(values), values.astype(ml_dtypes.bfloat16), rounded)
