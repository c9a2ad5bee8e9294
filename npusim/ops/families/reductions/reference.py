"""The results of the operators of the family, on whole arrays in plain numpy."""

from __future__ import annotations

from functools import partial
from math import prod

import numpy as np

from npusim import devices
from npusim.data.dtypes import Array, dtype_of
from npusim.data.tensor import Operand, TensorSpec
from npusim.devices.schema import DeviceSpec
from npusim.ops._oracle import Given
from npusim.ops.families.reductions.contract import KEEPS_SHAPE, Problem
from npusim.ops.families.reductions.kernel import fits
from npusim.ops.families.reductions.long_rows import cuts

LANES = 64
"""Elements of float32 that one instruction reduces."""


def compute(name: str, given: Given) -> Array:
    """The result of operator *name* along axis dim of x."""
    x: Array = given.x
    dim = given.dim % x.ndim
    with np.errstate(all="ignore"):
        if name == "amax":
            return np.asarray(np.max(x, axis=dim))
        if name == "argmax":
            has_nan = np.isnan(x).any(axis=dim)
            first = np.where(has_nan, x.shape[dim] - 1, np.argmax(x, axis=dim))
            return np.asarray(first.astype(np.int32))
        is_last = prod(x.shape[dim + 1 :]) <= 1
        rows = np.moveaxis(x, dim, -1)
        add = partial(_total, cuts=_cuts(name, rows, given.spec)) if is_last else _added
        wide = rows.astype(np.float32)
        if name == "sum":
            return given.rounded(add(wide), x.dtype)
        if name == "mean":
            return given.rounded(add(wide * np.float32(1 / x.shape[dim])), x.dtype)
        largest = np.max(wide, axis=-1, keepdims=True)
        is_half = x.dtype == np.float16
        if name == "log_softmax" and is_last and not is_half:
            largest = given.rounded(largest, np.dtype(np.float16)).astype(np.float32)
        apart = wide - largest
        if name == "softmax" and is_half:
            apart = given.rounded(apart, x.dtype).astype(np.float32)
        power = _exp(apart)
        total = add(power)[..., None]
        if name == "log_softmax":
            found = apart - np.log(total.astype(np.float64)).astype(np.float32)
        elif given.spec is not None and given.spec.arch == "2002":
            found = power * (np.float32(1) / total)
        else:
            found = power / total
        return np.moveaxis(given.rounded(found, x.dtype), -1, dim)


def _added(values: Array) -> Array:
    """The sum of each row, one element after another."""
    total = values[..., 0].copy()
    for column in range(1, values.shape[-1]):
        total += values[..., column]
    return np.asarray(total)


def _exp(x: Array) -> Array:
    return np.exp(x.astype(np.float64)).astype(np.float32)


def _cuts(name: str, x: Array, spec: DeviceSpec | None) -> list[tuple[int, int]]:
    """The pieces of a row of *x*, whose last axis is that of rows, as on the chip."""
    chip = devices.load("ascend910b2") if spec is None else spec
    rows, columns, element = prod(x.shape[:-1]), x.shape[-1], dtype_of(x)
    assert element is not None
    given = TensorSpec((rows, columns), element.name)
    p = Problem(
        inputs=(Operand("x", given),),
        outputs={"output": given if name in KEEPS_SHAPE else TensorSpec((rows,), element.name)},
        name=name,
        rows=rows,
        columns=columns,
    )
    return [(0, columns)] if fits(chip, p) else cuts(chip, p)


def _total(x: Array, cuts: list[tuple[int, int]]) -> Array:
    """The sum of each row: pieces are added to the first one, which is then summed."""
    (first, width), *others = cuts
    total = x[..., first : first + width].copy()
    for left, extent in others:
        total[..., :extent] += x[..., left : left + extent]
    return _sum(total)


def _sum(x: Array) -> Array:
    """The sum of each row: by halves until LANES are left, then neighbours."""
    while x.shape[-1] > LANES:
        half = 1 << (x.shape[-1] - 1).bit_length() - 1
        rest = x.shape[-1] - half
        x = np.concatenate([x[..., :rest] + x[..., half:], x[..., rest:half]], axis=-1)
    x = np.concatenate([x, np.zeros((*x.shape[:-1], LANES - x.shape[-1]), np.float32)], axis=-1)
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return x[..., 0]
