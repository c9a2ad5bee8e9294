"""npu_dequant_swiglu_quant on whole arrays in plain numpy: the oracle for every tiled run."""

from __future__ import annotations

from functools import partial

import numpy as np

from npusim.data.dtypes import Array
from npusim.ops._oracle import Given

__all__ = ["oracle"]

F32 = np.float32


def oracle(given: Given) -> tuple[Array, Array]:
    """int8 `(..., columns)` of x `(..., 2 x columns)`, and scales `(...)`, float32.

    What no kernel writes is zero: scales with quant_mode 0, and rows that no group counts.
    """
    x, group_index, swiglu_mode = given.x, given.group_index, given.swiglu_mode
    activation_scale = given.activation_scale
    *outer, width = x.shape
    rows = x.reshape(-1, width)
    group, is_counted = _groups(group_index, rows.shape[0])
    in_groups = group_index is not None
    of_rows = partial(_of_rows, group, 1 if group_index is None else group_index.shape[0])
    with np.errstate(all="ignore"):
        act = None if activation_scale is None else activation_scale.reshape(-1, 1)
        values = _dequantised(rows, of_rows(given.weight_scale), act, of_rows(given.bias))
        first, second = np.split(values, 2, axis=1)
        a, b = (first, second) if given.activate_left else (second, first)
        if swiglu_mode == 1 and in_groups:
            a, b = values[:, 0::2], values[:, 1::2]
        if swiglu_mode and in_groups:
            z = _gated(a, b, F32(given.clamp_limit), F32(given.glu_alpha), F32(given.glu_bias))
        else:
            z = (a / _exp_plus_1(a, F32(-1))) * b
        factors = of_rows(given.quant_scale)
        if given.quant_mode == 1:
            z = z if factors is None else z * factors.astype(F32)
            scaled, scale = _dynamic(z, by_division=in_groups)
        else:
            scaled = _static(z, factors, of_rows(given.quant_offset), in_groups=in_groups)
            scale = np.zeros(len(rows), F32)
        whole = np.rint(scaled)
        y = np.clip(np.where(np.isnan(whole), 0, whole), -128, 127).astype(np.int8)
    y[~is_counted], scale[~is_counted] = 0, 0
    return y.reshape(*outer, width // 2), scale.reshape(outer)


def _of_rows(group: Array, groups: int, numbers: Array | None) -> Array | None:
    """Those of each row's group, `(rows, columns)` or `(rows, 1)`."""
    return None if numbers is None else numbers.reshape(groups, -1)[group]


def _dequantised(rows: Array, weight: Array | None, act: Array | None, bias: Array | None) -> Array:
    """`(rows, width)` in fp32; a bias of int32 is added before, any other at last."""
    if bias is not None and bias.dtype == np.int32:
        rows, bias = rows + bias, None
    values = rows.astype(F32)
    for factors in (weight, act):
        values = values if factors is None else values * factors
    return np.asarray(values if bias is None else values + bias.astype(F32))


def _groups(group_index: Array | None, rows: int) -> tuple[Array, Array]:
    """The group of each row, and whether it has one: both `(rows,)`."""
    if group_index is None:
        return np.zeros(rows, np.int64), np.ones(rows, bool)
    if group_index.ndim == 2:
        names, counts = group_index[:, 0], group_index[:, 1]
    else:
        names, counts = np.arange(group_index.size), group_index
    group = np.repeat(names, counts)
    return np.pad(group, (0, rows - group.size)), np.arange(rows) < group.size


def _exp_plus_1(a: Array, factor: np.float32) -> Array:
    """`exp(a x factor) + 1`, the exponential rounded once."""
    return np.exp((a * factor).astype(np.float64)).astype(F32) + F32(1)


def _gated(a: Array, b: Array, limit: np.float32, alpha: np.float32, beta: np.float32) -> Array:
    b = np.maximum(np.minimum(b, limit), -limit) + beta
    a = np.minimum(a, limit)
    return np.asarray(b * (a / _exp_plus_1(a, -alpha)))


def _dynamic(z: Array, *, by_division: bool) -> tuple[Array, Array]:
    """Rows scaled to 127, and their scales: the kernels differ in the last bit."""
    largest = np.abs(z).max(axis=1, initial=0)
    if by_division:
        scale = largest * F32(1 / 127)
        return z / scale[:, None], scale
    scale = largest / F32(127)
    return z * (F32(1) / scale)[:, None], scale


def _static(z: Array, scale: Array | None, offset: Array | None, *, in_groups: bool) -> Array:
    if scale is None or offset is None:
        return z
    factors, points = scale.astype(F32), offset.astype(F32)
    if factors.shape[1] == z.shape[1] > 1:
        return np.asarray(z / factors + points)
    # One number a row: the scalar unit inverts it, and that of a group unless it is 0.
    inverse = np.where((factors == 0) & in_groups, F32(1), F32(1) / factors)
    return np.asarray(z * inverse + points)
