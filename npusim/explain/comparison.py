"""The difference of two arrays, in the measures that Ascend's comparison tools print.

Cosine, MaxAbsErr, MaxRelativeErr and *Accuracy Reached or Not* are the names of the PyTorch
comparison of the vendor's precision tool, whose verdict is No if Cosine < 0.99 and MaxAbsErr >
0.001, or Cosine < 0.9, or MaxAbsErr > 1; the others are those of its network comparison (MindStudio
documents). Relative errors leave out elements that are 0 in the golden array.

    >>> found = compare(np.float32([1, 2, 3]), np.float32([1, 2, 4]))
    >>> found.max_abs, found.max_relative, found.mismatches, found.is_reached
    (1.0, 0.25, 1, True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.data.dtypes import Array

__all__ = ["Comparison", "Mismatch", "compare"]

SHOWN = 10
"""The most mismatches that are listed."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An element that differs."""

    index: tuple[int, ...]
    a: Any
    b: Any
    ulps: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Measures over the elements that are finite in both arrays, and the worst elements."""

    shape: tuple[int, ...]
    dtypes: tuple[str, str]
    count: int
    mismatches: int
    """Elements that are not equal; NaN equals NaN here."""
    not_finite: int
    """Unequal elements of which at least one is NaN or infinite."""
    cosine: float
    max_abs: float
    max_relative: float
    """The largest relative error, over elements that are not 0 in b."""
    mean_abs: float
    root_mean_square: float
    relative_euclidean: float | None
    """None if b is all zeros."""
    max_ulps: int | None
    """The largest difference in units in the last place; None for arrays of two types."""
    worst: tuple[Mismatch, ...]
    """The largest absolute error first, after elements that are not finite."""

    @property
    def is_reached(self) -> bool:
        """The verdict of the vendor's tool; an element that is finite on one side only gives No."""
        far = (self.cosine < 0.99 and self.max_abs > 0.001) or self.cosine < 0.9
        return not (far or self.max_abs > 1 or self.not_finite)


def compare(a: Array, b: Array) -> Comparison:
    """Compare *a* with the golden *b*; raises ValueError for different shapes, or no elements."""
    if a.shape != b.shape:
        raise ValueError(
            f"compare: arrays must have the same shape, not {a.shape} and {b.shape}; reshape one"
        )
    if not a.size:
        raise ValueError(f"compare: arrays must have elements, not shape {a.shape}; compare others")
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    x, y = flat_a.astype(np.float64), flat_b.astype(np.float64)
    steps = _ulps(flat_a, flat_b)
    differ = _differ(flat_a, flat_b)
    finite = np.isfinite(x) & np.isfinite(y)
    p, q = x[finite], y[finite]
    with np.errstate(over="ignore"):  # only the difference of two float64 can overflow
        error = np.abs(p - q)
    nonzero = q != 0
    norm, distance = _norm(q), _norm(error)
    finite_steps = None if steps is None else steps[finite]
    return Comparison(
        a.shape,
        (a.dtype.name, b.dtype.name),
        a.size,
        int(differ.sum()),
        int((differ & ~finite).sum()),
        _cosine(p, q),
        float(error.max(initial=0.0)),
        float((error[nonzero] / np.abs(q[nonzero])).max(initial=0.0)),
        float(error.mean()) if error.size else 0.0,
        distance / math.sqrt(error.size) if error.size else 0.0,
        distance / norm if norm else None,
        None if finite_steps is None else int(finite_steps.max(initial=0)),
        _worst(a, b, differ, steps),
    )


def _differ(a: Array, b: Array) -> Array:
    # Two different int64 could become equal in float64.
    if a.dtype.kind in "iu" and a.dtype == b.dtype:
        return np.asarray(a != b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    return np.asarray((x != y) & ~(np.isnan(x) & np.isnan(y)))


def _largest(values: Array) -> float:
    return float(np.abs(values).max(initial=0.0))


def _norm(values: Array) -> float:
    """The root of the sum of squares, without overflow of the squares."""
    largest = _largest(values)
    is_scalable = 0 < largest < math.inf
    return largest * float(np.linalg.norm(values / largest)) if is_scalable else largest


def _cosine(p: Array, q: Array) -> float:
    """The cosine; 1 for two vectors of zeros, 0 if only one is zero."""
    largest = _largest(p), _largest(q)
    if not all(largest):
        return float(largest[0] == largest[1])
    p, q = p / largest[0], q / largest[1]
    # Rounding may make it slightly larger than 1.
    cosine = float(np.dot(p, q) / (np.linalg.norm(p) * np.linalg.norm(q)))
    return min(1.0, max(-1.0, cosine))


def _ulps(a: Array, b: Array) -> Array | None:
    """Units in the last place between numbers of one type, as uint64; meaningless for NaN."""
    if a.dtype != b.dtype:
        return None
    x, y = _ordered(a), _ordered(b)
    # Differences of int64 wrap to the right unsigned number.
    larger, smaller = np.maximum(x, y).view(np.uint64), np.minimum(x, y).view(np.uint64)
    return np.asarray(larger - smaller)


def _ordered(values: Array) -> Array:
    """Consecutive integers in the order of the numbers of a type."""
    if values.dtype == np.uint64:
        return np.asarray((values ^ np.uint64(1 << 63)).view(np.int64))
    if values.dtype.kind in "iub" or values.dtype.name == "int4":
        return values.astype(np.int64)
    bits = values.view(f"i{values.itemsize}").astype(np.int64)
    # The magnitudes of negative numbers, -0 being 0.
    magnitude = bits & ((1 << (8 * values.itemsize - 1)) - 1)
    return np.where(bits < 0, -magnitude, bits)


def _worst(a: Array, b: Array, differ: Array, steps: Array | None) -> tuple[Mismatch, ...]:
    places = np.flatnonzero(differ)
    x, y = (v.reshape(-1)[places].astype(np.float64) for v in (a, b))
    with np.errstate(invalid="ignore"):
        error = np.abs(x - y)
    error = np.where(np.isnan(error), np.inf, error)
    first = places[np.argsort(-error, kind="stable")[:SHOWN]]
    found = []
    for place in first:
        index = tuple(int(i) for i in np.unravel_index(place, a.shape))
        values = a[index].item(), b[index].item()
        is_finite = all(np.isfinite(float(value)) for value in values)
        ulps = int(steps[place]) if steps is not None and is_finite else None
        found.append(Mismatch(index, *values, ulps))
    return tuple(found)
