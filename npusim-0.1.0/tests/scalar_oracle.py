"""Quantisation of one number in exact fractions: numpy and the kernels must agree with it."""

from __future__ import annotations

import math
from fractions import Fraction


def to_fp32(exact: Fraction) -> float:
    """The nearest fp32 number, ties to even, subnormals kept, overflow to infinity."""
    if exact == 0:
        return 0.0
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, -126) - 23)
    rounded = round(exact / quantum) * quantum
    if abs(rounded) >= Fraction(2) ** 128:
        return math.copysign(math.inf, rounded)
    return float(rounded)


def multiply(a: float, b: float) -> float:
    """One fp32 product."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b
    return to_fp32(Fraction(a) * Fraction(b))


def add(a: float, b: float) -> float:
    """One fp32 sum."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a + b
    return to_fp32(Fraction(a) + Fraction(b))


def divide(a: float, b: float) -> float:
    """One fp32 quotient."""
    if math.isnan(a) or math.isnan(b) or (a == 0 == b) or (math.isinf(a) and math.isinf(b)):
        return math.nan
    if b == 0 or math.isinf(a):
        return math.copysign(math.inf, a) * math.copysign(1, b)
    if math.isinf(b):
        return 0.0
    return to_fp32(Fraction(a) / Fraction(b))


def fit(value: float, low: int, high: int) -> int:
    """Round to the nearest integer, ties to even, and saturate; NaN is 0."""
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return high if value > 0 else low
    return min(max(round(Fraction(value)), low), high)


def packed(nibbles: list[int]) -> int:
    """Eight int4 numbers as one int32, the first in the lowest bits."""
    word = sum((nibble & 0xF) << (4 * place) for place, nibble in enumerate(nibbles))
    return word - (1 << 32) if word >> 31 else word
