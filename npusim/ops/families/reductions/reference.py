"""What the operators of the family compute, on whole arrays in plain numpy."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from npusim.data.dtypes import Array
from npusim.devices.schema import DeviceSpec
from npusim.ops._oracle import Given

__all__ = ["compute"]

KEEPS_SHAPE = ("softmax", "log_softmax")
LANES = 64
"""Elements of float32 that one instruction reduces."""


def compute(name: str, given: Given) -> Array:
    """The result of operator *name* along axis dim of x."""
    x, spec = given.x, given.spec
    dim = given.dim % x.ndim
    if prod(x.shape[dim + 1 :]) > 1:
        return _by_rows(name, x, dim, spec)
    x = np.moveaxis(x, dim, -1)
    is_inference = spec is not None and spec.arch == "2002"
    with np.errstate(all="ignore"):
        if name == "amax":
            return np.asarray(np.max(x, axis=-1))
        if name == "argmax":
            has_nan = np.isnan(x).any(axis=-1)
            first = np.where(has_nan, x.shape[-1] - 1, np.argmax(x, axis=-1))
            return np.asarray(first.astype(np.int32))
        wide = x.astype(np.float32)
        if name == "sum":
            return _as(_sum(wide), x, spec)
        if name == "mean":
            return _as(_sum(wide * np.float32(1 / x.shape[-1])), x, spec)
        largest = np.max(x, axis=-1, keepdims=True)
        if name == "softmax":
            is_half = x.dtype == np.float16
            apart = _as(wide - largest.astype(np.float32), x, spec) if is_half else wide - largest
            exponential = _exp(apart.astype(np.float32))
            total = _sum(exponential)[..., None]
            if is_inference:
                return _as(exponential * (np.float32(1) / total), x, spec)
            return _as(exponential / total, x, spec)
        largest = largest.astype(np.float32)
        if x.dtype != np.float16:
            largest = _as(largest, np.zeros(0, np.float16), spec).astype(np.float32)
        apart = wide - largest
        logarithm = np.log(_sum(_exp(apart)).astype(np.float64)).astype(np.float32)
        return _as(apart - logarithm[..., None], x, spec)


def _by_rows(name: str, x: Array, dim: int, spec: DeviceSpec | None) -> Array:
    """What each row along *dim* adds to the one before, or the larger of both."""
    with np.errstate(all="ignore"):
        if name == "amax":
            return np.asarray(np.max(x, axis=dim))
        if name == "argmax":
            has_nan = np.isnan(x).any(axis=dim)
            first = np.where(has_nan, x.shape[dim] - 1, np.argmax(x, axis=dim))
            return np.asarray(first.astype(np.int32))
        if name in KEEPS_SHAPE:
            return _softmax_by_rows(name, x, dim, spec)
        wide = np.moveaxis(x.astype(np.float32), dim, 0)
        if name == "mean":
            wide = wide * np.float32(1 / x.shape[dim])
        return _as(_added(wide), x, spec)


def _softmax_by_rows(name: str, x: Array, dim: int, spec: DeviceSpec | None) -> Array:
    """Softmax or its logarithm, the powers added one row along *dim* after the other."""
    wide = x.astype(np.float32)
    apart = wide - np.max(wide, axis=dim, keepdims=True)
    if name == "softmax" and x.dtype == np.float16:
        apart = _as(apart, x, spec).astype(np.float32)
    power = _exp(apart)
    total = np.expand_dims(_added(np.moveaxis(power, dim, 0)), dim)
    if name == "log_softmax":
        return _as(apart - np.log(total.astype(np.float64)).astype(np.float32), x, spec)
    if spec is not None and spec.arch == "2002":
        return _as(power * (np.float32(1) / total), x, spec)
    return _as(power / total, x, spec)


def _added(rows: Array) -> Array:
    """*rows* one after the other."""
    total = rows[0].copy()
    for row in rows[1:]:
        total += row
    return np.asarray(total)


def _exp(x: Array) -> Array:
    return np.exp(x.astype(np.float64)).astype(np.float32)


def _sum(x: Array) -> Array:
    """Add up each row: halves onto halves until LANES are left, then neighbours onto neighbours."""
    while x.shape[-1] > LANES:
        half = 1 << (x.shape[-1] - 1).bit_length() - 1
        rest = x.shape[-1] - half
        x = np.concatenate([x[..., :rest] + x[..., half:], x[..., rest:half]], axis=-1)
    x = np.concatenate([x, np.zeros((*x.shape[:-1], LANES - x.shape[-1]), np.float32)], axis=-1)
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return x[..., 0]


def _as(values: Array, like: Any, spec: DeviceSpec | None) -> Array:
    """*values* in the type of *like*; where float16 saturates, 65504 for more and 0 for NaN."""
    if like.dtype == np.float16 and spec is not None and spec.half_overflow == "saturate":
        most = np.finfo(np.float16).max
        values = np.clip(np.where(np.isnan(values), 0, values), -most, most)
    return np.asarray(values.astype(like.dtype))
