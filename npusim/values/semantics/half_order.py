"""Comparison of fp16 by bit pattern: numpy vectorises integers, but not float16."""

from __future__ import annotations

import numpy as np

from npusim.data.dtypes import FLOAT32, Array, cast

__all__ = ["FEW", "extreme", "extremes", "order", "single"]

FEW = 1 << 10
"""numpy converts this many values before a faster way pays."""

_MAGNITUDE_OF_16_BITS = np.int16(0x7FFF)
_NEGATIVE_ZERO = -(2**15)
_INFINITY, _NEGATIVE_INFINITY = 0x7C00, 0xFC00
"""Patterns of fp16; larger ones of the same sign are NaN."""


def single(values: Array) -> Array:
    """Floats of 16 bits as fp32."""
    if values.dtype == np.float16 and values.size > FEW:
        return cast(values, FLOAT32, "none")
    return values.astype(np.float32)


def order(a: Array, b: Array) -> tuple[Array, Array] | None:
    """Integers that compare pairwise like fp16 *a* and *b*.

    None if any is NaN.
    """
    if not (_is_ordered(a) and _is_ordered(b)):
        return None
    x, y = a.view(np.int16), b.view(np.int16)
    if _has_negative_zero(a) or _has_negative_zero(b):
        x, y = (np.where(each == _NEGATIVE_ZERO, np.int16(0), each) for each in (x, y))
    # As integers, negative values compare in reverse, unless all their bits are flipped.
    both_negative = x & y
    both_negative >>= 15
    return x ^ both_negative, np.bitwise_xor(y, both_negative, out=both_negative)


def _is_ordered(values: Array) -> bool:
    """Whether none of fp16 *values* is NaN."""
    is_ordered = values.view(np.int16).max(initial=0) <= _INFINITY
    return bool(is_ordered and values.view(np.uint16).max(initial=0) <= _NEGATIVE_INFINITY)


def _turned(values: Array) -> Array | None:
    """Integers in the order of fp16 *values*, with -0 below 0; None if any is NaN."""
    return _other_way(values.view(np.int16)) if _is_ordered(values) else None


def _other_way(patterns: Array) -> Array:
    """Convert negative numbers between sign-magnitude and the order of their values."""
    found = patterns >> 15
    found &= _MAGNITUDE_OF_16_BITS
    found ^= patterns
    return np.asarray(found)


def extreme(op: str, values: Array) -> Array | None:
    """The smallest or largest along the last axis of fp16 *values*, `(..., 1)`.

    None if any is NaN or the result is a zero.
    """
    patterns = values.view(np.int16)
    top = patterns.max(axis=-1, keepdims=True)
    bottom = values.view(np.uint16).max(axis=-1, keepdims=True)
    if top.max() > _INFINITY or bottom.max() > _NEGATIVE_INFINITY:
        return None
    # The maximum has the greatest pattern if positive, and the smallest if negative.
    found = top if op == "max" else bottom.view(np.int16)
    if not (found > 0 if op == "max" else (found < 0) & (found != _NEGATIVE_ZERO)).all():
        keys = _other_way(patterns)
        found = _other_way((np.max if op == "max" else np.min)(keys, axis=-1, keepdims=True))
        if not (found & _MAGNITUDE_OF_16_BITS).all():
            return None
    return np.asarray(found.view(np.float16))


def _has_negative_zero(values: Array) -> bool:
    return bool(values.view(np.int16).min(initial=0) == _NEGATIVE_ZERO)


def extremes(op: str, a: Array, b: Array) -> Array | None:
    """The smaller or larger of fp16 *a* and *b*; None if any is NaN or -0."""
    if _has_negative_zero(a) or _has_negative_zero(b):
        return None
    x, y = _turned(a), _turned(b)
    if x is None or y is None:
        return None
    return _other_way(np.minimum(x, y) if op == "min" else np.maximum(x, y)).view(np.float16)
